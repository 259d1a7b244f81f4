"""An export read part by part, and the `ExportSpec` that is built from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.job.document import Document
from penstock.job.export.checks import export_findings
from penstock.job.export.columns import Schemas, read_event_times, read_export_columns
from penstock.job.export.models import ExportSection, RotationSection, TypeSection
from penstock.job.export.types import read_type_schemas, route_values
from penstock.job.expressions import Expression
from penstock.job.faults import Finding
from penstock.job.models import JobFile
from penstock.job.section import stated
from penstock.job.spec import AlertLimits, DaysSpec, DecodeSpec, ExportSpec, Rotation, RouteSpec, TableSpec, TypeSpec


@dataclass(frozen=True, slots=True)
class ExportParts:
    """What was read from the texts inside the file."""

    schemas: Schemas
    event_times: Mapping[str, Expression]
    columns: dict[str, Expression]


def read_export(
    file: JobFile, document: Document, folder: Path, decode: DecodeSpec | None
) -> tuple[ExportParts, list[Finding]]:
    """The types with their fields and times, the columns of all of them, and everything that is wrong."""
    schemas, findings = read_type_schemas(file, document, decode)
    columns, of_columns = read_export_columns(file, schemas)
    times, of_times = read_event_times(file, document, schemas, decode)
    findings += [*of_columns, *of_times, *export_findings(file, document, folder, decode, schemas)]
    return ExportParts(schemas, times, columns), findings


def build_export(file: JobFile, export: ExportSection, parts: ExportParts, place: TableSpec) -> ExportSpec:
    """The export of a file without a fault."""
    return replace(
        ExportSpec(
            place.path,
            place.quarantine_path,
            place.storage_options,
            place.shared,
            route=_route(file),
            types={name: _type(name, section, parts) for name, section in (file.types or {}).items()},
        ),
        days=_days(file),
        alerts=_alerts(file),
        **stated(
            format=export.format,
            cluster=export.cluster,
            retry_seconds=export.retry,
            compression=export.compression,
            compact_bytes=export.compact_size,
        ),
    )


def _route(file: JobFile) -> RouteSpec:
    route = file.route
    # The checks have refused files without these; the type checker has not seen it.
    assert route is not None and route.by is not None
    return replace(
        RouteSpec(route.by.way, route.by.path), **stated(unknown=route.unknown, unknown_type=route.unknown_type)
    )


def _type(name: str, section: TypeSection, parts: ExportParts) -> TypeSpec:
    return TypeSpec(
        name=name,
        values=route_values(name, section),
        schema=parts.schemas[name],
        event_time=parts.event_times[name],
        message=section.message,
        rotation=_rotation(section.rotation) if section.rotation is not None else None,
        start=section.start,
    )


def _rotation(rotation: RotationSection) -> Rotation:
    return replace(Rotation(), **stated(events=rotation.events, seconds=rotation.every, size_bytes=rotation.size))


def _days(file: JobFile) -> DaysSpec:
    days = file.days
    if days is None:
        return DaysSpec()
    return replace(
        DaysSpec(),
        **stated(
            not_before=days.not_before,
            late_seconds_max=days.late,
            early_seconds_max=days.early,
            outside=days.outside,
            complete_after_seconds=days.complete_after,
            idle_seconds=days.idle,
        ),
    )


def _alerts(file: JobFile) -> AlertLimits:
    alerts = file.alerts
    if alerts is None:
        return AlertLimits()
    return replace(
        AlertLimits(),
        **stated(
            failed_writes_percent_max=alerts.failed_writes_percent,
            lag_records_max=alerts.lag_records,
            discrepancy_records_max=alerts.discrepancy_records,
            retention_percent_max=alerts.retention_percent,
        ),
    )
