"""What cannot be right in an export: what it needs, what contradicts it, its route; and the fields of its types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import assert_never

import pyarrow as pa

from penstock.job.checks.decode import contradiction, try_schema
from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath, kind_of, nearest, shown
from penstock.job.kafka_types import RAW_SCHEMA
from penstock.job.messages import garmadon_schema, message_schema
from penstock.job.schema import parse_schema, type_at
from penstock.job.sections.kind_section import Reading
from penstock.job.spec import DecodeSpec, Delivery, MessageName, RouteSpec, Secret, UnknownTypePolicy
from penstock.tables.export.section.columns import Schemas
from penstock.tables.export.section.models import (
    INFER,
    ExportFile,
    ExportTableSection,
    RouteSection,
    TypeSection,
)
from penstock.tables.export.spec import ExportSpec

AT: KeyPath = ("table", ExportSpec.kind)
CLUSTER_CHARACTERS_MAX = 64
NAME_CHARACTERS_MAX = 180
"""Of cluster and topic together: a file name has 255 bytes, of which partition, offset and our own marks need some."""
RESERVED_NAMES = ("names", "topics")
"""Folders of `_penstock/` beside those of the jobs."""
MARKER_MIN, MARKER_MAX = -(2**31), 2**31 - 1

_CLUSTER = re.compile(r"[A-Za-z0-9_-]+")
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FOLDER_HINT = "letters, digits, . _ - up to 100, beginning with a letter or digit, without .."
_MARKER = re.compile(r"0|-?[1-9][0-9]{0,9}")


def export_findings(reading: Reading[ExportFile, ExportTableSection], schemas: Schemas) -> Iterator[Finding]:
    """Everything that contradicts, apart from the types' own fields, columns and times."""
    file, document = reading.file, reading.document
    yield from _need_findings(file, document)
    yield from _contradiction_findings(file, document)
    yield from _route_findings(file, document, reading.decode, schemas)
    if reading.section is not None:
        yield from _file__name_findings(reading.section, file)
    for name, section in (file.types or {}).items():
        at: KeyPath = ("types", name, "rotation")
        if section.rotation is not None and not any(document.has(*at, key) for key in ("events", "every", "size")):
            yield Finding(at, "needs events, every or size", "remove it to write with the job's own flush")


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


def _route_findings(
    file: ExportFile, document: Document, decode: DecodeSpec | None, schemas: Schemas
) -> Iterator[Finding]:
    route, types = file.route or RouteSection(), file.types or {}
    unknown_type = route.unknown_type
    if route.unknown is UnknownTypePolicy.TABLE and not document.has("route", "unknown_type"):
        unknown_type = RouteSpec("key").unknown_type
    yield from _name_findings(types, unknown_type)
    by_marker = route.by is not None and route.by.by == "envelope"
    yield from _value_findings(
        types, document, by_marker=by_marker and decode is not None and decode.format == "garmadon"
    )
    lost = route.unknown is None and document.has("route", "unknown")
    if document.has("route", "unknown_type") and route.unknown is not UnknownTypePolicy.TABLE and not lost:
        at: KeyPath = ("route", "unknown_type")
        yield Finding(at, "has no meaning without unknown: table", "remove it", on_key=True)
    if route.by is not None:
        wanted = {"field": "json", "envelope": "garmadon"}.get(route.by.by)
        if wanted is not None and decode is not None and decode.format != wanted:
            hint = "route by header or key" if decode.format != "garmadon" else "route by envelope"
            yield Finding(("route", "by"), f"{route.by.by} needs decode {wanted}, not {decode.format}", hint)
        if route.by.by == "field":
            yield from _route_field_findings(route.by.path, schemas)


def _route_field_findings(path: tuple[str, ...], schemas: Schemas) -> Iterator[Finding]:
    """A type may leave the field out of its schema; where it has it, it must be able to hold a route value."""
    for name, schema in schemas.items():
        fault = _route_field_fault(path, schema) if schema is not None else None
        if fault is not None:
            hidden = any(isinstance(part, Secret) for part in path)
            yield Finding(("types", name, "schema"), "route.by cannot read its field of it" if hidden else fault)


def _route_field_fault(path: tuple[str, ...], schema: pa.Schema) -> str | None:
    for depth, name in enumerate(path[1:], 1):
        outer = type_at(schema, path[:depth])
        if outer is not None and not pa.types.is_null(outer) and not pa.types.is_struct(outer):
            return f"{'.'.join(path[:depth])} is no struct, but route.by reads {name} in it"
    kind = type_at(schema, path)
    if kind is None or pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return None
    return f"route.by reads {'.'.join(path)}, which is neither text nor a whole number but {kind}"


def _file__name_findings(export: ExportTableSection, file: ExportFile) -> Iterator[Finding]:
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


# types


def _is_folder(name: str) -> bool:
    """Whether a name stays one folder below the root on every storage, and is none of Penstock's own."""
    return _FOLDER.fullmatch(name) is not None and ".." not in name


