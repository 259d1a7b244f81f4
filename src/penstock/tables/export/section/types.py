"""The event types of an export: their names, the route values that mean them, and what their rows look like."""

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
from penstock.job.schema import parse_schema
from penstock.job.spec import DecodeSpec, Secret
from penstock.tables.export.section.models import INFER, ExportFile, TypeSection

MARKER_MIN, MARKER_MAX = -(2**31), 2**31 - 1

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FOLDER_HINT = "letters, digits, . _ - up to 100, beginning with a letter or digit, without .."
_MARKER = re.compile(r"0|-?[1-9][0-9]{0,9}")


def is_folder(name: str) -> bool:
    """Whether a name stays one folder below the root on every storage, and is none of Penstock's own."""
    return _FOLDER.fullmatch(name) is not None and ".." not in name


def name_findings(types: Mapping[str, TypeSection], unknown_type: str | None) -> Iterator[Finding]:
    """Names of types and of the table of unknown ones, which are all folders of one root."""
    seen: dict[str, str] = {}
    for name in types:
        at: KeyPath = ("types", name)
        if not is_folder(name):
            yield Finding(at, "cannot be the name of a folder", _FOLDER_HINT, on_key=True)
        elif name.casefold() in seen:
            message = f"the same name as {seen[name.casefold()]}: some storages do not tell upper from lower case"
            yield Finding(at, message, on_key=True)
        seen.setdefault(name.casefold(), name)
    if unknown_type is not None:
        at = ("route", "unknown_type")
        if not is_folder(unknown_type):
            yield Finding(at, "cannot be the name of a folder", _FOLDER_HINT)
        elif unknown_type.casefold() in seen:
            yield Finding(at, "is the folder of a type", "choose another name")


def value_findings(types: Mapping[str, TypeSection], document: Document, *, by_marker: bool) -> Iterator[Finding]:
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
            if by_marker and not _is_marker(value):
                message = f"{shown(value)} is no type marker: an envelope holds a number of 32 bits"
                yield Finding(place, message, "as in values: [1000]", on_key=by_name)


def route_values(name: str, section: TypeSection) -> tuple[str, ...]:
    """The route values of a type: those stated, or its name."""
    return tuple(section.values) if section.values is not None else (name,)


def _is_marker(value: str) -> bool:
    return _MARKER.fullmatch(value) is not None and MARKER_MIN <= int(value) <= MARKER_MAX


def read_type_schemas(
    file: ExportFile, document: Document, decode: DecodeSpec | None
) -> tuple[dict[str, pa.Schema | None], list[Finding]]:
    """The decoded fields of each type; None where they are inferred later or cannot be told."""
    findings: list[Finding] = []
    schemas: dict[str, pa.Schema | None] = {}
    if decode is None:
        return dict.fromkeys(file.types or ()), findings
    usable = decode
    if decode.format == "garmadon" and decode.descriptors and decode.header is not None:
        header = decode.header
        read = partial(message_schema, decode.descriptors, header)
        schema, findings = try_schema(read, header, ("decode", "header"))
        if schema is None:
            usable = DecodeSpec("garmadon")
    for name, section in (file.types or {}).items():
        schemas[name], further = _read_type_schema(section, ("types", name), document, usable)
        findings += further
    return schemas, findings


def _read_type_schema(
    section: TypeSection, at: KeyPath, document: Document, decode: DecodeSpec
) -> tuple[pa.Schema | None, list[Finding]]:
    schema_at: KeyPath = (*at, "schema")
    message_at: KeyPath = (*at, "message")
    match decode.format:
        case "json":
            findings = _without_message(message_at, decode, document)
            schema, further = _read_json_schema(section.schema_, schema_at, stated=document.has(*schema_at))
            return schema, findings + further
        case "raw":
            findings = _without_message(message_at, decode, document)
            if document.has(*schema_at):
                message = "contradicts decode: raw, whose one field is value (binary)"
                findings.append(Finding(schema_at, message, on_key=True))
            return RAW_SCHEMA, findings
        case "protobuf" | "garmadon":
            findings = [contradiction(schema_at, decode.format)] if document.has(*schema_at) else []
            if not document.has(*message_at):
                findings.append(Finding(message_at, f"required key is missing: decode {decode.format} needs it"))
            schema, further = _read_message_schema(section, message_at, decode)
            return schema, findings + further
        case "telegraf" | "influx":
            # Refused already, with the decoder.
            return None, []
        case _:
            assert_never(decode.format)


def _without_message(at: KeyPath, decode: DecodeSpec, document: Document) -> list[Finding]:
    if not document.has(*at):
        return []
    return [Finding(at, f"has no meaning with decode {decode.format}", "remove it", on_key=True)]


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
    section: TypeSection, at: KeyPath, decode: DecodeSpec
) -> tuple[pa.Schema | None, list[Finding]]:
    message, header = section.message, decode.header
    if message is None or not decode.descriptors:
        return None, []
    if decode.format == "protobuf":
        return try_schema(partial(message_schema, decode.descriptors, message), message, at)
    if header is None:
        return None, []
    return try_schema(partial(garmadon_schema, decode.descriptors, header, message), message, at)
