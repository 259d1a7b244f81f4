"""What cannot be right in an export: what it needs, what contradicts it, and its route."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath, shown
from penstock.job.sections.kind_section import Reading
from penstock.job.spec import DecodeSpec, Delivery, RouteSpec, Secret, UnknownTypePolicy
from penstock.tables.export.section.columns import Schemas
from penstock.tables.export.section.models import ExportFile, ExportTableSection, RouteBy, RouteSection, TypeSection
from penstock.tables.export.section.types import name_findings, value_findings
from penstock.tables.export.spec import ExportSpec

AT: KeyPath = ("table", ExportSpec.kind)
CLUSTER_CHARACTERS_MAX = 64
NAME_CHARACTERS_MAX = 180
"""Of cluster and topic together: a file name has 255 bytes, of which partition, offset and our own marks need some."""
RESERVED_NAMES = ("names", "topics")
"""Folders of `_penstock/` beside those of the jobs."""

_CLUSTER = re.compile(r"[A-Za-z0-9_-]+")


def export_findings(reading: Reading[ExportFile, ExportTableSection], schemas: Schemas) -> Iterator[Finding]:
    """Everything that contradicts, apart from the types' own fields, columns and times."""
    file, document = reading.file, reading.document
    yield from _need_findings(file, document)
    yield from _contradiction_findings(file, document)
    yield from _route_findings(file, document, reading.decode, schemas)
    if reading.section is not None:
        yield from _file_name_findings(reading.section, file)
    for name, section in (file.types or {}).items():
        yield from _rotation_findings(name, section, document)


def _need_findings(file: ExportFile, document: Document) -> Iterator[Finding]:
    for name, reason in (("route", "it tells the type of a record"), ("types", "each is a folder of its own")):
        if not document.has(name):
            yield Finding((name,), f"required key is missing: table.export needs it, {reason}")
    if file.job in RESERVED_NAMES and document.has(*AT):
        hint = "it is a folder below _penstock/ that all jobs of the root share: choose another name"
        yield Finding(("job",), f"an export cannot be called {shown(file.job)}", hint)
    if file.types == {} and not any(key[0] == "types" and len(key) > 1 for key in document.key_places):
        yield Finding(("types",), "names no type")


def _contradiction_findings(file: ExportFile, document: Document) -> Iterator[Finding]:
    for name, reason, hint in (
        ("schema", ": each type has its own", "move it to types"),
        ("sql", ", which writes every type in one pass", "remove it; computed columns work"),
        ("drop", ": each type keeps its fields", "remove it"),
    ):
        if document.has(name):
            yield Finding((name,), f"contradicts table.export{reason}", hint, on_key=True)
    if file.decode is not None and file.decode.format == "protobuf" and document.has("decode", "message"):
        yield Finding(("decode", "message"), "each type has its own", "move it to types", on_key=True)
    if file.delivery is Delivery.AT_MOST_ONCE:
        yield Finding(("delivery",), "at_most_once is not for table.export: it reads a failed type again", "remove it")


def _rotation_findings(name: str, section: TypeSection, document: Document) -> Iterator[Finding]:
    at: KeyPath = ("types", name, "rotation")
    if section.rotation is not None and not any(document.has(*at, key) for key in ("events", "every", "size")):
        yield Finding(at, "needs events, every or size", "remove it to write with the job's own flush")


def _route_findings(
    file: ExportFile, document: Document, decode: DecodeSpec | None, schemas: Schemas
) -> Iterator[Finding]:
    route, types = file.route or RouteSection(), file.types or {}
    yield from name_findings(types, _unknown_folder(route, document))
    by_marker = (
        route.by is not None and route.by.way == "envelope" and decode is not None and decode.format == "garmadon"
    )
    yield from value_findings(types, document, by_marker=by_marker)
    lost = route.unknown is None and document.has("route", "unknown")
    if document.has("route", "unknown_type") and route.unknown is not UnknownTypePolicy.TABLE and not lost:
        at: KeyPath = ("route", "unknown_type")
        yield Finding(at, "has no meaning without unknown: table", "remove it", on_key=True)
    if route.by is not None:
        yield from _way_findings(route.by, decode)
        if route.by.way == "field":
            yield from _route_field_findings(route.by, schemas)


def _unknown_folder(route: RouteSection, document: Document) -> str | None:
    """The folder of unknown types: stated, or the default of the spec where there is one."""
    if route.unknown is not UnknownTypePolicy.TABLE or document.has("route", "unknown_type"):
        return route.unknown_type
    return RouteSpec("key").unknown_type


def _way_findings(by: RouteBy, decode: DecodeSpec | None) -> Iterator[Finding]:
    wanted = {"field": "json", "envelope": "garmadon"}.get(by.way)
    if wanted is not None and decode is not None and decode.format != wanted:
        hint = "route by header or key" if decode.format != "garmadon" else "route by envelope"
        yield Finding(("route", "by"), f"{by.way} needs decode {wanted}, not {decode.format}", hint)


def _route_field_findings(by: RouteBy, schemas: Schemas) -> Iterator[Finding]:
    """A type may leave the field out of its schema; where it has it, it must be able to hold a route value."""
    for name, schema in schemas.items():
        fault = _route_field_fault(by.path, schema) if schema is not None else None
        if fault is not None:
            hidden = any(isinstance(part, Secret) for part in by.path)
            yield Finding(("types", name, "schema"), "route.by cannot read its field of it" if hidden else fault)


def _route_field_fault(path: tuple[str, ...], schema: pa.Schema) -> str | None:
    inside: pa.DataType = pa.struct(list(schema))
    for depth, name in enumerate(path):
        if pa.types.is_null(inside):
            return None
        if not pa.types.is_struct(inside):
            return f"{'.'.join(path[:depth])} is no struct, but route.by reads {name} in it"
        index = inside.get_field_index(name)
        if index < 0:
            return None
        inside = inside.field(index).type
    if pa.types.is_string(inside) or pa.types.is_integer(inside) or pa.types.is_null(inside):
        return None
    return f"route.by reads {'.'.join(path)}, which is neither text nor a whole number but {inside}"


def _file_name_findings(export: ExportTableSection, file: ExportFile) -> Iterator[Finding]:
    cluster = export.cluster
    if cluster is not None and not _CLUSTER.fullmatch(cluster):
        yield Finding((*AT, "cluster"), f"{shown(cluster)} cannot stand in a file name", "letters, digits, _ -")
    elif cluster is not None and len(cluster) > CLUSTER_CHARACTERS_MAX:
        yield Finding((*AT, "cluster"), f"longer than {CLUSTER_CHARACTERS_MAX} characters")
    long = f"cluster and topic together have more than {NAME_CHARACTERS_MAX} characters: no file name holds them"
    for log, section in file.logs.items():
        for index, topic in enumerate(section.topics or ()):
            if len(cluster or "") + len(topic) > NAME_CHARACTERS_MAX:
                yield Finding(("log", log, "topics", index), long)