def _name_findings(types: Mapping[str, TypeSection], unknown_type: str | None) -> Iterator[Finding]:
    """Names of types and of the table of unknown ones, which are all folders of one root."""
    seen: dict[str, str] = {}
    for name in types:
        at: KeyPath = ("types", name)
        if not _is_folder(name):
            yield Finding(at, "cannot be the name of a folder", _FOLDER_HINT, on_key=True)
        elif name.casefold() in seen:
            message = f"the same name as {seen[name.casefold()]}: some storages do not tell upper from lower case"
            yield Finding(at, message, on_key=True)
        seen.setdefault(name.casefold(), name)
    if unknown_type is not None:
        at = ("route", "unknown_type")
        if not _is_folder(unknown_type):
            yield Finding(at, "cannot be the name of a folder", _FOLDER_HINT)
        elif unknown_type.casefold() in seen:
            yield Finding(at, "is the folder of a type", "choose another name")


def _value_findings(types: Mapping[str, TypeSection], document: Document, *, by_marker: bool) -> Iterator[Finding]:
    """Whether every route value means one type."""
    first_of: dict[str, str] = {}
    for name, section in types.items():
        at: KeyPath = ("types", name, "values")
        if document.has(*at) and section.values is None:
            continue
        for index, value in enumerate(route_values(name, section)):
            by_name = section.values is None
            place: KeyPath = ("types", name) if by_name else (*at, index)
            other = first_of.setdefault(value, name)
            if value in route_values(name, section)[:index]:
                yield Finding(place, f"{shown(value)} is named twice")
            elif other != name:
                yield Finding(place, f"{shown(value)} means type {other} already", on_key=by_name)
            is_marker = _MARKER.fullmatch(value) is not None and MARKER_MIN <= int(value) <= MARKER_MAX
            if by_marker and not is_marker:
                message = f"{shown(value)} is no type marker: an envelope holds a number of 32 bits"
                yield Finding(place, message, "as in values: [1000]", on_key=by_name)


def route_values(name: str, section: TypeSection) -> tuple[str, ...]:
    """The route values of a type: those stated, or its name."""
    return tuple(section.values) if section.values is not None else (name,)


def read_type_schemas(
    file: ExportFile, document: Document, decode: DecodeSpec | None
) -> tuple[dict[str, pa.Schema | None], list[Finding]]:
    """The decoded fields of each type; None where they are inferred later or cannot be told."""
    findings: list[Finding] = []
    if decode is None:
        return dict.fromkeys(file.types or ()), findings
    usable = decode
    if decode.format == "garmadon" and decode.descriptors and decode.header is not None:
        header = decode.header
        read = partial(message_schema, decode.descriptors, header)
        schema, findings = try_schema(read, header, ("decode", "header"))
        if schema is None:
            usable = DecodeSpec("garmadon")
    schemas = {
        name: _read_type_schema(section, ("types", name), document, usable, findings)
        for name, section in (file.types or {}).items()
    }
    return schemas, findings


def _read_type_schema(
    section: TypeSection, at: KeyPath, document: Document, decode: DecodeSpec, findings: list[Finding]
) -> pa.Schema | None:
    schema_at: KeyPath = (*at, "schema")
    message_at: KeyPath = (*at, "message")
    schema: pa.Schema | None = None
    further: list[Finding] = []
    match decode.format:
        case "json" | "raw":
            if document.has(*message_at):
                message = f"has no meaning with decode {decode.format}"
                findings.append(Finding(message_at, message, "remove it", on_key=True))
            if decode.format == "json":
                schema, further = _read_json_schema(section.schema_, schema_at, stated=document.has(*schema_at))
            else:
                schema = RAW_SCHEMA
                if document.has(*schema_at):
                    message = "contradicts decode: raw, whose one field is value (binary)"
                    findings.append(Finding(schema_at, message, on_key=True))
        case "protobuf" | "garmadon":
            if document.has(*schema_at):
                findings.append(contradiction(schema_at, decode.format))
            if not document.has(*message_at):
                findings.append(Finding(message_at, f"required key is missing: decode {decode.format} needs it"))
            schema, further = _read_message_schema(section.message, message_at, decode)
        case "telegraf" | "influx":
            # Refused already, with the decoder.
            pass
        case _:
            assert_never(decode.format)
    findings += further
    return schema


def _read_json_schema(raw: object, at: KeyPath, *, stated: bool) -> tuple[pa.Schema | None, list[Finding]]:
    if not stated:
        message = "required key is missing: decode json needs the fields and their types"
        return None, [Finding(at, message, "write schema: infer to take them from the first records")]
    if raw is None or raw == INFER:
        return None, []
    if isinstance(raw, str):
        hint = "" if isinstance(raw, Secret) else nearest(raw, (INFER,))
        return None, [Finding(at, f"expected a mapping of fields, or infer, found {kind_of(raw)}", hint)]
    return parse_schema(raw, at)


def _read_message_schema(
    message: MessageName | None, at: KeyPath, decode: DecodeSpec
) -> tuple[pa.Schema | None, list[Finding]]:
    if message is not None and decode.descriptors and decode.format == "protobuf":
        return try_schema(partial(message_schema, decode.descriptors, message), message, at)
    if message is not None and decode.descriptors and decode.header is not None:
        return try_schema(partial(garmadon_schema, decode.descriptors, decode.header, message), message, at)
    return None, []
