"""`penstock verify`: prove that a table and its log agree."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from penstock.cli.rebuild import rebuild as rebuild_ledger
from penstock.job.loader import load_job
from penstock.verify import Check, VerifyReport
from penstock.verify import verify as verify_job

EXIT_FAILED = 1
PROGRESS_STEPS = 20


def verify(
    job: Annotated[Path, typer.Argument(help="Job file.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    shallow: Annotated[bool, typer.Option("--shallow", help="Do not read the records of the log.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Of an export: make a lost ledger again from the files, if they prove it.")
    ] = False,
) -> None:
    """Reconcile log and table: contiguous, unique, conserved. Exits with 1 if a check fails."""
    spec = load_job(job)
    if rebuild:
        if not rebuild_ledger(spec, json):
            raise typer.Exit(EXIT_FAILED)
        return
    progress = _Progress() if not json and sys.stderr.isatty() else None
    report = verify_job(spec, deep=not shallow, progress=progress)
    if json:
        typer.echo(json_text.dumps(report.as_json()))
    else:
        print_report(report, Console(soft_wrap=True, highlight=False))
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


def print_report(report: VerifyReport, console: Console) -> None:
    """One line per check, then the first offending offset and the verdict."""
    version = "no table yet" if report.version is None else f"version {report.version}"
    console.print(Text.assemble((report.job, "bold"), f"  {report.table}  {version}"))
    for check in report.checks:
        console.print(_line(check))
        for warning in check.warnings:
            console.print(Text(f"    ! {warning}", style="yellow"))
    if report.first_offence is not None:
        console.print(Text(f"first offending offset: {report.first_offence}", style="bold red"))
    console.print(Text("ok", style="bold green") if report.ok else Text("failed", style="bold red"))


def _line(check: Check) -> Text:
    if not check.ok:
        mark = ("✗", "bold red")
    elif check.checked:
        mark = ("✓", "green")
    else:
        mark = ("-", "dim")
    return Text.assemble("  ", mark, f" {check.name:<8} {check.detail}")


class _Progress:
    """Says a line at every twentieth of the work."""

    def __init__(self) -> None:
        self._told = -1

    def __call__(self, step: str, done: int, total: int) -> None:
        part = done * PROGRESS_STEPS // max(1, total)
        if part != self._told:
            self._told = part
            typer.echo(f"{step}: {done} of {total}", err=True)
