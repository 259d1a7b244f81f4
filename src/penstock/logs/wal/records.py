"""What clients and the server of a WAL exchange: errors, the bodies of appends, and the state of partitions.

A body is read as a whole or refused as a whole. Memory is bounded before anything is decoded: records are counted and
measured as bytes, and kept only as bytes.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated

import msgspec

from penstock.errors import InvariantError, TransientError, UserError
from penstock.logs.log import Partition

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}")
"""Valid names of topics and jobs."""
JSON_TYPE, JSON_LINES_TYPE = "application/json", "application/x-ndjson"
RECORDS_TYPE = "application/msgpack"
"""An array of the values of records: what the Python client sends, and how they are stored."""
RECORD_BYTES_MAX = 1024 * 1024
"""Of one record as it is sent."""
RECORDS_MAX = 100_000
"""Of one append."""
JSON_COMMAS_MAX = 1_000_000
"""The commas of a JSON array bound the number of its values."""


class WalFullError(TransientError):
    """No space, or too many requests: nothing was appended, and the same append may be sent again later."""

    status = 503


class WalRefusedError(UserError):
    """The request cannot be served as it is, and nothing was changed; `status` is that of the HTTP answer."""

    def __init__(self, primary: str, *, detail: str = "", hint: str = "", status: int = 409) -> None:
        super().__init__(primary, detail=detail, hint=hint)
        self.status = status


class WalDamagedError(InvariantError):
    """Acknowledged records are damaged: nothing is skipped or deleted."""


class StoredAppend(msgspec.Struct, frozen=True, array_like=True):
    """The values of one append, as a MessagePack array with a checksum (CRC-32); all records have its time."""

    offset: int
    end: int
    at_ms: int
    checksum: int
    body: bytes


class Appended(msgspec.Struct, frozen=True):
    """The offsets `[start, end)` of an append; `repeated` if they were there before."""

    partition: int
    start: int
    end: int
    repeated: bool = False


class WalPartition(msgspec.Struct, frozen=True):
    """The offsets `[first, end)` that a partition holds, their size, and what each job of its topic has committed."""

    partition: Partition
    first: int
    end: int
    bytes: int
    positions: dict[str, int | None]


_decode_values = msgspec.msgpack.Decoder(Annotated[list[bytes], msgspec.Meta(max_length=RECORDS_MAX)]).decode
_decode_appends = msgspec.msgpack.Decoder(list[StoredAppend]).decode


def decode_appends(answer: bytes) -> Iterator[tuple[StoredAppend, list[bytes]]]:
    """The appends of an answer with their values; raises `WalDamagedError` at one that is not as it was written."""
    try:
        for append in _decode_appends(answer):
            values = _decode_values(append.body) if zlib.crc32(append.body) == append.checksum else []
            if not 0 < append.end - append.offset == len(values):
                raise WalDamagedError(f"the append at offset {append.offset} is not as it was written")
            yield append, values
    except msgspec.DecodeError as error:
        raise WalDamagedError("the answer of the WAL server holds no appends", detail=str(error)) from None


def read_body(body: bytes, content_type: str) -> tuple[int, bytes]:
    """How many records a body has, and all of them as they are stored."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in SPLITTERS:
        raise WalRefusedError(f"unknown content type {kind!r}", hint=f"use one of {', '.join(SPLITTERS)}", status=415)
    count = 0
    values: list[bytes] = []
    try:
        for count, value in enumerate(SPLITTERS[kind](body), 1):
            if count > RECORDS_MAX:
                raise WalRefusedError(f"an append holds at most {RECORDS_MAX} records", status=413)
            if len(value) > RECORD_BYTES_MAX:
                primary = f"record {count} of the append has {len(value)} bytes"
                raise WalRefusedError(primary, hint=f"at most {RECORD_BYTES_MAX} are accepted", status=413)
            if kind in (JSON_TYPE, JSON_LINES_TYPE):
                msgspec.json.decode(value)
            values.append(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        primary = f"record {count} of the body is not valid {kind}"
        raise WalRefusedError(primary, detail=str(error), status=400) from None
    if not count:
        raise WalRefusedError("the body holds no record", status=400)
    return count, msgspec.msgpack.encode(values)


def _json_values(body: bytes) -> Iterable[bytes]:
    """Each value of a JSON array is a record, any other JSON is one; the text stays as it was sent."""
    text = body.strip()
    if text[:1] != b"[":
        return [text]
    if text.count(b",") > JSON_COMMAS_MAX:
        hint = f"send {JSON_LINES_TYPE}, or several appends"
        raise WalRefusedError(f"the JSON array has more than {JSON_COMMAS_MAX} commas", hint=hint, status=413)
    return map(bytes, msgspec.json.decode(text, type=list[msgspec.Raw]))


SPLITTERS: Mapping[str, Callable[[bytes], Iterable[bytes]]] = {
    JSON_TYPE: _json_values,
    JSON_LINES_TYPE: lambda body: filter(None, map(bytes.strip, io.BytesIO(body))),
    "text/plain": lambda body: (line.removesuffix(b"\n").removesuffix(b"\r") for line in io.BytesIO(body)),
    "application/octet-stream": lambda body: [body],
    RECORDS_TYPE: _decode_values,
}
"""The functions that split a body into records, by its content type."""
