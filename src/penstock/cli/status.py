"""`penstock status`: how jobs stand."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.errors import UserError
from penstock.job.loader import load_job
from penstock.job.spec import JobSpec
from penstock.status.model import DayAnswer, JobStatus, PartitionStatus
from penstock.tables.export.alerts import Rule, limit_of
from penstock.tables.export.status.day_answers import instant
from penstock.tables.export.status.status import ExportPartitionStatus, ExportStatus, TypeStatus
from penstock.tables.registry import kind_of
from penstock.watch.status import status as status_of

UNKNOWN = "?"
GAPS_SHOWN = 5
LANES_SHOWN = 20
DAYS_SHOWN = 3
EXIT_NOT_COMPLETE = 1
WIDTH_IN_FILES = 200
"""Where no terminal says how wide it is, nothing is cut."""


def status(
    jobs: Annotated[list[Path], typer.Argument(help="Job files.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print a list of jobs.")] = False,
    day: Annotated[
        datetime | None,
        typer.Option(
            "--day", formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="Only show whether this UTC day is complete."
        ),
    ] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="With --day: only this type; may be repeated.")
    ] = None,
) -> None:
    """Show positions, lag, types, last commits, quarantine and alerts.

    If the log does not answer, only the table's part is shown, with the exit code of that error. With --day: exit code
    0 if the day is complete for every requested type, else 1.
    """
    specs = [load_job(path) for path in jobs]
    if day is not None:
        _tell_day(specs, day.date().isoformat(), types or (), json)
        return
    if types:
        raise UserError("--type goes with --day")
    found = [status_of(each) for each in specs]
    if json:
        typer.echo(json_text.dumps([each.as_json() for each in found]))
    else:
        console = status_console()
        for each in found:
            print_status(each, console)
    worst = max((each.exit_code for each in found), default=0)
    if worst:
        raise typer.Exit(worst)


def status_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_IN_FILES)


def _tell_day(jobs: Sequence[JobSpec], day: str, types: Sequence[str], json: bool) -> None:
    found = {job.name: kind_of(job).day_answers(job, day, types) for job in jobs}
    if json:
        told = [
            {"job": job, "day": day, "complete": _all_complete(each), "types": [one.as_json() for one in each]}
            for job, each in found.items()
        ]
        typer.echo(json_text.dumps(told))
    else:
        console = status_console()
        for job, each in found.items():
            console.print(Text.assemble((job, "bold"), f"  {day}"))
            for one in each:
                console.print(Text(f"{one.type}  {one.state.value}: {one.reason}"), soft_wrap=True)
    if not all(_all_complete(each) for each in found.values()):
        raise typer.Exit(EXIT_NOT_COMPLETE)


def _all_complete(answers: Iterable[DayAnswer]) -> bool:
    return all(each.complete for each in answers)


def print_status(job: JobStatus, console: Console) -> None:
    """A heading, the partitions, the last commits, and what needs attention."""
    version = "not started" if job.version is None else f"version {job.version}"
    console.print(Text.assemble((job.job, "bold"), f"  {job.table}  {version}"), soft_wrap=True)
    if not job.started:
        return
    console.print(_partitions(job))
    if isinstance(job, ExportStatus):
        _print_types(job, console)
    console.print(_commits(job))
    for gap in job.gaps[:GAPS_SHOWN]:
        console.print(Text(f"recorded gap: {gap.partition} [{gap.start}, {gap.end}) in version {gap.version}"))
    for loss in job.given_up[:GAPS_SHOWN]:
        console.print(Text(f"given up: {loss.partition} [{loss.start}, {loss.end}) in version {loss.version}"))
    for alert in job.alerts:
        console.print(Text(f"! {alert.text}", style="yellow"), soft_wrap=True)


def _partitions(job: JobStatus) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    rows = [_cells(each, reachable=job.log_error is None) for each in job.partitions]
    for name in rows[0] if rows else ():
        table.add_column(name, justify="left" if name == "partition" else "right")
    for row in rows:
        table.add_row(*row.values())
    return table


def _cells(each: PartitionStatus, reachable: bool) -> dict[str, str]:
    """A row of the table of partitions: heading to cell."""
    totals = each.totals
    none = "-" if reachable else UNKNOWN
    lowest = {"global": _cell(each.global_position, none)} if isinstance(each, ExportPartitionStatus) else {}
    return {
        "partition": str(each.partition),
        "position": _cell(each.position, none),
        **lowest,
        "end": _cell(each.end, none),
        "lag": _cell(each.lag_records, none),
        "age": none if each.lag_seconds is None else duration(each.lag_seconds),
        "token": str(each.token),
        "written": str(totals.written + totals.replayed),
        **({"deferred": str(totals.deferred)} if lowest else {}),
        "quarantined": str(totals.quarantined - totals.replayed),
        "filtered": str(totals.filtered),
        "holes": str(totals.holes),
        "gap": str(totals.gap),
        "group": _cell(each.mirrored, none),
        "owner": each.owner or "-",
    }


def _cell(value: object, none: str = "-") -> str:
    return none if value is None else str(value)


def _print_types(job: ExportStatus, console: Console) -> None:
    """The types, where they are behind, and the rules with their limits."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("type")
    for name in ("rows", "files", "MiB", "behind", "failed", "watermark", "complete to", "open", "reopened"):
        table.add_column(name, justify="right")
    for each in job.types:
        failed = "-" if each.failed_writes_percent is None else f"{each.failed_writes_percent:.1f}%"
        size = f"{each.size_bytes / 2**20:.1f}"
        counts = (str(each.rows), str(each.files), size, str(each.gap_records), failed)
        days = (each.last_complete_day or "-", _days(each.open_days), _days(each.reopened_days))
        table.add_row(each.name, *counts, instant(each.watermark_ms) or "-", *days)
    console.print(table)
    for line in [text for each in job.types for text in _lanes(each)][:LANES_SHOWN]:
        console.print(Text(line), soft_wrap=True)
    if job.pending:
        console.print(Text(f"files that wait to be moved to their place: {len(job.pending)}"))
    console.print(Text(_rules(job)), soft_wrap=True)


def _lanes(each: TypeStatus) -> list[str]:
    return [
        f"behind: {each.name} in {lane.partition} at {lane.position}, {lane.deferred} records wait"
        f" ({lane.cause.value}, since {lane.since:%Y-%m-%d %H:%M:%SZ})"
        for lane in each.lanes
    ]


def _rules(job: ExportStatus) -> str:
    found = job.measured
    unknown = None if job.log_error is None else UNKNOWN
    values = {
        Rule.FAILED_WRITES: None if found.failed_writes_percent is None else f"{found.failed_writes_percent:.1f}%",
        Rule.LAG: max(found.lag_records.values(), default=unknown),
        Rule.DISCREPANCY: max(found.discrepancy_records.values(), default=None),
        Rule.RETENTION: sum(found.expiring_records.values()) if job.log_error is None else UNKNOWN,
    }
    limits = {rule: limit_of(rule, job.limits) for rule in Rule}
    told = [
        f"{rule.value.replace('_', ' ')} {_cell(values[rule])} "
        + ("(no limit)" if limits[rule] is None else f"(limit {limits[rule]:g})")
        for rule in Rule
    ]
    return "rules: " + ", ".join(told)


def _days(days: Sequence[str]) -> str:
    more = len(days) - DAYS_SHOWN
    return (" ".join(days[-DAYS_SHOWN:]) + (f" and {more} more" if more > 0 else "")) or "-"


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
