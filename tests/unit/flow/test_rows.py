"""Rows between the stages of a task."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import InvariantError
from penstock.flow.rows import BadRows, DecodedRows, bad_rows, rows_without, take
from tests.unit.flow.kafka_batches import kafka_batch


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(values, pa.int32())})


def test_taking_all_rows_copies_nothing() -> None:
    kafka = kafka_batch([b"a", b"b"])
    rows = DecodedRows(numbers(1, 2), kafka)
    assert rows.take(range(2)).kafka is kafka
    assert take(kafka, [0, 1]) is kafka


def test_taking_some_rows_keeps_columns_and_kafka_rows_aligned() -> None:
    rows = DecodedRows(numbers(1, 2, 3), kafka_batch([b"a", b"b", b"c"])).take([0, 2])
    assert rows.columns.column("n").to_pylist() == [1, 3]
    assert rows.kafka.column("offset").to_pylist() == [100, 102]


def test_taking_no_rows_leaves_the_columns() -> None:
    none = take(kafka_batch([b"a"]), [])
    assert none.num_rows == 0
    assert "offset" in none.schema.names


def test_bad_rows_come_in_offset_order_with_their_own_errors() -> None:
    bad = bad_rows(kafka_batch([b"a", b"b", b"c"]), {2: "two", 0: "zero"})
    assert bad.kafka.column("value").to_pylist() == [b"a", b"c"]
    assert bad.errors.to_pylist() == ["zero", "two"]


def test_rows_without_the_dropped_ones() -> None:
    assert list(rows_without(4, {1: "x"})) == [0, 2, 3]
    assert rows_without(4, {}) == range(4)


def test_columns_of_different_lengths_are_an_invariant_error() -> None:
    with pytest.raises(InvariantError):
        DecodedRows(numbers(1), kafka_batch([b"a", b"b"]))
    with pytest.raises(InvariantError):
        BadRows(kafka_batch([b"a"]), pa.array([], pa.string()))
