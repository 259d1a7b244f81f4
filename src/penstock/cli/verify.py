"""`penstock verify`: prove that a table and its log agree."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from penstock.cli.maintenance import Job
from penstock.cli.tables import Json
from penstock.errors import UserError
from penstock.proof.subject import Progress
from penstock.tables.registry import load_job
from penstock.watch.verify import Sample, Verdict, VerifyReport
from penstock.watch.verify import verify as verify_job

EXIT_CODES = {Verdict.PROVEN: 0, Verdict.VIOLATED: 1, Verdict.NOT_PROVEN: 3}
STYLES = {Verdict.PROVEN: "bold green", Verdict.VIOLATED: "bold red", Verdict.NOT_PROVEN: "bold yellow"}
MARKS = {Verdict.PROVEN: "✓", Verdict.VIOLATED: "✗", Verdict.NOT_PROVEN: "?"}
VERDICT_TEXTS = {Verdict.PROVEN: "ok", Verdict.VIOLATED: "failed", Verdict.NOT_PROVEN: "not proven"}


def verify(
    job: Job,
    json: Json = False,
    shallow: Annotated[bool, typer.Option("--shallow", help="Do not read the records of the log.")] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Also compare the values of a sample of records with the log.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="With --values: compare every record that the log still has.")
    ] = False,
    seed: Annotated[int, typer.Option(help="With --values: the seed of the sample.")] = 0,
    published: Annotated[
        bool, typer.Option("--published", help="Also compare the rows with the topic of `publish`.")
    ] = False,
    progress: Annotated[bool, typer.Option("--progress", help="With --json: show progress as JSON on stderr.")] = False,
) -> None:
    """Compare log and table: prove that every record is there once.

    Exit code 0: everything was checked and holds. 1: an invariant is violated. 3: something could not be checked; the
    report states what, and how to prove it.
    """
    if every and not values:
        raise UserError("--all needs --values", hint="add --values")
    spec = load_job(job)
    sample = (Sample(None, seed) if every else Sample(seed=seed)) if values else None
    with _shown_progress(json, progress) as shown:
        report = verify_job(spec, deep=not shallow, progress=shown, values=sample, published=published)
    if json:
        typer.echo(json_text.dumps(report.as_json()))
    else:
        print_report(report, Console(soft_wrap=True, highlight=False))
    if not report.ok:
        raise typer.Exit(EXIT_CODES[report.verdict])


def print_report(report: VerifyReport, console: Console) -> None:
    """One line per check with what it leaves open, the first violation, and the verdict."""
    version = "no table yet" if report.version is None else f"version {report.version}"
    console.print(Text.assemble((report.job, "bold"), f"  {report.table}  {version}"))
    width = max((len(check.name) for check in report.checks), default=0)
    for check in report.checks:
        mark = (MARKS[check.verdict], STYLES[check.verdict])
        console.print(Text.assemble("  ", mark, f" {check.name:<{width}}  {check.detail}"))
        for unproven in check.unproven:
            console.print(Text(f"    ? {unproven.what}", style="yellow"))
            console.print(Text(f"      to prove it: {unproven.remedy}", style="dim"))
        for warning in check.warnings:
            console.print(Text(f"    ! {warning}", style="yellow"))
    if report.first_violation is not None:
        console.print(Text(f"first violation: {report.first_violation}", style="bold red"))
    console.print(Text(VERDICT_TEXTS[report.verdict], style=STYLES[report.verdict]))


@contextmanager
def _shown_progress(json: bool, lines: bool) -> Iterator[Progress | None]:
    """A bar on a terminal, which is gone at the end; for a program, a line for each change."""
    console = Console(stderr=True)
    if json and lines:
        yield _progress_lines
        return
    if json or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda step, done, total: bar.update(task, description=step, completed=done, total=total)


def _progress_lines(step: str, done: int, total: int) -> None:
    print(json_text.dumps({"step": step, "done": done, "total": total}), file=sys.stderr, flush=True)
