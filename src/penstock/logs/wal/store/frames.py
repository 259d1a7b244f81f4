"""The bytes of a segment: a header, then frames. A frame is one append: whole or, after a crash, not there at all.

All numbers are big-endian. Version 1:

    segment  8 magic, 2 version, 8 offset of the first record, 16 topic id, 4 checksum of the header
    frame    4 magic, 4 bytes of the body, 8 first offset, 4 records, 8 append time in milliseconds since 1970,
             8 durable end when it was written, 2 bytes of the client key, 4 checksum of the body, 4 of the header;
             then the body: the client key, and each record: 4 bytes of the key, key, 4 bytes of the value, value,
             2 headers, and of each header 2 bytes of the name, name, 4 bytes of the value, value

A length of -1 stands for null. The checksums are CRC-32 (zlib).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from mmap import mmap

from penstock.logs.wal.errors import WalDamagedError

VERSION = 1
SEGMENT_MAGIC, FRAME_MAGIC = b"PENSTWAL", b"PWFR"
CLIENT_KEY_BYTES_MAX = 255
HEADERS_MAX = 1_000
HEADER_NAME_BYTES_MAX = 2**16 - 1

_SEGMENT = struct.Struct(">8sHQ16sI")
_FRAME = struct.Struct(">4sIQIqQHII")
_INT, _SHORT = struct.Struct(">i"), struct.Struct(">H")
_CHECKSUM_BYTES = 4

SEGMENT_HEADER_BYTES = _SEGMENT.size
FRAME_HEADER_BYTES = _FRAME.size

Buffer = bytes | memoryview | mmap


@dataclass(frozen=True, slots=True)
class WalRecord:
    """One record as it is kept; its append time and offset are those of its frame."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What a frame says of itself before its records."""

    offset: int
    count: int
    at_ms: int
    durable_end: int
    """Where the partition's durable records ended when this frame was written: all below may be acknowledged."""
    client_key_bytes: int
    body_bytes: int
    body_checksum: int

    @property
    def end(self) -> int:
        return self.offset + self.count

    @property
    def size(self) -> int:
        return FRAME_HEADER_BYTES + self.body_bytes


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    base: int
    topic_id: bytes


def encode_segment_header(header: SegmentHeader) -> bytes:
    start = _SEGMENT.pack(SEGMENT_MAGIC, VERSION, header.base, header.topic_id, 0)[:-_CHECKSUM_BYTES]
    return start + zlib.crc32(start).to_bytes(_CHECKSUM_BYTES, "big")


def decode_segment_header(data: Buffer) -> SegmentHeader | None:
    """The header, or None if it is damaged; raises `WalDamagedError` for one of a version that is not known."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, version, base, topic_id, checksum = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC or zlib.crc32(data[: SEGMENT_HEADER_BYTES - _CHECKSUM_BYTES]) != checksum:
        return None
    if version != VERSION:
        raise WalDamagedError(f"a segment is of version {version}, this program reads {VERSION}")
    return SegmentHeader(base, topic_id)


def encode_body(client_key: bytes, records: Sequence[WalRecord]) -> bytes:
    """The client key and the records, without the frame's header."""
    parts = [client_key]
    for record in records:
        parts += _text(record.key)
        parts += _text(record.value)
        parts.append(_SHORT.pack(len(record.headers)))
        for name, value in record.headers:
            encoded = name.encode()
            parts += (_SHORT.pack(len(encoded)), encoded, *_text(value))
    return b"".join(parts)


def encode_header(header: FrameHeader) -> bytes:
    start = _FRAME.pack(
        FRAME_MAGIC, header.body_bytes, header.offset, header.count, header.at_ms, header.durable_end,
        header.client_key_bytes, header.body_checksum, 0,
    )[:-_CHECKSUM_BYTES]  # fmt: skip
    return start + zlib.crc32(start).to_bytes(_CHECKSUM_BYTES, "big")


def decode_header(data: Buffer, at: int = 0) -> FrameHeader | None:
    """The header of a frame at a place; None if it is cut short or damaged."""
    if at + FRAME_HEADER_BYTES > len(data):
        return None
    magic, body_bytes, offset, count, at_ms, durable_end, key_bytes, body_checksum, checksum = _FRAME.unpack_from(
        data, at
    )
    if magic != FRAME_MAGIC or zlib.crc32(data[at : at + FRAME_HEADER_BYTES - _CHECKSUM_BYTES]) != checksum:
        return None
    return FrameHeader(offset, count, at_ms, durable_end, key_bytes, body_bytes, body_checksum)


def body_is_whole(header: FrameHeader, data: Buffer, at: int = 0) -> bool:
    """Whether the frame at a place has all its bytes, as they were written."""
    start = at + FRAME_HEADER_BYTES
    if start + header.body_bytes > len(data):
        return False
    return zlib.crc32(data[start : start + header.body_bytes]) == header.body_checksum


def frames_of(data: Buffer) -> Iterator[tuple[FrameHeader, list[WalRecord]]]:
    """The frames of an answer with whole frames; raises `WalDamagedError` at one that is not as it was written."""
    at = 0
    view = memoryview(data)
    while at < len(view):
        header = decode_header(view, at)
        if header is None or not body_is_whole(header, view, at):
            raise WalDamagedError("an append of the log is not as it was written", detail=f"at byte {at} of an answer")
        start = at + FRAME_HEADER_BYTES + header.client_key_bytes
        at += header.size
        yield header, decode_records(view[start:at], header.count)


def decode_records(data: memoryview, count: int) -> list[WalRecord]:
    """The records of a body without its client key; raises `WalDamagedError` if the bytes are none."""
    try:
        records, at = _records(data, count)
    except (struct.error, UnicodeDecodeError) as error:
        raise WalDamagedError("the bytes of an append are no records", detail=str(error)) from None
    if at != len(data):
        raise WalDamagedError("the bytes of an append are no records", detail=f"they end at byte {at} of {len(data)}")
    return records


def _records(data: memoryview, count: int) -> tuple[list[WalRecord], int]:
    records: list[WalRecord] = []
    at = 0
    for _ in range(count):
        key, at = _read_text(data, at)
        value, at = _read_text(data, at)
        [header_count] = _SHORT.unpack_from(data, at)
        at += _SHORT.size
        headers = []
        for _ in range(header_count):
            [length] = _SHORT.unpack_from(data, at)
            at += _SHORT.size
            name = str(data[at : at + length], "utf-8")
            header_value, at = _read_text(data, at + length)
            headers.append((name, header_value))
        records.append(WalRecord(value, key, tuple(headers)))
    return records, at


def _text(value: bytes | None) -> tuple[bytes, bytes]:
    return (_INT.pack(-1), b"") if value is None else (_INT.pack(len(value)), value)


def _read_text(data: memoryview, at: int) -> tuple[bytes | None, int]:
    [length] = _INT.unpack_from(data, at)
    at += _INT.size
    return (None, at) if length < 0 else (bytes(data[at : at + length]), at + length)
