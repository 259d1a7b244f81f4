"""`penstock vacuum`: delete the files that no commit of a job's tables names or can name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.maintenance.opening import environment, tell
from penstock.tables.kind import VacuumWish
from penstock.tables.registry import kind_of, load_job


def vacuum(
    job: Annotated[Path, typer.Argument(help="Job file.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")] = False,
    drop_lost: Annotated[
        bool,
        typer.Option(
            "--drop-lost",
            help="For exports: also give up staged files that are gone before they were renamed; their rows count "
            "as vanished, and the type continues.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Delete unreferenced files of the table and its quarantine; the job may be running."""
    spec = load_job(job)
    report = kind_of(spec).vacuum(spec, VacuumWish(dry_run, drop_lost), environment())
    tell(spec.name, report, json)
