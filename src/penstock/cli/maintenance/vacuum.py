"""`penstock vacuum`: delete the files that no commit of a job's tables names or can name."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.maintenance.opening import environment
from penstock.job.loader import load_job
from penstock.lake.delta.vacuum import VacuumReport
from penstock.tables.kind import VacuumWish
from penstock.tables.registry import kind_of


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
    if json:
        typer.echo(json_text.dumps({"job": spec.name, **_record(report)}))
    else:
        _print(report)


def _record(report: VacuumReport) -> dict[str, object]:
    return {
        "dry_run": report.dry_run,
        "deleted": [
            {"table": each.table_url, "path": each.path, "size_bytes": each.size_bytes, "reason": each.reason}
            for each in report.deleted
        ],
        "size_bytes": sum(each.size_bytes for each in report.deleted),
        "kept": dict(report.kept),
        "dropped": [{"type": each.type, "path": each.target, "rows": each.rows} for each in report.dropped],
    }


def _print(report: VacuumReport) -> None:
    for dropped in report.dropped:
        typer.echo(
            f"{dropped.target}: its staged file is gone, {dropped.rows} rows of type {dropped.type} are given up"
        )
    for each in report.deleted:
        typer.echo(f"{each.table_url}/{each.path}: {each.reason}")
    size_bytes = sum(each.size_bytes for each in report.deleted)
    word = "would go" if report.dry_run else "deleted"
    typer.echo(f"{len(report.deleted)} files {word}, {size_bytes} bytes")
    for reason, count in sorted(report.kept.items()):
        typer.echo(f"{count} kept: {reason}")
