"""Recognises the format of single values: what is decoded, and what is only told apart by its first bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from penstock.flow.decode.influx import InfluxFormat
from penstock.flow.decode.misfit import MisfitError
from penstock.flow.decode.outcome import unwrap
from penstock.flow.decode.telegraf import TelegrafFormat
from penstock.job.kafka_types import utf8
from penstock.job.spec import Payload

FormatName: TypeAlias = Literal[
    "JSON", "broken JSON", "Telegraf", "Influx", "Avro", "Protobuf", "text", "binary", "empty", "tombstone"
]

_GZIP = b"\x1f\x8b"
_REGISTRY_BYTES = 5
"""Of a registry's framing: a zero and the id of the schema."""
_SCHEMA_ID_END = 2**24
_FIELD_NUMBER_MAX = 2**14
_WIRE_BYTES = {1: 8, 5: 4}
_LINE = re.compile(rb"[^\s,={\[#]+(?:,[^\s=]+=\S+)? [^\s=]+=\S")
_DECODE = msgspec.json.Decoder().decode
_TELEGRAF = TelegrafFormat("raw", "auto")
_INFLUX = InfluxFormat("raw", "auto")


@dataclass(frozen=True, slots=True)
class Content:
    """What a value is: `data` is its JSON object, its text, or its bytes."""

    format: FormatName
    data: Any = None
    payload: Payload = "plain"
    schema_id: int | None = None
    """Of a schema registry."""

    @property
    def label(self) -> str:
        packed = "" if self.payload == "plain" else f"{self.payload} "
        return f"{packed}{self.format}" + ("" if self.schema_id is None else f" (registry id {self.schema_id})")


def content_of(value: bytes | None) -> Content:
    """The format of a value and what is in it."""
    if value is None:
        return Content("tombstone")
    if value.startswith(_GZIP):
        [inner], errors = unwrap([value])
        if not errors and inner is not None:
            return _opened(inner, "gzip")
    return _opened(value, "plain")


def _opened(value: bytes, payload: Payload) -> Content:
    if not value:
        return Content("empty", b"", payload)
    schema_id = int.from_bytes(value[1:_REGISTRY_BYTES])
    if value[0] == 0 and len(value) > _REGISTRY_BYTES and 0 < schema_id < _SCHEMA_ID_END:
        inner = value[_REGISTRY_BYTES:]
        if inner.lstrip()[:1] == b"{" and (content := _json(inner)) is not None:
            return Content(content.format, content.data, payload, schema_id)
        # Protobuf has the path of its message first, mostly a zero.
        is_protobuf = inner[0] == 0 and _is_protobuf(inner[1:])
        return Content("Protobuf" if is_protobuf else "Avro", value, payload, schema_id)
    begins_json = value.lstrip()[:1] in (b"{", b"[")
    if begins_json and (content := _json(value)) is not None:
        return Content(content.format, content.data, payload)
    if not begins_json and _LINE.match(value.lstrip()) and _accepts(_INFLUX, value):
        return Content("Influx", value, payload)
    text = utf8(value)
    readable = text is not None and all(c.isprintable() or c.isspace() for c in text)
    if (not readable or value[:1] == b"\n") and _is_protobuf(value):
        return Content("Protobuf", value, payload)
    if not readable:
        return Content("broken JSON" if value[:1] == b"{" else "binary", value, payload)
    return Content("broken JSON" if begins_json and value.lstrip()[:1] == b"{" else "text", text, payload)


def _json(value: bytes) -> Content | None:
    """A JSON object, or the metrics of Telegraf; None for anything else."""
    try:
        data = _DECODE(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if b'"fields"' in value and _accepts(_TELEGRAF, value):
        return Content("Telegraf", data)
    return Content("JSON", data) if isinstance(data, dict) else None


def _accepts(format_: TelegrafFormat | InfluxFormat, value: bytes) -> bool:
    try:
        return sum(1 for _ in format_.metrics(value, 0)) > 0
    except MisfitError:
        return False


def _is_protobuf(data: bytes) -> bool:
    """Whether the bytes can be a message: fields one after the other up to the end."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if not 1 <= tag >> 3 <= _FIELD_NUMBER_MAX:
            return False
        if wire == 0:
            _, at = _varint(data, at)
        elif wire == 2:
            length, at = _varint(data, at)
            at += length
        elif wire in _WIRE_BYTES:
            at += _WIRE_BYTES[wire]
        else:
            return False
    return at == len(data) > 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends: behind the data if it is cut off."""
    number = 0
    for index, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    return 0, len(data) + 1
