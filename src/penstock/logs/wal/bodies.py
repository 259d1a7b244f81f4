"""The body of an append as records: JSON, CSV, Arrow, lines, raw bytes, or records with keys and headers.

A body is read as a whole or refused as a whole. Memory is bounded before anything is decoded: the number of records and
of Arrow values is read from the bytes, each record is measured before it is parsed, and only stored bytes are kept.
"""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.logs.wal.errors import BadBodyError
from penstock.logs.wal.limits import WalLimits
from penstock.logs.wal.records import JSON_TYPE, RECORDS_TYPE, EncodedRecord, WalRecord, decode_record, encode_record

HEADERS_MAX = 1_000
ENVELOPE_BYTES_MAX = 16 * 1024
"""Of a record with headers: types and lengths between its bytes."""
JSON_COMMAS_MAX = 1_000_000
"""Of a JSON array, which bound how many values it can have."""
ARROW_VALUES_MAX = 1_000_000
"""Values of all columns of a body, those inside lists too."""

_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_REPEATING_TYPES = (
    pa.types.is_dictionary,
    pa.types.is_run_end_encoded,
    pa.types.is_union,
    pa.types.is_string_view,
    pa.types.is_binary_view,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_raw_records = msgspec.msgpack.Decoder(list[msgspec.Raw])

csv.field_size_limit(1024 * 1024)


@dataclass(frozen=True, slots=True)
class Fields:
    """What a request says of the fields of its records."""

    key: str = ""
    """The one that is the key of its record, which then is a JSON object."""
    json: tuple[str, ...] = ()
    """Of CSV: those whose values are no texts, but JSON as it is written, such as numbers."""


def read_body(body: bytes, content_type: str, limits: WalLimits, fields: Fields | None = None) -> list[EncodedRecord]:
    """The records of a body, as they are stored."""
    fields = fields or Fields()
    kind = content_type.partition(";")[0].strip().lower()
    reader = READERS.get(kind)
    if reader is None:
        known = ", ".join(sorted(READERS))
        raise BadBodyError(f"unknown content type {kind!r}", hint=f"known: {known}")
    records: list[EncodedRecord] = []
    size = 0
    for index, record in enumerate(reader(body, limits, fields)):
        _refuse_count(index + 1, limits)
        _refuse_size(_record_bytes(record), index, limits)
        key = _key(record, fields.key, index) if fields.key else record.key
        encoded = encode_record(WalRecord(record.value, key, record.headers) if fields.key else record)
        size += len(encoded)
        if size > limits.append_bytes_max:
            raise BadBodyError(f"the records of the body have more than {limits.append_bytes_max} bytes")
        records.append((key, encoded))
    if not records:
        raise BadBodyError("the body holds no record")
    return records


def _refuse_count(count: int, limits: WalLimits) -> None:
    if count > limits.append_records_max:
        raise BadBodyError(f"an append holds at most {limits.append_records_max} records")


def _refuse_size(size: int, index: int, limits: WalLimits) -> None:
    if size > limits.record_bytes_max:
        hint = f"at most {limits.record_bytes_max} are accepted"
        raise BadBodyError(f"record {index} of the append has {size} bytes", hint=hint)


def _record_bytes(record: WalRecord) -> int:
    size = len(record.value or b"") + len(record.key or b"")
    if not record.headers:
        return size
    if len(record.headers) > HEADERS_MAX:
        raise BadBodyError(f"a record has {len(record.headers)} headers", hint=f"at most {HEADERS_MAX} are accepted")
    return size + sum(len(name.encode()) + len(value or b"") for name, value in record.headers)


def _read_json(body: bytes, limits: WalLimits, fields: Fields) -> Iterator[WalRecord]:
    """An array gives a record for each of its values, anything else is one record; the text stays as it was sent."""
    text = body.strip()
    try:
        values: list[Any] = [text]
        if text[:1] == b"[":
            if text.count(b",") > JSON_COMMAS_MAX:
                hint = "send application/x-ndjson, or several appends"
                raise BadBodyError(f"the JSON array has more than {JSON_COMMAS_MAX} commas", hint=hint)
            values = msgspec.json.decode(text, type=list[msgspec.Raw])
            _refuse_count(len(values), limits)
        for index, raw in enumerate(values):
            value = bytes(raw)
            _refuse_size(len(value), index, limits)
            msgspec.json.decode(value)  # `Raw` checks brackets and strings only
            yield WalRecord(value)
    except _NOT_JSON as error:
        raise BadBodyError("the body is no JSON", detail=str(error)) from None


def _read_json_lines(body: bytes, limits: WalLimits, fields: Fields) -> Iterator[WalRecord]:
    for number, line in enumerate(io.BytesIO(body), 1):
        text = line.strip()
        if text:
            _refuse_size(len(text), number - 1, limits)
            try:
                msgspec.json.decode(text)
            except _NOT_JSON as error:
                raise BadBodyError(f"line {number} of the body is no JSON", detail=str(error)) from None
            yield WalRecord(text)


def _read_csv(body: bytes, limits: WalLimits, fields: Fields) -> Iterator[WalRecord]:
    """A JSON object for each line after the first, which has the names; an empty value is null."""
    row_bytes = 0

    def measured_lines() -> Iterator[str]:
        nonlocal row_bytes
        for number, line in enumerate(io.StringIO(body.decode("utf-8-sig"), newline="")):
            row_bytes += len(line)
            _refuse_size(row_bytes, number, limits)
            yield line

    try:
        lines = csv.reader(measured_lines(), strict=True)
        names = next(lines, None)
        if not names or len(set(names)) != len(names) or not all(names):
            raise BadBodyError("the first line of a CSV body has the names of its columns, each once")
        if not set(fields.json) <= set(names):
            raise BadBodyError(f"json_fields: there is no column {min(set(fields.json) - set(names))}")
        row_bytes = 0
        for values in lines:
            row_bytes = 0
            if not values:
                continue
            if len(values) != len(names):
                detail = f"{len(values)} values for {len(names)} columns"
                raise BadBodyError(f"line {lines.line_num} of the body does not fit the first one", detail=detail)
            row: dict[str, Any] = {name: value or None for name, value in zip(names, values, strict=True)}
            for name in set(fields.json):
                row[name] = _json_value(row[name], name, lines.line_num)
            yield WalRecord(msgspec.json.encode(row))
    except UnicodeDecodeError as error:
        raise BadBodyError("the body is not UTF-8", detail=f"byte {error.start}") from None
    except csv.Error as error:
        raise BadBodyError("the body is no CSV", detail=str(error)) from None


def _json_value(text: str | None, name: str, line: int) -> msgspec.Raw | None:
    if text is None:
        return None
    try:
        msgspec.json.decode(text)
    except _NOT_JSON:
        detail = f"{text!r} is no number, true, false or other JSON"
        raise BadBodyError(f"line {line} of the body: {name}", detail=detail) from None
    return msgspec.Raw(text.strip().encode())


def _read_arrow(body: bytes, limits: WalLimits, fields: Fields) -> Iterator[WalRecord]:
    """A JSON object for each row of an Arrow IPC stream; times as ISO 8601, bytes as base64, decimals as text."""
    try:
        _refuse_arrow_sizes(body, limits)
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            for batch in stream:
                batch.validate(full=True)
                for column in batch.columns:
                    _refuse_repeated_values(column, limits)
                for row in batch.to_pylist():
                    yield WalRecord(msgspec.json.encode(row))
    except (pa.ArrowException, ValueError, TypeError, OSError, struct.error, RecursionError) as error:
        raise BadBodyError("the body is no Arrow stream", detail=str(error).partition("\n")[0]) from None


def _refuse_arrow_sizes(body: bytes, limits: WalLimits) -> None:
    """Add up rows and values of all batches from their metadata, which alone cost no memory."""
    rows = values = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        metadata = message.metadata.to_pybytes()
        header = _table_field(metadata, _table_at(metadata, 0), 2)
        if message.type == "dictionary":
            header = _table_field(metadata, header, 1)
        if message.type not in ("record batch", "dictionary") or header is None:
            continue
        if _table_field(metadata, header, 3) is not None:
            raise BadBodyError("the Arrow stream is compressed", hint="send its columns without compression")
        nodes = _table_field(metadata, header, 1)
        [count] = struct.unpack_from("<I", metadata, nodes or 0) if nodes else [0]
        lengths = struct.unpack_from("<" + "q8x" * count, metadata, (nodes or 0) + 4)
        values += sum(lengths)
        length = _scalar_field(metadata, header, 0)
        rows += struct.unpack_from("<q", metadata, length)[0] if length and message.type == "record batch" else 0
        _refuse_count(rows, limits)
        if values > ARROW_VALUES_MAX:
            raise BadBodyError(f"the Arrow stream has {values} values", hint=f"at most {ARROW_VALUES_MAX} are accepted")


def _table_at(metadata: bytes, at: int) -> int:
    """Where a FlatBuffers table, vector or text is that an offset points to."""
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _scalar_field(metadata: bytes, table: int | None, index: int) -> int | None:
    """Where the value of a field of a FlatBuffers table is; None if it is absent."""
    if table is None:
        return None
    fields = table - struct.unpack_from("<i", metadata, table)[0]
    if 4 + 2 * index >= struct.unpack_from("<H", metadata, fields)[0]:
        return None
    offset = int(struct.unpack_from("<H", metadata, fields + 4 + 2 * index)[0])
    return table + offset if offset else None


def _table_field(metadata: bytes, table: int | None, index: int) -> int | None:
    at = _scalar_field(metadata, table, index)
    return None if at is None else _table_at(metadata, at)


def _refuse_repeated_values(column: pa.Array, limits: WalLimits) -> None:
    """Refuse types in which few bytes stand for many values; dictionaries of short values are accepted."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        longest = max((len(str(value)) for value in column.dictionary.to_pylist()), default=0)
        if longest * len(column) > limits.append_bytes_max:
            raise BadBodyError("a dictionary of the Arrow stream has long values", hint="send plain columns")
        kind = kind.value_type
    pending = [kind]
    while pending:
        kind = pending.pop()
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        if any(is_type(kind) for is_type in _REPEATING_TYPES):
            raise BadBodyError(f"columns of the Arrow type {kind} are not accepted", hint="send plain columns")
        pending += [kind.field(number).type for number in range(kind.num_fields)]


def _read_lines(body: bytes, limits: WalLimits, fields: Fields) -> Iterator[WalRecord]:
    return (WalRecord(line.removesuffix(b"\n").removesuffix(b"\r")) for line in io.BytesIO(body))


def _read_bytes(body: bytes, limits: WalLimits, fields: Fields) -> Iterator[WalRecord]:
    yield WalRecord(body)


def _read_records(body: bytes, limits: WalLimits, fields: Fields) -> Iterator[WalRecord]:
    try:
        if body[:1] == b"\xdd":
            _refuse_count(int.from_bytes(body[1:5], "big"), limits)
        for index, record in enumerate(_raw_records.decode(body)):
            _refuse_size(memoryview(record).nbytes - ENVELOPE_BYTES_MAX, index, limits)
            yield decode_record(record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBodyError("the body holds no records", detail=str(error)) from None


READERS: Mapping[str, Callable[[bytes, WalLimits, Fields], Iterator[WalRecord]]] = {
    JSON_TYPE: _read_json,
    "application/x-ndjson": _read_json_lines,
    "text/csv": _read_csv,
    "application/vnd.apache.arrow.stream": _read_arrow,
    "text/plain": _read_lines,
    "application/octet-stream": _read_bytes,
    RECORDS_TYPE: _read_records,
}
"""By content type."""


def _key(record: WalRecord, field: str, index: int) -> bytes | None:
    """A field of a JSON object as a key: a text as it is, anything else as JSON; null and an absent field are none."""
    try:
        row: Any = msgspec.json.decode(record.value or b"null")
    except _NOT_JSON:
        row = None
    if not isinstance(row, dict):
        raise BadBodyError(f"record {index} is no JSON object, so it has no field {field}")
    value = row.get(field)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return msgspec.json.encode(value)
