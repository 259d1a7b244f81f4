"""`penstock status`: verdicts, positions, lag and alerts of jobs."""

from __future__ import annotations

import json as json_text
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.tables import cell, table
from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.reporting.model import UNKNOWN, JobStatus, PartitionStatus
from penstock.reporting.verdicts import Verdict, duration
from penstock.tables.registry import kind_of, load_job
from penstock.watch.status import status as status_of

GAPS_SHOWN = 5
GUTTER = 2
"""Blanks between columns."""
EXIT_NOT_COMPLETE = 1
EXIT_ALERT = 1
WATCH_SECONDS = 2.0
HEADINGS = ("partition", "verdict", "position", "lag", "age", "written", "superseded", "quarantined")
"""Shown without --verbose: a line of 80 columns."""
WIDTH_IN_FILES = 200
"""Of output that is not a terminal, so that nothing is cut."""


REASONS_SHOWN = 10
SPARKS = "▁▂▃▄▅▆▇█"
SPARKS_SHOWN = 40
STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow"}
"""Those of other verdicts are red."""
Lags = dict[str, list[int]]
"""The lag of each job at every look of a watch."""


class FailOn(StrEnum):
    ALERT = "alert"
    WARN = "warn"
    STALL = "stall"
    STOP = "stop"
    REWIND = "rewind"
    ERR = "err"

    def concerns(self, job: JobStatus) -> bool:
        """Whether the job has an alert, or a verdict that is as bad."""
        if self is FailOn.ALERT:
            return bool(job.alerts)
        return job.judgement.verdict.severity >= Verdict[self.name].severity


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
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every column of the partitions.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")] = False,
    fail_on: Annotated[FailOn | None, typer.Option(help="Exit with 1 on alerts, or from this verdict on.")] = None,
) -> None:
    """Show verdicts, positions, lag, types, last commit, quarantine and alerts.

    If the log does not answer, only the table's part is shown, with the exit code of that error. With --day: exit code
    0 if the day is complete for every requested type, else 1.
    """
    specs = [load_job(path) for path in jobs]
    if day is not None:
        _print_day(specs, day.date().isoformat(), types or (), json)
        return
    if types:
        raise UserError("--type needs --day", hint="add --day YYYY-MM-DD")
    if watch:
        _watch(specs, verbose)
    statuses = [status_of(spec) for spec in specs]
    if json:
        typer.echo(json_text.dumps([item.as_json() for item in statuses]))
    else:
        console = status_console()
        console.print(page(statuses, verbose, console.width))
    worst = max((item.exit_code for item in statuses), default=0)
    if worst:
        raise typer.Exit(worst)
    if fail_on is not None and any(map(fail_on.concerns, statuses)):
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


def _watch(jobs: Sequence[JobSpec], verbose: bool) -> NoReturn:
    console, lags = status_console(), Lags()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(page([status_of(job) for job in jobs], verbose, console.width, lags), refresh=True)
            time.sleep(WATCH_SECONDS)


def page(statuses: Sequence[JobStatus], verbose: bool, width: int = WIDTH_IN_FILES, lags: Lags | None = None) -> Group:
    """What the command shows; `lags` are those of earlier pages, to which the present ones are added."""
    return Group(*(part for item in statuses for part in _parts(item, verbose, width, lags)))


def _parts(job: JobStatus, verbose: bool, width: int, lags: Lags | None) -> Iterator[RenderableType]:
    """A heading with the verdict, reasons, partitions, sections of this kind of table, gaps and alerts."""
    version = "not started" if job.version is None else f"version {job.version}"
    version += "" if job.committed_at is None else f" of {job.committed_at:%Y-%m-%d %H:%M:%SZ}"
    verdict = job.judgement.verdict
    yield Text.assemble((verdict.value, f"bold {_style(verdict)}"), " ", (job.job, "bold"), f"  {job.table}  {version}")
    if not job.started:
        return
    if lags is not None and job.log_error is None:
        seen = lags.setdefault(job.job, [])
        seen.append(sum(partition.lag_records or 0 for partition in job.partitions))
        yield Text.assemble(f"lag {seen[-1]:,}  ", (sparkline(seen[-SPARKS_SHOWN:]), "cyan"))
    reasons = list(_reasons(job))
    yield from reasons[:REASONS_SHOWN]
    if len(reasons) > REASONS_SHOWN:
        yield Text(f"and {len(reasons) - REASONS_SHOWN} more")
    yield from _partitions(job, verbose, width)
    for section in job.sections:
        if section.headings:
            yield table(section.headings, section.rows)
        yield from map(Text, section.lines)
        yield from (Text(f"{name:<10} {text}") for name, text in section.facts.items())
    for gap in job.gaps[:GAPS_SHOWN]:
        yield Text(f"recorded gap: {gap.partition} [{gap.start}, {gap.end}) in version {gap.version}")
    for alert in job.alerts:
        yield Text(f"! {alert.text}", style="yellow")


def _reasons(job: JobStatus) -> Iterator[Text]:
    """Why partitions are not OK; what is an alert too is shown as one."""
    alerts = {alert.text for alert in job.alerts}
    for partition in job.partitions:
        verdict, reason = partition.judgement.verdict, partition.judgement.reason
        text = f"{partition.partition}: {reason}"
        if verdict is not Verdict.OK and not {reason, text} & alerts:
            yield Text.assemble((verdict.value, _style(verdict)), f" {text}")


def _style(verdict: Verdict) -> str:
    return STYLES.get(verdict, "red")


def sparkline(numbers: Sequence[int]) -> str:
    """A character per number, as high as its share of the greatest."""
    most = max(numbers, default=0)
    return "".join(SPARKS[(len(SPARKS) - 1) * number // most] if most else SPARKS[0] for number in numbers)


def _partitions(job: JobStatus, verbose: bool, width: int) -> Iterator[Table]:
    """One table, or several below each other if the columns are wider than the screen."""
    rows = [_cells(partition, reachable=job.log_error is None) for partition in job.partitions]
    shown = [heading for heading in (rows[0] if rows else ()) if verbose or heading in HEADINGS]
    widths = {heading: max(len(heading), *(len(row[heading]) for row in rows)) + GUTTER for heading in shown}
    while shown:
        count = next((n for n in range(len(shown), 2, -1) if sum(widths[name] for name in shown[:n]) <= width), 2)
        headings = shown[:count]
        yield table(headings, [[_coloured(heading, row[heading]) for heading in headings] for row in rows])
        shown = [*shown[:1], *shown[count:]] if shown[count:] else []


def _coloured(heading: str, content: str) -> str | Text:
    return Text(content, _style(Verdict(content))) if heading == "verdict" else content


def _cells(partition: PartitionStatus, reachable: bool) -> dict[str, str]:
    """A row of the table of partitions: heading to cell."""
    totals = partition.totals
    none = "-" if reachable else UNKNOWN
    cells = {
        "partition": str(partition.partition),
        "verdict": partition.judgement.verdict.value,
        "position": cell(partition.position, none),
        "end": cell(partition.end, none),
        "lag": cell(partition.lag_records, none),
        "age": none if partition.lag_seconds is None else duration(partition.lag_seconds),
        "retention": none if partition.retention_share is None else f"{partition.retention_share:.0%}",
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
