"""Keys, buckets and sequences: stored numbers that must never change, and rows that a table refuses."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from penstock.errors import InvariantError
from penstock.tables.keyed.layout import (
    KEY_BYTES_MAX,
    OFFSET_BITS,
    Layout,
    buckets_of,
    is_key_type,
    key_faults,
    key_frame,
    sequences,
    stable_hash,
)


def test_buckets_are_stable() -> None:
    """A released table is looked up by these numbers: they are written down, not computed."""
    texts = stable_hash(pl.Series(["a", "device-1", "", "ü"])).tolist()
    numbers = stable_hash(pl.Series([0, 1, -1, 2**62])).tolist()
    assert texts == [3405396810240292928, 16964301741449484203, 13020603013274838756, 3976460501203677525]
    assert numbers == [16294208416658607535, 10451216379200822465, 16490336266968443936, 47939714376772075]


def test_bytes_and_text_with_the_same_bytes_share_a_bucket() -> None:
    assert stable_hash(pl.Series(["x"])).tolist() == stable_hash(pl.Series([b"x"])).tolist()


def test_rows_of_a_partition_key_share_a_bucket_and_other_keys_spread() -> None:
    layout = Layout(("number",), ("device",), buckets=8)
    rows = pa.table({"device": ["a", "a", "b"] * 2, "number": range(6)})
    result = buckets_of(layout, key_frame(layout, rows)).to_list()
    assert result[0] == result[1] == result[3] == result[4] and result[2] == result[5]
    spread = pa.table({"device": [f"d{number}" for number in range(400)], "number": range(400)})
    counts = buckets_of(layout, key_frame(layout, spread)).value_counts()["count"].to_list()
    assert len(counts) == 8 and min(counts) > 25 and max(counts) < 80


def test_without_a_partition_key_the_row_key_spreads_rows() -> None:
    layout = Layout(("number",), (), buckets=4)
    rows = pa.table({"number": range(100)})
    assert buckets_of(layout, key_frame(layout, rows)).n_unique() == 4


def test_rows_without_a_whole_key_are_named_with_the_reason() -> None:
    layout = Layout(("name",), ("device",), sequence="seq")
    names = ["x", None, "x", "x" * KEY_BYTES_MAX, "x" * (KEY_BYTES_MAX - 1)]
    columns = {"device": ["a", "a", None, "a", "a"], "name": names, "seq": [1, 1, 1, 1, 1]}
    faults = key_faults(layout, pa.RecordBatch.from_pydict(columns))
    assert set(faults) == {1, 2, 3}
    assert "row key" in faults[1] and "partition key" in faults[2] and "longer" in faults[3]
    columns["seq"] = [None, 1, 1, 1, 1]
    assert "sequence" in key_faults(layout, pa.RecordBatch.from_pydict(columns))[0]


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.decimal128(9, 2), pa.list_(pa.int64()), pa.struct([("a", pa.int8())])]
)
def test_values_with_several_notations_are_refused_as_keys(kind: pa.DataType) -> None:
    assert not is_key_type(kind)


def test_a_sequence_is_the_generation_above_the_offset() -> None:
    offsets = pa.array([0, 4, 5, 9, 2**40], pa.int64())
    result = sequences(offsets, ((0, 0), (5, 1), (9, 3))).to_pylist()
    assert result == [0, 4, (1 << OFFSET_BITS) + 5, (3 << OFFSET_BITS) + 9, (3 << OFFSET_BITS) + 2**40]
    assert sequences(offsets, ()).to_pylist() == offsets.to_pylist()
    with pytest.raises(InvariantError):
        sequences(pa.array([1 << OFFSET_BITS], pa.int64()), ())
