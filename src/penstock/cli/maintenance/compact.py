"""`penstock compact`: merge the small files of a job's table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.maintenance.opening import environment, tell
from penstock.job.sections.quantities import QuantityError, parse_size
from penstock.lake.maintenance.compaction import Progress
from penstock.tables.kind import CompactWish
from penstock.tables.registry import kind_of, load_job


def compact(
    job: Annotated[Path, typer.Argument(help="Job file.", show_default=False)],
    target_size: Annotated[
        str | None,
        typer.Option(
            "--target-size",
            help="Merge files below this size, such as 128MiB; default: the job's min_bytes_per_file or, of an export, "
            "its compact_size.",
            show_default=False,
        ),
    ] = None,
    all_days: Annotated[
        bool, typer.Option("--all-days", help="For exports: also days that are not complete, except the latest.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Merge small files; rows and positions do not change, and the job may be running."""
    spec = load_job(job)
    wish = CompactWish(None if target_size is None else _size(target_size), all_days)
    report = kind_of(spec).compact(spec, wish, environment(), _progress(json))
    tell(spec.name, report, json)


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except QuantityError as error:
        raise typer.BadParameter(str(error), param_hint="--target-size") from error
    if size <= 0:
        raise typer.BadParameter("must be more than 0", param_hint="--target-size")
    return size


def _progress(json: bool) -> Progress | None:
    if json or not sys.stderr.isatty():
        return None
    return lambda done, total: typer.echo(f"{done} of {total} groups", err=True)
