"""How bytes become fields: `decode` against its own format and the kind of table, and the fields that it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from penstock.errors import UserError
from penstock.job.faults import KeyPath
from penstock.job.kafka_types import RAW_SCHEMA
from penstock.job.messages import files_of, message_schema
from penstock.job.reader import SpecReader, known_keys
from penstock.job.schema import INFER
from penstock.job.spec import DecodeFormat, DecodeSpec, JobSpec, PointsSpec

AT: KeyPath = ("decode",)
_POINT_KEYS = tuple(known_keys(PointsSpec))
_OWN_KEYS: dict[DecodeFormat, tuple[str, ...]] = {
    "json": (),
    "raw": (),
    "protobuf": ("descriptors", "message", "defaults"),
    "garmadon": ("descriptors", "header", "defaults", "uri_names"),
    "telegraf": _POINT_KEYS,
    "influx": _POINT_KEYS,
}
_REQUIRED_KEYS = ("descriptors", "header")
"""Of the formats that have them."""


def complete_decode(job: JobSpec, reader: SpecReader) -> DecodeSpec:
    """Check the decoder against its format and the table; its descriptors are empty where they cannot be used."""
    decode, decoders = job.decode, job.table.decoders
    if not reader.states(*AT, "format"):
        return decode
    for name in dict.fromkeys(key for keys in _OWN_KEYS.values() for key in keys):
        stated, own = reader.has(*AT, name), name in _OWN_KEYS[decode.format]
        if stated and not own:
            reader.note((*AT, name), f"has no meaning with decode {decode.format}", "remove it", on_key=True)
        elif own and not stated and name in _REQUIRED_KEYS:
            reader.note((*AT, name), f"required key is missing: decode {decode.format} needs it")
    if decode.format not in decoders and reader.has("table", job.table.kind):
        at = (*AT, "format") if reader.has(*AT, "format") else AT
        reader.note(at, f"table.{job.table.kind} does not support {decode.format}", f"use {', '.join(decoders)}")
    if decode.format == "protobuf" and "garmadon" not in decoders and not reader.has(*AT, "message"):
        reader.note((*AT, "message"), "required key is missing: all rows of the table are of one message")
    for index in range(len(decode.points.blacklist)):
        if reader.written(*AT, "blacklist", index) in ({}, {"tags": {}}):
            reader.note((*AT, "blacklist", index), "matches every series", "state a name, tags, or both")
    if reader.states(*AT, "descriptors") and "descriptors" in _OWN_KEYS[decode.format]:
        try:
            files_of(decode.descriptors)
        except UserError as error:
            reader.note((*AT, "descriptors"), "is not a descriptor set", error.hint)
            return replace(decode, descriptors=b"")
    if decode.header is not None and decode.descriptors:
        read = partial(message_schema, decode.descriptors, decode.header)
        if schema_of_message(read, (*AT, "header"), reader) is None:
            return replace(decode, descriptors=b"")
    return decode


def schema_of_rows(job: JobSpec, reader: SpecReader) -> pa.Schema | None:
    """The decoded fields of a job with a single table; None where they are not known, which is a finding."""
    at, decode = ("schema",), job.decode
    match decode.format if reader.states(*AT, "format") else None:
        case "raw":
            note_stated_schema(at, decode, reader)
            return RAW_SCHEMA
        case "protobuf" | "garmadon":
            note_stated_schema(at, decode, reader)
            if decode.format == "garmadon" or not decode.descriptors or decode.message is None:
                return None
            read = partial(message_schema, decode.descriptors, decode.message)
            return schema_of_message(read, (*AT, "message"), reader)
        case "telegraf" | "influx":
            # Refused already, with the decoder.
            return None
        case "json" if not reader.has(*at):
            reader.note(at, "required key is missing: decode json needs the fields and their types, or infer")
        case "json" if reader.written(*at) == INFER:
            return None
    return job.schema if reader.states(*at) else None


def schema_of_message(read: Callable[[], pa.Schema], at: KeyPath, reader: SpecReader) -> pa.Schema | None:
    """The schema of a message; None if no table can hold it."""
    try:
        return read()
    except UserError as error:
        reader.note(at, f"{error.primary}: {error.detail}" if error.detail else error.primary, error.hint)
        return None


def note_stated_schema(at: KeyPath, decode: DecodeSpec, reader: SpecReader) -> None:
    """Refuse a schema where the decoder fixes the fields."""
    if reader.has(*at):
        fields = "the one field is value (binary)" if decode.format == "raw" else "the message is the schema"
        reader.note(at, f"contradicts decode {decode.format}: {fields}", "remove it", on_key=True)
