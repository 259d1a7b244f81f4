"""`penstock status`: how jobs stand."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.job.loader import load_job
from penstock.watch.status import JobStatus, PartitionStatus
from penstock.watch.status import status as status_of

UNKNOWN = "?"
GAPS_SHOWN = 5


def status(
    jobs: Annotated[list[Path], typer.Argument(help="Job files.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print a list of jobs.")] = False,
) -> None:
    """Show positions, lag, last commits, quarantine and alerts.

    A log that does not answer leaves the table's side, and the exit code of its error.
    """
    found = [status_of(load_job(path)) for path in jobs]
    if json:
        typer.echo(json_text.dumps([each.as_json() for each in found]))
    else:
        console = Console(highlight=False)
        for each in found:
            print_status(each, console)
    worst = max((each.exit_code for each in found), default=0)
    if worst:
        raise typer.Exit(worst)


def print_status(job: JobStatus, console: Console) -> None:
    """A heading, the partitions, the last commits, and what needs attention."""
    version = "not started" if job.version is None else f"version {job.version}"
    console.print(Text.assemble((job.job, "bold"), f"  {job.table}  {version}"), soft_wrap=True)
    if not job.started:
        return
    console.print(_partitions(job))
    console.print(_commits(job))
    for gap in job.gaps[:GAPS_SHOWN]:
        console.print(Text(f"recorded gap: {gap.partition} [{gap.start}, {gap.end}) in version {gap.version}"))
    for loss in job.given_up[:GAPS_SHOWN]:
        console.print(Text(f"given up: {loss.partition} [{loss.start}, {loss.end}) in version {loss.version}"))
    for alert in job.alerts:
        console.print(Text(f"! {alert.text}", style="yellow"), soft_wrap=True)


def _partitions(job: JobStatus) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("partition")
    for name in (
        "position",
        "end",
        "lag",
        "age",
        "token",
        "written",
        "quarantined",
        "filtered",
        "holes",
        "gap",
        "group",
        "owner",
    ):
        table.add_column(name, justify="right")
    for each in job.partitions:
        table.add_row(*_cells(each, reachable=job.log_error is None))
    return table


def _cells(each: PartitionStatus, reachable: bool) -> list[str]:
    totals = each.totals
    none = "-" if reachable else UNKNOWN
    return [
        str(each.partition),
        none if each.position is None else str(each.position),
        none if each.end is None else str(each.end),
        none if each.lag_records is None else str(each.lag_records),
        none if each.lag_seconds is None else duration(each.lag_seconds),
        str(each.token),
        str(totals.written + totals.replayed),
        str(totals.quarantined - totals.replayed),
        str(totals.filtered),
        str(totals.holes),
        str(totals.gap),
        none if each.mirrored is None else str(each.mirrored),
        each.owner or "-",
    ]


def _commits(job: JobStatus) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("version", justify="right")
    table.add_column("at")
    table.add_column("commit")
    for name in ("rows", "quarantined", "slices"):
        table.add_column(name, justify="right")
    for each in job.commits:
        rows = "-" if each.rows is None else str(each.rows)
        at = each.at.strftime("%Y-%m-%d %H:%M:%SZ")
        table.add_row(str(each.version), at, each.kind, rows, str(each.quarantined), str(each.slices))
    return table


def duration(seconds: float) -> str:
    """Seconds in the largest unit that leaves at least two of it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
