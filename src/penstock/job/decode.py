"""How bytes become fields: `decode` against its own format and the kind of table, and the fields that it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from penstock.errors import UserError
from penstock.job.faults import KeyPath, Secret
from penstock.job.kafka_types import RAW_SCHEMA
from penstock.job.messages import files_of, message_schema
from penstock.job.reader import Reader, known_keys
from penstock.job.schema import read_schema
from penstock.job.sections import AnyKindSection, Kinds
from penstock.job.spec import (
    POINT_FORMATS,
    DecodeFormat,
    DecodeSpec,
    JobSpec,
    MessageName,
    PointsSpec,
    TombstonePolicy,
)
from penstock.job.values import Read

AT: KeyPath = ("decode",)
_KEYS_OF_ROWS = ("schema", "columns", "drop", "sql")
_POINT_KEYS = tuple(known_keys(PointsSpec))
_OWN_KEYS: dict[DecodeFormat, tuple[str, ...]] = {
    "json": (),
    "raw": (),
    "protobuf": ("descriptors", "message", "defaults"),
    "garmadon": ("descriptors", "header", "defaults", "uri_names"),
    "telegraf": _POINT_KEYS,
    "influx": _POINT_KEYS,
}
_REQUIRED_KEYS: dict[DecodeFormat, tuple[str, ...]] = {
    "protobuf": ("descriptors",),
    "garmadon": ("descriptors", "header"),
}


def complete_decode(job: JobSpec, kind: AnyKindSection, kinds: Kinds, reader: Reader) -> DecodeSpec:
    """Check the decoder against its format and the table; its descriptors are empty where they cannot be used."""
    decode = replace(job.decode, payload_bytes_max=job.limits.payload_bytes_max)
    if not reader.states(*AT, "format"):
        return decode
    for name in dict.fromkeys(key for keys in _OWN_KEYS.values() for key in keys):
        if reader.has(*AT, name) and name not in _OWN_KEYS[decode.format]:
            reader.note((*AT, name), f"has no meaning with decode {decode.format}", "remove it", on_key=True)
    for name in _REQUIRED_KEYS.get(decode.format, ()):
        if not reader.has(*AT, name):
            reader.note((*AT, name), f"required key is missing: decode {decode.format} needs it")
    _check_points(job, kind, kinds, reader)
    if not kind.many_types:
        if decode.format == "garmadon":
            elsewhere = next((other.many_types for other in kinds if other.many_types), "")
            reader.note(_format_at(reader), "garmadon records are of many types", elsewhere)
        if decode.format == "protobuf" and not reader.has(*AT, "message"):
            reader.note((*AT, "message"), "required key is missing: the table's rows are of one message")
    if reader.states(*AT, "descriptors") and "descriptors" in _OWN_KEYS[decode.format]:
        try:
            files_of(decode.descriptors)
        except UserError as error:
            reader.note((*AT, "descriptors"), "is no descriptor set", error.hint)
            return replace(decode, descriptors=b"")
    if decode.header is not None and decode.descriptors:
        read = partial(message_schema, decode.descriptors, decode.header)
        if schema_of_message(read, decode.header, (*AT, "header"), reader) is None:
            return replace(decode, descriptors=b"")
    return decode


def schema_of_rows(decode: DecodeSpec, reader: Reader) -> pa.Schema | None:
    """The decoded fields of a job with a single table; None where they cannot be told, which is a finding."""
    at: KeyPath = ("schema",)
    match decode.format if reader.states(*AT, "format") else None:
        case "raw":
            note_stated_schema(at, decode, reader)
            return RAW_SCHEMA
        case "protobuf" | "garmadon":
            note_stated_schema(at, decode, reader)
            if decode.format == "garmadon" or not decode.descriptors or decode.message is None:
                return None
            read = partial(message_schema, decode.descriptors, decode.message)
            return schema_of_message(read, decode.message, (*AT, "message"), reader)
        case "telegraf" | "influx":
            # Refused already: a table of rows cannot hold what they give.
            return None
        case "json" if not reader.has(*at):
            reader.note(at, "required key is missing: decode json needs the fields and their types")
    schema: pa.Schema | None = reader.top(Read(read_schema), "schema")
    return schema


def schema_of_message(
    read: Callable[[], pa.Schema], message: MessageName, at: KeyPath, reader: Reader
) -> pa.Schema | None:
    """The schema of a message; None if no table can hold it."""
    try:
        return read()
    except UserError as error:
        if isinstance(message.name, Secret):
            reader.note(at, "is no message that a table can hold once its references are filled in")
        else:
            reader.note(at, f"{error.primary}: {error.detail}" if error.detail else error.primary, error.hint)
        return None


def note_stated_schema(at: KeyPath, decode: DecodeSpec, reader: Reader) -> None:
    """Refuse a schema where the decoder fixes the fields."""
    if not reader.has(*at):
        return
    if decode.format == "raw":
        reader.note(at, "contradicts decode: raw, whose one field is value (binary)", on_key=True)
    else:
        reader.note(at, f"contradicts decode {decode.format}: the message is the schema", "remove it", on_key=True)


def _format_at(reader: Reader) -> KeyPath:
    return (*AT, "format") if reader.has(*AT, "format") else AT


def _check_points(job: JobSpec, kind: AnyKindSection, kinds: Kinds, reader: Reader) -> None:
    """Refuse points for a table that takes none, rows for one that takes only points, and what contradicts points."""
    decoder = job.decode.format
    gives_points = decoder in POINT_FORMATS
    if gives_points != kind.takes_points and reader.has("table", kind.name):
        if kind.takes_points:
            message = f"{decoder} records are rows, and table.{kind.name} takes points of metrics"
            reader.note(_format_at(reader), message, f"use {' or '.join(POINT_FORMATS)}")
        else:
            takers = " or ".join(f"table.{other.name}" for other in kinds if other.takes_points)
            message = f"{decoder} records are points of metrics, and table.{kind.name} takes rows"
            reader.note(_format_at(reader), message, f"{takers} takes points" if takers else "")
    for index in range(len(job.decode.points.blacklist)):
        at: KeyPath = (*AT, "blacklist", index)
        if reader.written(*at) in ({}, {"tags": {}}):
            reader.note(at, "matches every series", "state a name, tags, or both")
    if gives_points and kind.takes_points:
        for name in _KEYS_OF_ROWS:
            if reader.has(name):
                reader.note((name,), f"has no meaning with decode {decoder}", "remove it", on_key=True)
        if job.on.tombstone is TombstonePolicy.ROW:
            message = f"row has no meaning with decode {decoder}: a tombstone has no points"
            reader.note(("on", "tombstone"), message, "use filter or quarantine")
