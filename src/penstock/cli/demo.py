"""`penstock demo`: a run with a kill, and the proof that every record is there once."""

from __future__ import annotations

import json as json_text
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.cli.verify import print_report
from penstock.embedded.demo import DemoReport, run_demo

EXIT_FAILED = 1


def demo(
    folder: Annotated[Path | None, typer.Option(help="Where to put the broker, the job files and the tables.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Kill a job in mid-batch, restart it, and prove that every record is there once; uses its own broker."""
    # Paths in a job file start in its folder.
    place = (folder or Path(tempfile.mkdtemp(prefix="penstock-demo-"))).absolute()
    place.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    is_watched = sys.stdin.isatty() and sys.stdout.isatty() and not json and find_spec("starlette") is not None
    reports = []

    def finish(report: DemoReport, url: str) -> None:
        reports.append(report)
        if json:
            print(json_text.dumps(report.as_json()))
        else:
            _print(report, place, Console(file=sys.stdout, highlight=False, soft_wrap=True))
        if url:
            console.input(f"\nThe console shows both jobs at [bold]{url}[/bold]\nPress Enter to end: ")

    run_demo(place, lambda text: console.print(f"[bold]·[/bold] {text}"), finish, is_watched)
    if not all(report.ok for report in reports):
        raise typer.Exit(EXIT_FAILED)


def _print(report: DemoReport, place: Path, console: Console) -> None:
    good = report.produced - report.bad
    console.print()
    console.print(f"{report.produced:>9,} records in the topic: {good:,} good, {report.bad:,} bad")
    console.print(f"{report.rows_before_kill:>9,} rows committed when the process was killed")
    console.print(f"{report.killed_with_staged_files:>9,} files staged by the killed process, never visible")
    console.print(f"{report.rows_polars:>9,} rows read by Polars after the restart")
    console.print(f"{report.rows_spark:>9,} rows read by Spark")
    for day, rows in report.rows_by_day.items():
        console.print(f"{rows:>9,}   on {day}")
    console.print(f"{report.quarantined:>9,} records in quarantine")
    console.print(f"\n{report.points:>9,} points in the topic of metrics")
    for interval, windows in report.windows.items():
        console.print(f"{windows:>9,} closed windows of {interval}, with {report.points_in_windows[interval]:,} points")
    console.print(f"          such as {report.example}")
    for verified in report.verified:
        console.print()
        print_report(verified, console)
    verdict = "every record once" if report.ok else "NOT every record once"
    console.print(f"\n[bold]{verdict}[/bold], in {report.seconds} s. Job files and tables: {place}")
