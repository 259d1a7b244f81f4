"""`penstock verify --rebuild`: make the lost ledger of a routed job again from its files."""

from __future__ import annotations

import json as json_text
from contextlib import closing
from typing import Any

import typer

from penstock.cli.maintenance.export_table import export_table
from penstock.errors import UserError
from penstock.job.spec import ExportSpec, JobSpec
from penstock.logs.kafka.log import KafkaLog
from penstock.tables.export.rebuild.inputs import Doubt
from penstock.tables.export.rebuild.rebuild import RebuildReport
from penstock.tables.export.rebuild.rebuild import rebuild as rebuild_ledger


def rebuild(job: JobSpec, json: bool) -> bool:
    """Rebuild, and tell what came of it; whether there is a ledger now."""
    if not isinstance(job.table, ExportSpec):
        raise UserError(f"the job {job.name} has no ledger", hint="--rebuild is for jobs with table.export")
    table = export_table(job)
    with closing(KafkaLog(job.log)) as log:
        report = rebuild_ledger(table, log.bounds(log.partitions()))
    if json:
        typer.echo(json_text.dumps({"job": job.name, **_record(report)}))
    else:
        _print(report)
    return report.ok


def _record(report: RebuildReport) -> dict[str, Any]:
    partitions = report.state.partitions if report.state is not None else {}
    return {
        "ok": report.ok,
        "entry": report.number,
        "files": report.files,
        "rows": report.rows,
        "partitions": [
            {
                "topic": each.topic,
                "topic_id": each.topic_id,
                "partition": each.number,
                "origin": here.origin,
                "position": here.position,
                "read_again": {name: lane.position for name, lane in sorted(here.lanes.items())},
            }
            for each, here in partitions.items()
        ],
        "doubts": [
            {
                "partition": each.partition or None,
                "offsets": each.offsets,
                "files": list(each.files),
                "reason": each.reason,
            }
            for each in report.doubts
        ],
        "warnings": list(report.warnings),
    }


def _print(report: RebuildReport) -> None:
    if report.state is not None:
        for each, here in report.state.partitions.items():
            typer.echo(f"{each}: from {here.origin} to {here.position}")
            for name, lane in sorted(here.lanes.items()):
                typer.echo(f"  {name} is read again from {lane.position}")
        typer.echo(f"rebuilt as entry {report.number} from {report.files} files with {report.rows} rows")
    for warning in report.warnings:
        typer.echo(f"warning: {warning}")
    for doubt in report.doubts:
        typer.echo(_sentence(doubt))
    if report.doubts:
        typer.echo("nothing was written")


def _sentence(doubt: Doubt) -> str:
    place = doubt.partition
    if doubt.offsets is not None:
        place += f" offsets {doubt.offsets[0]} to {doubt.offsets[1] - 1}"
    words = [part for part in (place, ", ".join(doubt.files), doubt.reason) if part]
    return f"doubt: {': '.join(words)}"
