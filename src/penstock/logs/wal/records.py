"""Records, appends and answers as bytes: what clients send, what the store keeps and what readers get.

A record is a MessagePack array of value, key and headers; an append is an array of records with a checksum (CRC-32).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from penstock.logs.wal.errors import WalDamagedError

JSON_TYPE = "application/json"
FRAMES_TYPE = "application/x-penstock-frames"
"""Appends as they are stored: how Spark's tasks read."""
RECORDS_TYPE = "application/x-penstock-records"
"""Records with keys and headers: what the Python client sends."""

Way: TypeAlias = Literal["advance", "register", "reset"]
"""Advance: what was committed, never back. Register: only where nothing is known. Reset: where a job begins again."""
Place = tuple[str, str, int]
"""Topic, topic id and number of a partition."""
EncodedRecord = tuple[bytes | None, bytes]
"""The key of a record, and all of it as it is stored."""


class WalRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record; its time and offset are those of its append."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class StoredAppend(msgspec.Struct, frozen=True, array_like=True):
    """The records of one append in one partition."""

    offset: int
    count: int
    at_ms: int
    checksum: int
    body: bytes

    @property
    def end(self) -> int:
        return self.offset + self.count


class Appended(msgspec.Struct, frozen=True):
    """The offsets `[start, end)` of an append; `repeated` if they were there before."""

    partition: int
    start: int
    end: int
    repeated: bool = False


class PartitionView(msgspec.Struct, frozen=True):
    number: int
    first: int
    end: int
    bytes: int


class TopicView(msgspec.Struct, frozen=True):
    name: str
    id: str
    partitions: list[PartitionView]


class TopicsView(msgspec.Struct, frozen=True):
    topics: list[TopicView]
    record_bytes_max: int


class TopicReport(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    offsets: dict[int, int]


class PositionsReport(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `PUT /jobs/J/positions`."""

    topics: dict[str, TopicReport]
    owner: str = ""
    way: Way = "advance"


class Reported(msgspec.Struct, frozen=True):
    """Which positions moved, and why others did not; equal ones are in neither."""

    moved: list[tuple[str, str, int, int]]
    refused: list[tuple[str, str, int, str]]


encode_record = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(WalRecord).decode
_records = msgspec.msgpack.Decoder(list[WalRecord])
_appends = msgspec.msgpack.Decoder(list[StoredAppend])


def join_records(encoded: Sequence[bytes]) -> bytes:
    """Records as one array."""
    return b"\xdd" + len(encoded).to_bytes(4, "big") + b"".join(encoded)


def decode_appends(answer: bytes) -> Iterator[tuple[StoredAppend, list[WalRecord]]]:
    """The appends of an answer with their records; raises `WalDamagedError` at one that is not as it was written."""
    try:
        for append in _appends.decode(answer):
            records = _records.decode(append.body) if zlib.crc32(append.body) == append.checksum else []
            if not 0 < append.count == len(records):
                raise WalDamagedError(f"the append at offset {append.offset} is not as it was written")
            yield append, records
    except msgspec.DecodeError as error:
        raise WalDamagedError("the answer of the WAL server holds no appends", detail=str(error)) from None
