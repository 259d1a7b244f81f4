"""The bytes of the log: what is written is read back, what is damaged is found out, and version 1 stays readable."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logs.wal.errors import WalDamagedError
from penstock.logs.wal.store.frames import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    FrameHeader,
    SegmentHeader,
    WalRecord,
    decode_header,
    decode_segment_header,
    encode_body,
    encode_header,
    encode_segment_header,
    frames_of,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "wal" / "v1.wal"
ID = bytes(range(16))
RECORDS = [
    WalRecord(b'{"id": 1}', b"k", (("source", b"shop"), ("source", None), ("é", b""))),
    WalRecord(None, b""),
    WalRecord(b""),
]

texts = st.none() | st.binary(max_size=20)
records = st.builds(WalRecord, texts, texts, st.lists(st.tuples(st.text(max_size=5), texts), max_size=3).map(tuple))


def frame(offset: int, kept: list[WalRecord], key: bytes = b"", at_ms: int = 0, durable_end: int = 0) -> bytes:
    body = encode_body(key, kept)
    header = FrameHeader(offset, len(kept), at_ms, durable_end, len(key), len(body), zlib.crc32(body))
    return encode_header(header) + body


@given(st.lists(st.lists(records, min_size=1, max_size=4), max_size=4), st.binary(max_size=9))
def test_frames_are_read_as_they_were_written(appends: list[list[WalRecord]], key: bytes) -> None:
    data = b"".join(frame(7 * number, kept, key, number) for number, kept in enumerate(appends))
    found = list(frames_of(data))
    assert [each for _, each in found] == appends
    assert [(each.offset, each.at_ms) for each, _ in found] == [(7 * number, number) for number in range(len(appends))]


@given(st.data())
def test_any_changed_byte_is_found_out(data: st.DataObject) -> None:
    whole = frame(5, RECORDS, b"key", 1_700_000_000_000, 3)
    at = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(1, 255))
    damaged = whole[:at] + bytes([whole[at] ^ other]) + whole[at + 1 :]
    with pytest.raises(WalDamagedError):
        list(frames_of(damaged))


def test_a_frame_cut_at_any_byte_is_no_frame() -> None:
    whole = frame(5, RECORDS)
    for length in range(1, len(whole)):
        with pytest.raises(WalDamagedError):
            list(frames_of(whole[:length]))
        assert length >= FRAME_HEADER_BYTES or decode_header(whole[:length]) is None


def test_a_segment_of_an_unknown_version_stops_the_reader() -> None:
    header = bytearray(encode_segment_header(SegmentHeader(0, ID)))
    header[9] = 2
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "big")
    with pytest.raises(WalDamagedError) as raised:
        decode_segment_header(bytes(header))
    assert "version 2" in raised.value.primary
    header[-1] ^= 1
    assert decode_segment_header(bytes(header)) is None


def test_a_file_of_version_1_is_read_and_written_as_ever() -> None:
    kept = GOLDEN.read_bytes()
    first = frame(40, RECORDS, b"shop:1", 1_700_000_000_123, 40)
    second = frame(43, [WalRecord(b"last")], b"", 1_700_000_000_456, 43)
    assert encode_segment_header(SegmentHeader(40, ID)) + first + second == kept
    assert decode_segment_header(kept) == SegmentHeader(40, ID)
    found = list(frames_of(kept[SEGMENT_HEADER_BYTES:]))
    assert [each for _, each in found] == [RECORDS, [WalRecord(b"last")]]
    assert [(each.offset, each.end, each.at_ms, each.durable_end) for each, _ in found] == [
        (40, 43, 1_700_000_000_123, 40),
        (43, 44, 1_700_000_000_456, 43),
    ]
