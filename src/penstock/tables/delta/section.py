"""The section `table.delta` of a job file: partition columns and properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.job.checks.columns import Output
from penstock.job.checks.single_table import read_single_table
from penstock.job.faults import Finding, KeyPath, nearest, shown
from penstock.job.sections.kind_section import KindSection, Parts, Reading
from penstock.job.sections.models import JobFile, TableSection
from penstock.job.sections.scalars import Settings, Texts
from penstock.job.spec import Secret, TableSpec
from penstock.lake.delta.schema import DAY_SECONDS, TablePlace, interval_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec(TablePlace):
    kind = "delta"


AT: KeyPath = ("table", DeltaSpec.kind)


class DeltaTableSection(TableSection):
    partition_by: Texts = None
    properties: Settings = None


class DeltaSection(KindSection[JobFile, DeltaTableSection, Parts]):
    name = DeltaSpec.kind
    phrase = "one table"
    table = DeltaTableSection
    file = JobFile
    has_place = True

    def read(self, reading: Reading[JobFile, DeltaTableSection]) -> tuple[Parts, list[Finding]]:
        parts, output, findings = read_single_table(reading, has_place=self.has_place)
        if reading.section is not None:
            findings += _partition_findings(reading.section.partition_by or [], output)
            findings += _property_findings(reading.section.properties or {})
        return parts, findings

    def build(self, reading: Reading[JobFile, DeltaTableSection], parts: Parts, place: TableSpec) -> DeltaSpec:
        assert reading.section is not None
        return DeltaSpec(
            place.path,
            place.storage_options,
            place.shared,
            partition_by=tuple(reading.section.partition_by or ()),
            properties=dict(reading.section.properties or {}),
        )


def _partition_findings(partition_by: list[str], output: Output | None) -> Iterator[Finding]:
    for index, name in enumerate(partition_by):
        at: KeyPath = (*AT, "partition_by", index)
        if name.casefold() in {other.casefold() for other in partition_by[:index]}:
            yield Finding(at, f"{shown(name)} is named twice")
        elif output is not None:
            yield from _partition_column_findings(name, output, at)
    named = {name.casefold() for name in partition_by}
    if output is not None and output.complete and named and named >= {name.casefold() for name in output.types}:
        yield Finding((*AT, "partition_by"), "every column is a partition column: the files would be empty")


def _partition_column_findings(name: str, output: Output, at: KeyPath) -> Iterator[Finding]:
    if name not in output.types:
        if output.complete:
            hint = "" if isinstance(name, Secret) else nearest(name, output.types)
            hint = hint or f"columns: {', '.join(map(_open, list(output.types)[:20]))}"
            yield Finding(at, f"the table has no column {shown(name)}", hint)
        return
    kind = output.types[name]
    if kind is not None and (pa.types.is_nested(kind) or pa.types.is_binary(kind)):
        yield Finding(at, f"{shown(name)} cannot partition a table: it is a {_word(kind)}", "use a primitive column")


def _open(name: str) -> str:
    return shown(name) if isinstance(name, Secret) else name


def _word(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_map(kind):
        return "map"
    return "list" if pa.types.is_list(kind) else "binary"


def _property_findings(properties: Mapping[str, str]) -> Iterator[Finding]:
    for name, value in properties.items():
        at: KeyPath = (*AT, "properties", name)
        match name.casefold():
            case "delta.settransactionretentionduration":
                yield Finding(at, "cannot be set: it would let the table forget its positions", on_key=True)
            case "delta.logretentionduration":
                yield from _retention_findings(value, at)
            case "delta.columnmapping.mode" if value.casefold() != "none":
                yield Finding(at, "column mapping is not written by Penstock", "remove it, or set it to none")


def _retention_findings(value: str, at: KeyPath) -> Iterator[Finding]:
    seconds = interval_seconds(value)
    if seconds is None:
        yield Finding(at, f"{shown(value)} is no Delta interval", "write interval 30 days")
    elif seconds < DAY_SECONDS:
        yield Finding(at, "under a day: commits could no longer be read back", "write interval 1 day or more")
