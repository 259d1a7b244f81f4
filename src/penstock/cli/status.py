"""`penstock status`: positions, lag and alerts of jobs."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.tables import cell, duration, table
from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.status.model import UNKNOWN, JobStatus, PartitionStatus
from penstock.tables.registry import kind_of, load_job
from penstock.watch.status import status as status_of

GAPS_SHOWN = 5
EXIT_NOT_COMPLETE = 1
EXIT_ALERT = 1
WIDTH_IN_FILES = 200
"""Of output that is not a terminal, so that nothing is cut."""


class FailOn(StrEnum):
    ALERT = "alert"


def status(
    jobs: Annotated[list[Path], typer.Argument(help="Job files.")],
    json: Annotated[bool, typer.Option("--json", help="Print a list of jobs.")] = False,
    day: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="Only show whether this UTC day is complete."),
    ] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="With --day: only this type; may be repeated.")
    ] = None,
    fail_on: Annotated[FailOn | None, typer.Option(help="Exit with 1 if a job has an alert.")] = None,
) -> None:
    """Show positions, lag, types, last commit, quarantine and alerts.

    If the log does not answer, only the table's part is shown, with the exit code of that error. With --day: exit code
    0 if the day is complete for every requested type, else 1.
    """
    specs = [load_job(path) for path in jobs]
    if day is not None:
        _print_day(specs, day.date().isoformat(), types or (), json)
        return
    if types:
        raise UserError("--type needs --day", hint="add --day YYYY-MM-DD")
    statuses = [status_of(spec) for spec in specs]
    if json:
        typer.echo(json_text.dumps([item.as_json() for item in statuses]))
    else:
        console = status_console()
        for item in statuses:
            print_status(item, console)
    worst = max((item.exit_code for item in statuses), default=0)
    if worst:
        raise typer.Exit(worst)
    if fail_on is FailOn.ALERT and any(item.alerts for item in statuses):
        raise typer.Exit(EXIT_ALERT)


def status_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_IN_FILES)


def _print_day(jobs: Sequence[JobSpec], day: str, types: Sequence[str], json: bool) -> None:
    """Show whether a day is complete, and exit with 1 if it is not."""
    answers = {job.name: kind_of(job).day_answers(job, day, types) for job in jobs}
    complete = {job: all(answer.complete for answer in of_job) for job, of_job in answers.items()}
    if json:
        content = [
            {"job": job, "day": day, "complete": complete[job], "types": [answer.as_json() for answer in of_job]}
            for job, of_job in answers.items()
        ]
        typer.echo(json_text.dumps(content))
    else:
        console = status_console()
        for job, of_job in answers.items():
            console.print(Text.assemble((job, "bold"), f"  {day}"))
            for answer in of_job:
                console.print(Text(f"{answer.type}  {answer.state.value}: {answer.reason}"), soft_wrap=True)
    if not all(complete.values()):
        raise typer.Exit(EXIT_NOT_COMPLETE)


def print_status(job: JobStatus, console: Console) -> None:
    """Print a heading, the partitions, sections of this kind of table, gaps and alerts."""
    version = "not started" if job.version is None else f"version {job.version}"
    version += "" if job.committed_at is None else f" of {job.committed_at:%Y-%m-%d %H:%M:%SZ}"
    console.print(Text.assemble((job.job, "bold"), f"  {job.table}  {version}"), soft_wrap=True)
    if not job.started:
        return
    console.print(_partitions(job))
    for section in job.sections:
        if section.headings:
            console.print(table(section.headings, section.rows))
        for line in section.lines:
            console.print(Text(line), soft_wrap=True)
    for gap in job.gaps[:GAPS_SHOWN]:
        console.print(Text(f"recorded gap: {gap.partition} [{gap.start}, {gap.end}) in version {gap.version}"))
    for alert in job.alerts:
        console.print(Text(f"! {alert.text}", style="yellow"), soft_wrap=True)


def _partitions(job: JobStatus) -> Table:
    rows = [_cells(partition, reachable=job.log_error is None) for partition in job.partitions]
    return table(tuple(rows[0]) if rows else (), [tuple(row.values()) for row in rows])


def _cells(partition: PartitionStatus, reachable: bool) -> dict[str, str]:
    """A row of the table of partitions: heading to cell."""
    totals = partition.totals
    none = "-" if reachable else UNKNOWN
    cells = {
        "partition": str(partition.partition),
        "position": cell(partition.position, none),
        "end": cell(partition.end, none),
        "lag": cell(partition.lag_records, none),
        "age": none if partition.lag_seconds is None else duration(partition.lag_seconds),
        "token": str(partition.token),
        "written": str(totals.written + totals.replayed),
        "quarantined": str(totals.quarantined - totals.replayed),
        "filtered": str(totals.filtered),
        "holes": str(totals.holes),
        "gap": str(totals.gap),
        "group": cell(partition.mirrored, none),
    }
    result = {}
    for heading, content in cells.items():
        result[heading] = content
        result.update(
            {column.heading: cell(column.value, none) for column in partition.further if column.after == heading}
        )
    return result
