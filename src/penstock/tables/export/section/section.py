"""Everything that a job file states about an export: read part by part, and built into an `ExportSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.job.expressions import Expression
from penstock.job.faults import Finding
from penstock.job.sections.kind_section import KindSection, Parts, Reading
from penstock.job.sections.section import filled, stated
from penstock.job.spec import DaysSpec, JobSpec, TableSpec
from penstock.tables.export.section.checks import AT, export_findings, read_type_schemas, route_values
from penstock.tables.export.section.columns import Schemas, read_event_times, read_export_columns
from penstock.tables.export.section.models import AlertsSection, ExportFile, ExportTableSection, TypeSection
from penstock.tables.export.spec import AlertLimits, ExportSpec, Rotation, TypeSpec


@dataclass(frozen=True, slots=True)
class ExportParts(Parts):
    schemas: Schemas
    event_times: Mapping[str, Expression]


ExportReading = Reading[ExportFile, ExportTableSection]


class ExportSection(KindSection[ExportFile, ExportTableSection, ExportParts]):
    name = ExportSpec.kind
    phrase = "one for each event type"
    table = ExportTableSection
    file = ExportFile
    signs = ("route", "types")
    has_place = True
    many_types = "write them with table.export and route"

    def read(self, reading: ExportReading) -> tuple[ExportParts, list[Finding]]:
        file, document, decode = reading.file, reading.document, reading.decode
        schemas, findings = read_type_schemas(file, document, decode)
        columns, of_columns = read_export_columns(file, document, schemas)
        times, of_times = read_event_times(file, document, schemas, decode)
        findings += [*of_columns, *of_times, *export_findings(reading, schemas)]
        return ExportParts(pa.schema([]), columns, schemas, times), findings

    def build(self, reading: ExportReading, parts: ExportParts, place: TableSpec) -> ExportSpec:
        file, section, route = reading.file, reading.section, reading.file.route
        # The checks have refused files without these; the type checker has not seen it.
        assert section is not None and route is not None and route.by is not None
        return replace(
            ExportSpec(
                place.path,
                place.storage_options,
                place.shared,
                route=filled(route.by, route, by=None),
                types={name: _type(name, each, parts) for name, each in (file.types or {}).items()},
            ),
            days=filled(
                DaysSpec(),
                file.days,
                late="late_seconds_max",
                early="early_seconds_max",
                complete_after="complete_after_seconds",
                idle="idle_seconds",
            ),
            alerts=filled(AlertLimits(), file.alerts, **{name: f"{name}_max" for name in AlertsSection.model_fields}),
            **stated(
                format=section.format,
                cluster=section.cluster,
                retry_seconds=section.retry,
                compression=section.compression,
                compact_bytes=section.compact_size,
            ),
        )

    def clash(self, job: JobSpec, other: JobSpec, other_path: Path) -> Finding | None:
        if _lies_in(job, other) or _lies_in(other, job):
            message = f"a table of this job and one in {other_path} lie one inside the other: readers would see both"
            return Finding(("table",), message, "put them side by side")
        if job.table.path != other.table.path:
            return None
        if not isinstance(job.table, ExportSpec) or not isinstance(other.table, ExportSpec):
            message = f"the table in {other_path} lies in the same folder, and one of both is an export"
            return Finding(("table",), message, "give each a folder of its own")
        if job.table.cluster == other.table.cluster and not set(job.log.topics).isdisjoint(other.log.topics):
            message = f"the same root as in {other_path}, under the same file names"
            return Finding(AT, message, "give each cluster a name, or each job its own root")
        return None


def _lies_in(job: JobSpec, other: JobSpec) -> bool:
    """Whether the table of the job is below that of the other; an export's root holds many."""
    return job.table.path.startswith(f"{other.table.path}/")


def _type(name: str, section: TypeSection, parts: ExportParts) -> TypeSpec:
    return TypeSpec(
        name=name,
        values=route_values(name, section),
        schema=parts.schemas[name],
        event_time=parts.event_times[name],
        message=section.message,
        rotation=filled(Rotation(), section.rotation, every="seconds", size="size_bytes") if section.rotation else None,
    )
