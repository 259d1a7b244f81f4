"""`penstock check JOB...`: all faults of all job files at once."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from penstock.job.faults import JobFileError, shown, unless_secret
from penstock.job.loader import CheckedFile
from penstock.job.spec import JobSpec
from penstock.tables.registry import check_jobs, kind_of


def check(
    jobs: Annotated[list[Path], typer.Argument(help="Job files.")],
    json: Annotated[bool, typer.Option("--json", help="Print a list of files with their faults.")] = False,
) -> None:
    """Report all faults of job files; starts nothing and opens no connection."""
    results = check_jobs(jobs)
    if json:
        typer.echo(dumps([_as_json(result) for result in results], indent=2))
    else:
        for result in results:
            typer.echo(_as_text(result))
    if any(result.faults for result in results):
        raise typer.Exit(JobFileError.exit_code)


def _as_text(result: CheckedFile) -> str:
    if result.spec is None or result.faults:
        return "\n".join(str(fault) for fault in result.faults)
    spec = result.spec
    where = f"{kind_of(spec).summary(spec)} {unless_secret(spec.table.path)}"
    return f"ok {result.path} (job {unless_secret(spec.name)}: topics {_topics(spec)} -> {where})"


def _topics(spec: JobSpec) -> str:
    if spec.log.topic_pattern is not None:
        return f"matching {shown(spec.log.topic_pattern)}"
    return ", ".join(unless_secret(topic) for topic in spec.log.topics)


def _as_json(result: CheckedFile) -> Mapping[str, object]:
    faults = [fault.as_json() for fault in result.faults]
    return {"file": str(result.path), "ok": not faults, "faults": faults}
