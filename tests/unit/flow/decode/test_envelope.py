"""The envelope of Garmadon events: what is opened, what is broken, and that no bytes can harm."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.decode.garmadon.envelope import FRAME_BYTES, markers, open_envelopes
from tests.support.garmadon_descriptors import event

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
GOOD = st.builds(event, INT32, INT64, st.binary(max_size=40), st.binary(max_size=40))
FRAMED = st.builds(
    lambda marker, at, header, body, trailing: struct.pack(">iqii", marker, at, header, body) + trailing,
    INT32,
    INT64,
    st.one_of(st.integers(-2, 30), INT32),
    st.one_of(st.integers(-2, 30), INT32),
    st.binary(max_size=40),
)
VALUES = st.lists(st.one_of(GOOD, FRAMED, st.binary(max_size=30)), max_size=12)


def opened_singly(value: bytes) -> tuple[int, int, bytes, bytes] | None:
    """The same by the book, one record at a time."""
    if len(value) < 20:
        return None
    marker, at, header, body = struct.unpack(">iqii", value[:20])
    if header < 0 or body < 0 or len(value) != 20 + header + body:
        return None
    return marker, at, value[20 : 20 + header], value[20 + header :]


@given(values=VALUES, before=st.lists(st.binary(max_size=25), max_size=3), after=st.integers(0, 3))
def test_a_whole_array_is_opened_as_each_record_would_be(values: list[bytes], before: list[bytes], after: int) -> None:
    # A slice of a longer array, as Arrow hands them on.
    array = pa.array([*before, *values, *[b"x"] * after], pa.binary()).slice(len(before), len(values))
    envelopes = open_envelopes(array)
    expected = {row: result for row, value in enumerate(values) if (result := opened_singly(value)) is not None}
    columns = [envelopes.markers, envelopes.timestamps, envelopes.headers, envelopes.bodies]
    assert list(envelopes.rows) == list(expected)
    assert list(zip(*(column.to_pylist() for column in columns), strict=True)) == list(expected.values())
    assert sorted([*envelopes.rows, *envelopes.errors]) == list(range(len(values)))
    for column in columns:
        column.validate(full=True)


@given(values=st.lists(st.one_of(st.none(), GOOD, FRAMED, st.binary(max_size=30)), max_size=12))
def test_markers_are_decimal_text_and_null_where_nothing_can_be_opened(values: list[bytes | None]) -> None:
    result = markers(pa.array(values, pa.binary()))
    expected = [opened_singly(value) if value is not None else None for value in values]
    assert result.type == pa.string()
    assert result.to_pylist() == [None if item is None else str(item[0]) for item in expected]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"bad msg", "envelope is broken: 7 bytes, its frame alone has 20"),
        (b"", "envelope is broken: 0 bytes, its frame alone has 20"),
        (event(1, 0, b"h", b"b")[:-1], "envelope is broken: 21 bytes, its frame announces 22"),
        (event(1, 0, b"h", b"b") + b"x", "envelope is broken: 23 bytes, its frame announces 22"),
        (
            struct.pack(">iqii", 1, 0, -1, 1),
            "envelope is broken: a header of -1 and a body of 1 bytes cannot be",
        ),
        # In 32 bits these sizes and the frame would add up to the 20 bytes that are there.
        (
            struct.pack(">iqii", 1, 0, 2**31 - 1, 2**31 - 1) + b"",
            f"envelope is broken: 20 bytes, its frame announces {FRAME_BYTES + 2 * (2**31 - 1)}",
        ),
    ],
)
def test_a_broken_envelope_has_a_specific_error(value: bytes, error: str) -> None:
    good = event(1, 2, b"h", b"b")
    assert open_envelopes(pa.array([good, value, good])).errors == {1: error}


def test_an_event_may_have_an_empty_header_and_an_empty_body() -> None:
    envelopes = open_envelopes(pa.array([event(3, -1, b"", b"")]))
    assert envelopes.headers.to_pylist() == envelopes.bodies.to_pylist() == [b""]
    assert envelopes.timestamps.to_pylist() == [-1]
