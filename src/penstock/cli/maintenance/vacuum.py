"""`penstock vacuum`: delete the files that no commit of a job's tables names or can name."""

from __future__ import annotations

import json as json_text
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.maintenance.export_table import existing_export, existing_types
from penstock.cli.maintenance.opening import environment, existing_table
from penstock.job.loader import load_job
from penstock.job.spec import ExportSpec, JobSpec, job_of
from penstock.lake.delta.vacuum import VacuumReport
from penstock.lake.delta.vacuum import vacuum as vacuum_tables
from penstock.tables.export.delta_types import type_tables
from penstock.tables.export.files.lost_files import drop_lost_files
from penstock.tables.export.vacuum import vacuum as vacuum_export
from penstock.tables.quarantine.table import open_quarantine


def vacuum(
    job: Annotated[Path, typer.Argument(help="Job file.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; delete nothing.")] = False,
    drop_lost: Annotated[
        bool,
        typer.Option(
            "--drop-lost",
            help="Of an export: also give up files that were to be moved to their place and are gone; their rows count "
            "as vanished, and the type goes on.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Delete dead files of the table and its quarantine; the job may run meanwhile."""
    spec = load_job(job)
    if drop_lost and not isinstance(spec.table, ExportSpec):
        raise typer.BadParameter("the job is no export", param_hint="--drop-lost")
    dropped = drop_lost_files(existing_types(spec), dry_run=dry_run) if drop_lost else ()
    if not isinstance(spec.table, ExportSpec):
        report = _of_table(spec, dry_run)
    elif spec.table.format == "delta":
        report = _of_types(job_of(spec, ExportSpec), dry_run)
    else:
        report = vacuum_export(existing_export(spec), dry_run=dry_run)
    if json:
        lost = [{"type": each.type, "path": each.target, "rows": each.rows} for each in dropped]
        typer.echo(json_text.dumps({"job": spec.name, **_record(report), "dropped": lost}))
    else:
        for each in dropped:
            typer.echo(f"{each.target}: its staged file is gone, {each.rows} rows of type {each.type} are given up")
        _print(report)


def _of_table(spec: JobSpec, dry_run: bool) -> VacuumReport:
    around = environment()
    table = existing_table(spec.table, spec.name, around)
    return vacuum_tables(table, open_quarantine(spec, around), dry_run=dry_run)


def _of_types(spec: JobSpec[ExportSpec], dry_run: bool) -> VacuumReport:
    """The tables of all types; what is left over in the quarantine's folder stays."""
    reports = [vacuum_tables(each, dry_run=dry_run) for each in type_tables(spec, environment())]
    kept = sum((Counter(each.kept) for each in reports), Counter[str]())
    return VacuumReport(tuple(dead for each in reports for dead in each.deleted), kept, dry_run)


def _record(report: VacuumReport) -> dict[str, object]:
    return {
        "dry_run": report.dry_run,
        "deleted": [
            {"table": each.table_url, "path": each.path, "size_bytes": each.size_bytes, "reason": each.reason}
            for each in report.deleted
        ],
        "size_bytes": sum(each.size_bytes for each in report.deleted),
        "kept": dict(report.kept),
    }


def _print(report: VacuumReport) -> None:
    for each in report.deleted:
        typer.echo(f"{each.table_url}/{each.path}: {each.reason}")
    size_bytes = sum(each.size_bytes for each in report.deleted)
    word = "would go" if report.dry_run else "deleted"
    typer.echo(f"{len(report.deleted)} files {word}, {size_bytes} bytes")
    for reason, count in sorted(report.kept.items()):
        typer.echo(f"{count} kept: {reason}")
