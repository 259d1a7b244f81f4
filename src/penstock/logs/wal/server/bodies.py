"""The body of an append as records: JSON, CSV, Arrow, lines, raw bytes, or records with keys and headers.

A body is read as a whole or refused as a whole. What is refused says where.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from penstock.logs.wal.errors import WalDamagedError, WalRefusedError
from penstock.logs.wal.store.frames import WalRecord, decode_records, encode_body

RECORDS_TYPE = "application/x-penstock-records"
"""Records as a frame has them (`store.frames`), with their number in four bytes before them: what the client sends."""
_COUNT_BYTES = 4
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
CSV_FIELD_CHARACTERS_MAX = 1024 * 1024

csv.field_size_limit(CSV_FIELD_CHARACTERS_MAX)


class BadBodyError(WalRefusedError):
    """A body that is not what its content type says; nothing of it was appended."""


@dataclass(frozen=True, slots=True)
class Fields:
    """What a request says of the fields of its records."""

    key: str = ""
    """The one that is the key of its record, which then is a JSON object."""
    json: tuple[str, ...] = ()
    """Of CSV: those whose values are no texts, but JSON as it is written, such as numbers."""


def read_body(body: bytes, content_type: str, records_max: int, fields: Fields | None = None) -> list[WalRecord]:
    """The records of a body."""
    fields = fields or Fields()
    kind = content_type.partition(";")[0].strip().lower()
    reader = READERS.get(kind)
    if reader is None:
        known = ", ".join(sorted(READERS))
        raise BadBodyError(f"the content type {kind or 'is missing and'} is not known", hint=f"known: {known}")
    records: list[WalRecord] = []
    for record in _of_csv(body, fields.json) if reader is _of_csv else reader(body):
        if len(records) == records_max:
            raise BadBodyError(f"an append holds at most {records_max} records")
        records.append(record)
    if fields.key:
        return [replace(each, key=_key(each, fields.key, index)) for index, each in enumerate(records)]
    return records


def encode_records(records: list[WalRecord]) -> bytes:
    """The body of an append with the type `RECORDS_TYPE`."""
    return len(records).to_bytes(_COUNT_BYTES, "big") + encode_body(b"", records)


def _of_json(body: bytes) -> Iterator[WalRecord]:
    """An array gives a record for each of its values, anything else is one record; the text stays as it was sent."""
    try:
        if body.lstrip()[:1] == b"[":
            for each in msgspec.json.decode(body, type=list[msgspec.Raw]):
                yield WalRecord(_checked(bytes(each)))
        else:
            yield WalRecord(_checked(body.strip()))
    except _NOT_JSON as error:
        raise BadBodyError("the body is no JSON", detail=str(error)) from None


def _checked(text: bytes) -> bytes:
    """The text of a value that really is JSON; `msgspec.Raw` looks only at its shape."""
    msgspec.json.decode(text)
    return text


def _of_json_lines(body: bytes) -> Iterator[WalRecord]:
    for number, line in enumerate(body.split(b"\n"), 1):
        text = line.strip()
        if text:
            try:
                yield WalRecord(_checked(text))
            except _NOT_JSON as error:
                raise BadBodyError(f"line {number} of the body is no JSON", detail=str(error)) from None


def _of_csv(body: bytes, json_fields: Collection[str] = ()) -> Iterator[WalRecord]:
    """A JSON object for each line after the first, which has the names; an empty value is null."""
    try:
        lines = csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True)
        names = next(lines, None)
        if not names or len(set(names)) != len(names) or not all(names):
            raise BadBodyError("the first line of a CSV body has the names of its columns, each once")
        if not set(json_fields) <= set(names):
            raise BadBodyError(f"json_fields: there is no column {min(set(json_fields) - set(names))}")
        for values in lines:
            if not values:
                continue
            if len(values) != len(names):
                detail = f"{len(values)} values for {len(names)} columns"
                raise BadBodyError(f"line {lines.line_num} of the body does not fit the first one", detail=detail)
            row: dict[str, Any] = {name: value or None for name, value in zip(names, values, strict=True)}
            for name in set(json_fields):
                row[name] = _json_value(row[name], name, lines.line_num)
            yield WalRecord(msgspec.json.encode(row))
    except UnicodeDecodeError as error:
        raise BadBodyError("the body is not UTF-8", detail=f"byte {error.start}") from None
    except csv.Error as error:
        raise BadBodyError("the body is no CSV", detail=str(error)) from None


def _json_value(text: str | None, name: str, line: int) -> msgspec.Raw | None:
    try:
        return None if text is None else msgspec.Raw(_checked(text.strip().encode()))
    except _NOT_JSON:
        detail = f"{text!r} is no number, true, false or other JSON"
        raise BadBodyError(f"line {line} of the body: {name}", detail=detail) from None


def _of_arrow(body: bytes) -> Iterator[WalRecord]:
    """A JSON object for each row of an Arrow IPC stream; times as ISO 8601, bytes as base64, decimals as text."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            for batch in stream:
                batch.validate(full=True)
                for row in batch.to_pylist():
                    yield WalRecord(msgspec.json.encode(row))
    except (pa.ArrowException, ValueError, TypeError, OSError) as error:
        raise BadBodyError("the body is no Arrow stream", detail=str(error).partition("\n")[0]) from None


def _of_lines(body: bytes) -> Iterator[WalRecord]:
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return (WalRecord(line.removesuffix(b"\r")) for line in lines)


def _of_bytes(body: bytes) -> Iterator[WalRecord]:
    yield WalRecord(body)


def _of_records(body: bytes) -> Iterator[WalRecord]:
    try:
        yield from decode_records(memoryview(body)[_COUNT_BYTES:], int.from_bytes(body[:_COUNT_BYTES], "big"))
    except WalDamagedError as error:
        raise BadBodyError("the body holds no records", detail=error.detail) from None


READERS: Mapping[str, Callable[[bytes], Iterator[WalRecord]]] = {
    "application/json": _of_json,
    "application/x-ndjson": _of_json_lines,
    "text/csv": _of_csv,
    "application/vnd.apache.arrow.stream": _of_arrow,
    "text/plain": _of_lines,
    "application/octet-stream": _of_bytes,
    RECORDS_TYPE: _of_records,
}
"""By content type."""


def _key(record: WalRecord, field: str, index: int) -> bytes | None:
    """A field of a JSON object as a key: a text as it is, anything else as JSON; null and an absent field are none."""
    try:
        found: Any = msgspec.json.decode(record.value or b"null")
    except _NOT_JSON:
        found = None
    if not isinstance(found, dict):
        raise BadBodyError(f"record {index} is no JSON object, so it has no field {field}")
    value = found.get(field)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return msgspec.json.encode(value)
