"""`penstock check JOB...`: all faults of all job files at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from penstock.job.faults import Fault, JobFileError, shown
from penstock.job.loader import load_job
from penstock.job.spec import JobSpec, Secret

EXIT_FAULTY = JobFileError.exit_code


@dataclass(frozen=True, slots=True)
class Checked:
    """A job file with its spec, or with its faults."""

    path: Path
    spec: JobSpec | None
    faults: tuple[Fault, ...] = ()


def check(
    jobs: Annotated[list[Path], typer.Argument(help="Job files.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print a list of files with their faults.")] = False,
) -> None:
    """Report every fault of the job files; nothing is started or connected to."""
    results = check_files(jobs)
    if json:
        typer.echo(dumps([_as_json(result) for result in results], indent=2))
    else:
        for result in results:
            typer.echo(_as_text(result))
    if any(result.faults for result in results):
        raise typer.Exit(EXIT_FAULTY)


def check_files(paths: Sequence[Path], env: Mapping[str, str] | None = None) -> list[Checked]:
    """Check each file, and that no two of them are the same job on the same table."""
    results: list[Checked] = []
    first_of: dict[tuple[str, str], Path] = {}
    for path in dict.fromkeys(paths):
        try:
            spec = load_job(path, env)
        except JobFileError as error:
            results.append(Checked(path, None, error.faults))
            continue
        first = first_of.setdefault((spec.name, spec.table.path), path)
        faults = () if first == path else (_doubled(path, first),)
        results.append(Checked(path, spec, faults))
    return results


def _doubled(path: Path, first: Path) -> Fault:
    message = f"the same job name and table as in {first}: both would move the same positions"
    return Fault(str(path), 1, 1, "job", message, "give one of them another name")


def _as_text(result: Checked) -> str:
    if result.spec is None or result.faults:
        return "\n".join(str(fault) for fault in result.faults)
    spec = result.spec
    topics = f"pattern {spec.log.topic_pattern!r}" if spec.log.topic_pattern else " ".join(map(_shown, spec.log.topics))
    return f"ok {result.path} (job {_shown(spec.name)}: topics {topics} -> delta {_shown(spec.table.path)})"


def _shown(value: str) -> str:
    return shown(value) if isinstance(value, Secret) else value


def _as_json(result: Checked) -> Mapping[str, object]:
    faults = [fault.as_json() for fault in result.faults]
    return {"file": str(result.path), "ok": not faults, "faults": faults}
