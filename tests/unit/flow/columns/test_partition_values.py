"""Partition values mean the same to every reader, and rows come apart by them without loss."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UserError
from penstock.flow.columns.partition_values import (
    check_partition_type,
    partition_faults,
    partition_folder,
    partition_value,
    split_by_values,
)

INSTANT = datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)

CASES: list[tuple[pa.DataType, Any, str | None]] = [
    (pa.int8(), -5, "-5"),
    (pa.int16(), 300, "300"),
    (pa.int32(), -70000, "-70000"),
    (pa.int64(), 2**62, "4611686018427387904"),
    (pa.bool_(), True, "true"),
    (pa.bool_(), False, "false"),
    (pa.string(), "plain", "plain"),
    (pa.string(), "a/b=c d%41:é\n日本", "a/b=c d%41:é\n日本"),
    (pa.string(), "..", ".."),
    (pa.date32(), date(2026, 1, 2), "2026-01-02"),
    (pa.date32(), date(1, 1, 1), "0001-01-01"),
    (pa.timestamp("us", "UTC"), INSTANT, "2026-01-02T03:04:05.123456Z"),
    (pa.timestamp("us", "UTC"), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), "1969-12-31T23:59:59.999999Z"),
    (pa.timestamp("us"), INSTANT.replace(tzinfo=None), "2026-01-02 03:04:05.123456"),
    (pa.decimal128(10, 2), Decimal("12.30"), "12.30"),
    (pa.decimal128(38, 0), Decimal(10) ** 37, "1" + "0" * 37),
    (pa.int32(), None, None),
    (pa.string(), None, None),
    (pa.timestamp("us", "UTC"), None, None),
]


@pytest.mark.parametrize(("kind", "value", "text"), CASES)
def test_every_partition_value_has_the_expected_text(kind: pa.DataType, value: Any, text: str | None) -> None:
    assert partition_value(pa.scalar(value, kind)) == text


@pytest.mark.parametrize(("kind", "value", "text"), CASES)
def test_deltalake_and_polars_read_the_value_that_was_written(
    tmp_path: Path, kind: pa.DataType, value: Any, text: str | None
) -> None:
    schema = Schema.from_arrow(pa.schema([("k", kind), ("x", pa.int64())]))
    path = partition_folder({"k": text}) + "s.x.pq"
    (tmp_path / path).parent.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), tmp_path / path)
    DeltaTable.create(str(tmp_path), schema=schema, partition_by=["k"])
    table = DeltaTable(str(tmp_path))
    stats = json.dumps({"numRecords": 1})
    action = AddAction(path, (tmp_path / path).stat().st_size, {"k": text}, int(time.time() * 1000), True, stats)
    table.create_write_transaction([action], "append", schema, partition_by=["k"])
    actions = pa.table(DeltaTable(str(tmp_path)).get_add_actions(flatten=True))
    assert actions["partition.k"].to_pylist() == [value]
    assert pl.read_delta(str(tmp_path))["k"].to_list() == [value]


def test_an_empty_string_is_null_because_readers_disagree_on_it() -> None:
    assert partition_value(pa.scalar("")) is None


def test_an_instant_has_one_text_in_every_zone_and_unit() -> None:
    paris = timezone(timedelta(hours=1))
    second = datetime(2026, 1, 2, 4, 4, 5, tzinfo=paris)
    assert partition_value(pa.scalar(second, pa.timestamp("s", "+01:00"))) == "2026-01-02T03:04:05.000000Z"


@pytest.mark.parametrize("kind", [pa.binary(), pa.float64(), pa.list_(pa.int32()), pa.struct([("a", pa.int32())])])
def test_bytes_fractions_and_nested_columns_cannot_partition(kind: pa.DataType) -> None:
    with pytest.raises(UserError):
        check_partition_type("k", kind)


def test_folders_are_plain_ascii() -> None:
    assert partition_folder({}) == ""
    assert partition_folder({"day": "2026-01-02", "k": None}) == "day=2026-01-02/k=__HIVE_DEFAULT_PARTITION__/"
    assert partition_folder({"a b": "x/y:é"}) == "a%20b=x%2Fy%3A%C3%A9/"


def test_the_text_that_folders_use_for_null_is_not_null() -> None:
    assert partition_folder({"k": "__HIVE_DEFAULT_PARTITION__"}) == "k=%5F_HIVE_DEFAULT_PARTITION__/"


def test_a_value_too_long_for_a_file_name_gets_no_folder() -> None:
    assert partition_folder({"k": "x" * 253}) == "k=" + "x" * 253 + "/"
    assert partition_folder({"k": "x" * 254}) == ""


keys = st.lists(st.tuples(st.sampled_from([None, "a", "b", ""]), st.sampled_from([None, 1, -1, 0])), min_size=1)


@given(keys, st.integers(1, 400))
def test_every_row_comes_out_once_under_its_own_values_and_in_order(
    pairs: list[tuple[str | None, int | None]], repeat: int
) -> None:
    rows = [pair for pair in pairs for _ in range(repeat)]
    columns = [pa.array([row[0] for row in rows], pa.string()), pa.array([item[1] for item in rows], pa.int64())]
    numbers = pa.record_batch({"n": pa.array(range(len(rows)))})

    def text(pair: tuple[str | None, int | None]) -> tuple[str | None, str | None]:
        return pair[0] or None, None if pair[1] is None else str(pair[1])

    all_numbers: list[int] = []
    last: Counter[str] = Counter()
    for values, group in split_by_values(numbers, columns):
        for number in group["n"].to_pylist():
            assert values == text(rows[number])
            key = repr(rows[number])
            assert number >= last[key]
            last[key] = number
            all_numbers.append(number)
    assert sorted(all_numbers) == list(range(len(rows)))


def test_rows_of_one_value_are_passed_on_without_a_copy() -> None:
    rows = pa.record_batch({"x": [1, 2, 3]})
    ((values, group),) = split_by_values(rows, [pa.array(["a", "a", "a"])])
    assert values == ("a",)
    assert group["x"].buffers()[1].address == rows["x"].buffers()[1].address
    ((values, group),) = split_by_values(rows, [])
    assert values == () and group is rows


def test_values_too_long_together_for_a_path_get_no_folder() -> None:
    values: dict[str, str | None] = {f"p{number}": "x" * 200 for number in range(5)}
    assert partition_folder(dict(list(values.items())[:3])).count("/") == 3
    assert partition_folder(values) == ""


YEAR_0 = -719_528
"""0000-01-01 in days after 1970."""


@pytest.mark.parametrize(
    ("column", "bad"),
    [
        (pa.array([0, YEAR_0, None, 2_932_897, 2_932_896], pa.int32()).cast(pa.date32()), [1, 3]),
        (pa.array([0, 253_402_300_800_000_000, -(2**63), None], pa.timestamp("us", "UTC")), [1, 2]),
        (pa.array([0, 253_402_300_799_999_999], pa.timestamp("us")), []),
        (pa.array([b"a", b"\xff", None], pa.binary()).view(pa.string()), [1]),
        (pa.array(["", "a\0b", "\x1f/..=%", "x" * 10_000, "𠮷"]), []),
        (pa.array([Decimal("1.50"), None], pa.decimal128(38, 2)), []),
        (pa.array([None, None], pa.date32()), []),
    ],
    ids=["day", "time with zone", "time", "bytes", "text", "decimal", "null"],
)
def test_a_value_that_no_partition_can_have_is_a_fault_of_its_row(column: pa.Array, bad: list[int]) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(range(len(column))), column], names=["id", "p"])
    faults = partition_faults(rows, ("p",))
    assert sorted(faults) == bad
    assert all(reason.startswith("p: ") and reason.endswith("cannot name a partition") for reason in faults.values())
    good = rows.take(pa.array([row for row in range(len(column)) if row not in faults], pa.int64()))
    assert sum(group.num_rows for _, group in split_by_values(good, [good.column("p")])) == good.num_rows
    assert partition_faults(rows, ()) == {}
