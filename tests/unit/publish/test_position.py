"""The record of a published position: released versions stay readable, and a bad record stops the reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvariantError
from penstock.publish.output import PublishBucket, PublishPosition, decode_position, encode_position

GOLDEN = Path(__file__).parents[2] / "golden" / "published" / "v3" / "position.json"
BUCKET = PublishBucket("rollups", "kQ2x", 3, 8)
POSITION = PublishPosition(41, '[131,"cpuload.usage.user{}","10m",1700000400000000]')
NUMBERS = st.integers(0, 2**63 - 1)


def changed(**content: Any) -> bytes:
    return json.dumps({**json.loads(GOLDEN.read_bytes()), **content}).encode()


def test_the_released_record_format_is_written_and_read() -> None:
    assert encode_position(BUCKET, POSITION) == GOLDEN.read_bytes()
    assert decode_position(BUCKET, GOLDEN.read_bytes()) == POSITION


@given(st.text(), st.text(), NUMBERS, NUMBERS, st.text())
def test_a_written_file_is_read_back(job: str, table: str, number: int, close: int, after: str) -> None:
    bucket, position = PublishBucket(job, table, number, number + 1), PublishPosition(close, after)
    assert decode_position(bucket, encode_position(bucket, position)) == position


def test_a_missing_record_and_a_tombstone_are_not_positions() -> None:
    assert decode_position(BUCKET, None) is None


def test_the_position_of_an_earlier_table_is_ignored() -> None:
    assert decode_position(BUCKET, changed(table="older")) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"{}",
        b"[]",
        b"null",
        changed(v=2),
        changed(v=4),
        changed(kind="other"),
        changed(close="41"),
        changed(close=None),
        changed(after=7),
        changed(more=1),
        changed(job="others"),
        changed(bucket=4),
    ],
)
def test_an_invalid_record_of_our_format_stops_the_reader(content: bytes) -> None:
    with pytest.raises(InvariantError):
        decode_position(BUCKET, content)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_an_invariant_error(content: bytes) -> None:
    with pytest.raises(InvariantError):
        decode_position(BUCKET, content)


def test_a_transactional_id_is_the_same_after_the_table_was_recreated() -> None:
    again = PublishBucket("rollups", "other", 3, 8)
    assert (BUCKET.transactional_id, BUCKET.key) == ("penstock/rollups/3", "rollups/3")
    assert again.transactional_id == BUCKET.transactional_id
