"""`penstock load`, `compact`, `vacuum` and `rebuild`: loading and maintenance of a table's files."""

from __future__ import annotations

import json as json_text
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.tables import Json, parsed
from penstock.environment import Environment
from penstock.errors import UserError
from penstock.job.values import size
from penstock.lake.compaction import Progress
from penstock.lake.reports import Report
from penstock.logs.registry import open_log
from penstock.spark.session import open_spark
from penstock.tables.kind import CompactRequest, Loading, SaveMode, VacuumRequest
from penstock.tables.registry import failpoint, kind_of, load_job

Job = Annotated[Path, typer.Argument(help="Job file.")]
EXIT_NOT_RESTORED = 1


def load(
    job: Job,
    paths: Annotated[list[str], typer.Argument(help="Parquet files, or folders of them.")],
    mode: Annotated[SaveMode, typer.Option(help="Add rows and replace by key, or replace all rows.")] = SaveMode.APPEND,
    json: Json = False,
) -> None:
    """Load Parquet files; an interrupted load is continued, a finished one does nothing."""
    spec = load_job(job)
    kind = kind_of(spec)
    if not isinstance(kind, Loading):
        raise UserError(f"files cannot be loaded into {spec.name}", hint="`penstock load` is for keyed tables")
    spark = open_spark(spec.spark, name=f"penstock load {spec.name}", light=True)
    try:
        report = kind.load(spec, paths, mode, spark, environment())
    finally:
        spark.stop()
    print_report(spec.name, report, json)


def compact(
    job: Job,
    target_size: Annotated[
        str | None,
        typer.Option(
            help="Merge files below this size, such as 128MiB; default: the job's min_bytes_per_file.",
        ),
    ] = None,
    all_days: Annotated[
        bool, typer.Option("--all-days", help="For exports: also days that are not complete, except the latest.")
    ] = False,
    json: Json = False,
) -> None:
    """Merge small files; rows and positions do not change, and the job may be running."""
    spec = load_job(job)
    request = CompactRequest(None if target_size is None else parsed("--target-size", target_size, size), all_days)
    report = kind_of(spec).compact(spec, request, environment(), _progress(json))
    print_report(spec.name, report, json)


def vacuum(
    job: Job,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")] = False,
    json: Json = False,
) -> None:
    """Delete unreferenced files of the table and its quarantine; the job may be running."""
    spec = load_job(job)
    report = kind_of(spec).vacuum(spec, VacuumRequest(dry_run), environment())
    print_report(spec.name, report, json)


def rebuild(job: Job, json: Json = False) -> None:
    """Restore lost logs of an export from its files.

    Stop the processes of the job first. Exit code 0: the logs are restored, or nothing was lost. 1: the files do not
    determine the logs; the reasons are listed, and nothing was changed.
    """
    spec = load_job(job)
    with closing(open_log(spec)) as log:
        report = kind_of(spec).rebuild(spec, log, environment())
    print_report(spec.name, report, json)
    if not report.ok:
        raise typer.Exit(EXIT_NOT_RESTORED)


def environment() -> Environment:
    """With the failpoint that a fault test may have armed."""
    armed = failpoint()
    return Environment() if armed is None else Environment(at_step=armed.at_step)


def print_report(job: str, report: Report, json: bool) -> None:
    """Print what a command did."""
    for line in [json_text.dumps({"job": job, **report.as_json()})] if json else report.lines():
        typer.echo(line)


def _progress(json: bool) -> Progress | None:
    if json or not sys.stderr.isatty():
        return None
    return lambda done, total: typer.echo(f"{done} of {total} groups", err=True)
