"""Several job files at once: each checked alone, then against the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.job.faults import Fault, JobFileError
from penstock.job.loader import load_job
from penstock.job.spec import JobSpec


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A job file with its spec, or with its faults."""

    path: Path
    spec: JobSpec | None
    faults: tuple[Fault, ...] = ()


def check_jobs(paths: Sequence[Path], env: Mapping[str, str] | None = None) -> list[CheckedFile]:
    """Check each file, and that no two of them are the same job on the same table; a path given twice counts once."""
    results: list[CheckedFile] = []
    first_of: dict[tuple[str, str], Path] = {}
    for path in dict.fromkeys(paths):
        try:
            spec = load_job(path, env)
        except JobFileError as error:
            results.append(CheckedFile(path, None, error.faults))
            continue
        first = first_of.setdefault((spec.name, spec.table.path), path)
        faults = () if first == path else (_doubled(path, first),)
        results.append(CheckedFile(path, spec, faults))
    return results


def load_jobs(paths: Sequence[Path], env: Mapping[str, str] | None = None) -> list[JobSpec]:
    """Read the job files; raises one `JobFileError` with every fault of all of them."""
    results = check_jobs(paths, env)
    faults = [fault for result in results for fault in result.faults]
    if faults:
        raise JobFileError(faults)
    return [result.spec for result in results if result.spec is not None]


def _doubled(path: Path, first: Path) -> Fault:
    message = f"the same job name and table as in {first}: both would move the same positions"
    return Fault(str(path), 1, 1, "job", message, "give one of them another name")
