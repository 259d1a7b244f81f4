"""Several job files at once: each checked alone, then against the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.job.checks.spark import UNSHARED, UNSHARED_HINT, contradiction, contradiction_text, is_unshared
from penstock.job.faults import Fault, JobFileError, key_text
from penstock.job.loader import load_job
from penstock.job.sections.kind_section import Kinds
from penstock.job.sections.log_section import Logs
from penstock.job.spec import JobSpec


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A job file with its spec, or with its faults."""

    path: Path
    spec: JobSpec | None
    faults: tuple[Fault, ...] = ()


def check_jobs(
    paths: Sequence[Path], kinds: Kinds, logs: Logs, env: Mapping[str, str] | None = None
) -> list[CheckedFile]:
    """Check each file, and that no two of them get in each other's way; a path given twice counts once."""
    results: list[CheckedFile] = []
    for path in dict.fromkeys(paths):
        try:
            spec = load_job(path, kinds, logs, env)
        except JobFileError as error:
            results.append(CheckedFile(path, None, error.faults))
            continue
        earlier = [(each.path, each.spec) for each in results if each.spec is not None]
        clashes = (_clash(path, spec, other_path, other, kinds) for other_path, other in earlier)
        results.append(CheckedFile(path, spec, tuple(fault for fault in clashes if fault is not None)[:1]))
    return results


def load_jobs(paths: Sequence[Path], kinds: Kinds, logs: Logs, env: Mapping[str, str] | None = None) -> list[JobSpec]:
    """Read the job files; raises one `JobFileError` with every fault of all of them."""
    results = check_jobs(paths, kinds, logs, env)
    faults = [fault for result in results for fault in result.faults]
    if faults:
        raise JobFileError(faults)
    return [result.spec for result in results if result.spec is not None]


def _clash(path: Path, job: JobSpec, other_path: Path, other: JobSpec, kinds: Kinds) -> Fault | None:
    """What the two jobs cannot share. Paths of tables are not named: they may be secrets."""
    if (job.name, job.table.path) == (other.name, other.table.path):
        message = f"the same job name and table as in {other_path}: both would move the same positions"
        return Fault(str(path), 1, 1, "job", message, "give one of them another name")
    spark = _spark_clash(path, job, other_path, other)
    if spark is not None:
        return spark
    of_kind = {kind.name: kind for kind in kinds}
    for one, another in ((job, other), (other, job)):
        found = of_kind[one.table.kind].clash(one, another, other_path)
        if found is not None:
            return Fault(str(path), 1, 1, key_text(found.key), found.message, found.hint)
    return None


def _spark_clash(path: Path, job: JobSpec, other_path: Path, other: JobSpec) -> Fault | None:
    """What the two cannot share of the one Spark that their process has."""
    found = contradiction(job.spark, other.spark)
    if found is not None:
        message = f"{contradiction_text(job.name, other.name, found[1:])} ({other_path})"
        return Fault(str(path), 1, 1, found[0], message, "state the same, or run the jobs in processes of their own")
    for each, master in ((job, other.spark.master), (other, job.spark.master)):
        if master is not None and is_unshared(each, master):
            key = f"table.{each.table.kind}"
            message = f"job {each.name} has {UNSHARED}, as the other job of the process states ({other_path})"
            return Fault(str(path), 1, 1, f"{key}.path", message, UNSHARED_HINT.format(key=f"{key}.shared"))
    return None
