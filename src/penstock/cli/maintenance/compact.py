"""`penstock compact`: merge the small files of a job's table, or of the closed days of a routed job."""

from __future__ import annotations

import json as json_text
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.maintenance.export_table import existing_export
from penstock.cli.maintenance.opening import environment, existing_table
from penstock.job.loader import load_job
from penstock.job.quantities import QuantityError, parse_size
from penstock.job.spec import ExportSpec, job_of
from penstock.lake.delta.compact import CompactReport, Progress
from penstock.lake.delta.compact import compact as compact_table
from penstock.tables.export.compact import CompactReport as ExportCompactReport
from penstock.tables.export.compact import compact as compact_export
from penstock.tables.export.delta_types import type_tables


def compact(
    job: Annotated[Path, typer.Argument(help="Job file.", show_default=False)],
    target_size: Annotated[
        str | None,
        typer.Option(
            "--target-size",
            help="Merge files below this size, as 128MiB; unless given, the job's min_bytes_per_file or, of an export, "
            "its compact_size.",
            show_default=False,
        ),
    ] = None,
    all_days: Annotated[
        bool, typer.Option("--all-days", help="Of an export: also days that are not complete, but the newest.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Merge small files; rows and positions stay, and the job may run meanwhile."""
    spec = load_job(job)
    wanted = None if target_size is None else _size(target_size)
    report: CompactReport
    if isinstance(spec.table, ExportSpec) and spec.table.format == "delta":
        tables = type_tables(job_of(spec, ExportSpec), environment())
        size = wanted or spec.table.compact_bytes
        report = sum((compact_table(each, size, _progress(json, "groups")) for each in tables), CompactReport())
    elif isinstance(spec.table, ExportSpec):
        report = compact_export(existing_export(spec), wanted, all_days=all_days, progress=_progress(json, "days"))
    elif all_days:
        raise typer.BadParameter("the job is no export", param_hint="--all-days")
    else:
        table = existing_table(spec.table, spec.name, environment())
        report = compact_table(table, wanted or spec.flush.min_bytes_per_file, _progress(json, "groups"))
    typer.echo(json_text.dumps({"job": spec.name, **asdict(report)}) if json else _sentence(report))


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except QuantityError as error:
        raise typer.BadParameter(str(error), param_hint="--target-size") from error
    if size <= 0:
        raise typer.BadParameter("must be more than 0", param_hint="--target-size")
    return size


def _progress(json: bool, unit: str) -> Progress | None:
    if json or not sys.stderr.isatty():
        return None
    return lambda done, total: typer.echo(f"{done} of {total} {unit}", err=True)


def _sentence(report: CompactReport) -> str:
    if not report.files_removed:
        told = "nothing to compact"
    else:
        told = (
            f"{report.files_removed} files became {report.files_added}, {report.rows} rows, "
            f"{report.size_bytes_before} bytes became {report.size_bytes_after}"
        )
    if report.dropped:
        told += f"; {report.dropped} groups left to another writer"
    if isinstance(report, ExportCompactReport):
        if report.waiting:
            told += f"; {report.waiting} files wait until their staged sources are gone"
        if report.unfinished:
            told += f"; {report.unfinished} new files are not in their place yet: run it again"
    return told
