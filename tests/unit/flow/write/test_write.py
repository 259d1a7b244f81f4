"""Staged files hold every row once, within the limits, and read back as rows of the table."""

from __future__ import annotations

import itertools
import json
import pickle
import time
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import TransientError, UserError
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import parse_staged_name, staged_name
from penstock.flow.write.report import REPORT_VERSION, TaskReport, decode_report
from tests.support.tries import tries

SCHEMA = pa.schema([("day", pa.date32()), ("n", pa.int64()), ("s", pa.string())])
DAY = date(2026, 1, 2)


def options_of(folder: Path, **changes: Any) -> WriteOptions:
    return WriteOptions(**{"table_url": str(folder), "schema": SCHEMA, "partition_by": ("day",), **changes})


def writer_of(options: WriteOptions) -> StagedWriter:
    return StagedWriter(options, lambda: staged_name("A" * 22, 3, 0, 100, uuid.uuid4().hex), "requests", 3)


def batch(days: list[date | None], first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + len(days))
    return pa.record_batch(
        [pa.array(days, pa.date32()), pa.array(numbers, pa.int64()), pa.array([f"s{number}" for number in numbers])],
        schema=SCHEMA,
    )


def numbers_in(folder: Path, file: StagedFile) -> list[int]:
    numbers: list[int] = pq.ParquetFile(folder / file.path).read()["n"].to_pylist()
    return numbers


def test_rows_of_one_day_become_one_file_with_its_facts(tmp_path: Path) -> None:
    writer = writer_of(options_of(tmp_path))
    writer.write(batch([DAY, DAY]))
    writer.write(batch([DAY], first=2))
    (file,) = writer.finish()
    assert (file.topic, file.partition, file.rows) == ("requests", 3, 3)
    assert file.partition_values == {"day": "2026-01-02"}
    assert file.path.startswith("day=2026-01-02/s.") and parse_staged_name(file.path) is not None
    assert file.size_bytes == (tmp_path / file.path).stat().st_size
    assert json.loads(file.stats) == {
        "numRecords": 3,
        "minValues": {"n": 0, "s": "s0"},
        "maxValues": {"n": 2, "s": "s2"},
        "nullCount": {"n": 0, "s": 0},
    }
    assert pq.ParquetFile(tmp_path / file.path).schema_arrow.names == ["n", "s"]


def test_no_rows_give_no_files(tmp_path: Path) -> None:
    writer = writer_of(options_of(tmp_path))
    writer.write(batch([]))
    assert writer.finish() == ()
    assert list(tmp_path.iterdir()) == []


def test_a_table_without_partitions_has_flat_files(tmp_path: Path) -> None:
    writer = writer_of(options_of(tmp_path, partition_by=()))
    writer.write(batch([DAY, None]))
    (file,) = writer.finish()
    assert "/" not in file.path and file.partition_values == {}
    assert pq.ParquetFile(tmp_path / file.path).read().num_columns == 3


@settings(max_examples=tries(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.sampled_from([None, *(date(2026, 1, item) for item in range(1, 6))]), max_size=30)),
    st.integers(1, 4),
    st.integers(1, 20),
)
def test_every_row_is_in_one_file_of_its_day_under_any_limits(
    tmp_path: Path, batches: list[list[date | None]], open_writers_max: int, row_group_rows_max: int
) -> None:
    folder = tmp_path / uuid.uuid4().hex
    limits = {"open_writers_max": open_writers_max, "row_group_rows_max": row_group_rows_max}
    writer = writer_of(options_of(folder, pending_bytes_max=200, file_bytes_max=600, **limits))
    first, expected = 0, {}
    for days in batches:
        writer.write(batch(days, first))
        expected.update({first + row: day for row, day in enumerate(days)})
        first += len(days)
    result: dict[int, str | None] = {}
    for file in writer.finish():
        numbers = numbers_in(folder, file)
        assert len(numbers) == file.rows and not result.keys() & set(numbers)
        result.update(dict.fromkeys(numbers, file.partition_values["day"]))
    assert result == {number: day and day.isoformat() for number, day in expected.items()}


def test_the_least_recently_used_file_closes_first(tmp_path: Path) -> None:
    first, second, third = (date(2026, 1, item) for item in (1, 2, 3))
    writer = writer_of(options_of(tmp_path, open_writers_max=2, row_group_rows_max=1))
    for number, day in enumerate([first, second, first, third, first, second]):
        writer.write(batch([day], number))
    files = [(file.partition_values["day"], numbers_in(tmp_path, file)) for file in writer.finish()]
    assert files == [
        ("2026-01-02", [1]),
        ("2026-01-03", [3]),
        ("2026-01-01", [0, 2, 4]),
        ("2026-01-02", [5]),
    ]


def test_a_day_is_one_file_however_few_may_be_open_if_its_rows_can_wait(tmp_path: Path) -> None:
    writer = writer_of(options_of(tmp_path, open_writers_max=1))
    for number in range(60):
        writer.write(batch([date(2026, 1, 1 + number % 20)], number))
    assert [file.rows for file in writer.finish()] == [3] * 20


def test_row_groups_are_cut_by_rows_and_by_bytes(tmp_path: Path) -> None:
    def group_rows(**limits: int) -> list[int]:
        writer = writer_of(options_of(tmp_path, **limits))
        for number in range(10):
            writer.write(batch([DAY] * 10, number * 10))
        (file,) = writer.finish()
        footer = pq.read_metadata(tmp_path / file.path)
        return [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]

    assert group_rows() == [100]
    assert group_rows(row_group_rows_max=40) == [40, 40, 20]
    assert group_rows(row_group_bytes_max=1) == [10] * 10
    assert group_rows(pending_bytes_max=1) == [10] * 10


def test_a_batch_longer_than_a_row_group_is_cut(tmp_path: Path) -> None:
    writer = writer_of(options_of(tmp_path, row_group_rows_max=30))
    writer.write(batch([DAY] * 100))
    (file,) = writer.finish()
    footer = pq.read_metadata(tmp_path / file.path)
    assert [footer.row_group(index).num_rows for index in range(footer.num_row_groups)] == [30, 30, 30, 10]


def test_a_file_that_has_grown_enough_is_followed_by_another(tmp_path: Path) -> None:
    writer = writer_of(options_of(tmp_path, row_group_rows_max=10, file_bytes_max=1))
    for number in range(3):
        writer.write(batch([DAY] * 10, number * 10))
    assert [file.rows for file in writer.finish()] == [10, 10, 10]


def test_a_full_disk_stops_the_task_and_abandon_leaves_nothing_open(tmp_path: Path) -> None:
    # The link stands in for a file on a full disk; the device behind it is only ever written to.
    (tmp_path / "full").symlink_to("/dev/full")
    writer = StagedWriter(options_of(tmp_path, partition_by=()), lambda: "full", "requests", 3)
    with pytest.raises(TransientError):
        writer.write(batch([DAY] * 1000))
        writer.finish()
    writer.abandon()
    writer.abandon()


def test_an_abandoned_writer_deletes_nothing_and_stages_nothing(tmp_path: Path) -> None:
    writer = writer_of(options_of(tmp_path, row_group_rows_max=1))
    writer.write(batch([DAY] * 100))
    writer.abandon()
    assert writer.finish() == ()
    assert len(list(tmp_path.glob("day=2026-01-02/s.*.pq"))) == 1


def test_a_column_that_cannot_partition_is_refused_before_the_first_row(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.binary()), ("n", pa.int64())])
    with pytest.raises(UserError):
        writer_of(options_of(tmp_path, schema=schema, partition_by=("k",)))


def test_options_can_be_pickled(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize("rare_rows", [[25_000], list(range(0, 50_000, 100))])
def test_waiting_rows_do_not_keep_the_memory_of_their_batches(tmp_path: Path, rare_rows: list[int]) -> None:
    writer = writer_of(options_of(tmp_path, row_group_bytes_max=500_000))
    before = pa.total_allocated_bytes()
    for number in range(20):
        days: list[date | None] = [DAY] * 50_000
        for row in rare_rows:
            days[row] = None
        writer.write(batch(days, number * 50_000))
    # The batches are 20 times 1 MB, the rows that wait 300 kB at most.
    assert pa.total_allocated_bytes() - before < 3_000_000
    assert sum(file.rows for file in writer.finish()) == 1_000_000


def commit(folder: Path, schema: pa.Schema, partition_by: list[str], files: tuple[StagedFile, ...]) -> None:
    delta = Schema.from_arrow(schema)
    DeltaTable.create(str(folder), schema=delta, partition_by=partition_by)
    now = int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size_bytes, dict(file.partition_values), now, True, file.stats) for file in files
    ]
    DeltaTable(str(folder)).create_write_transaction(actions, "append", delta, partition_by=partition_by)


def test_deltalake_and_polars_read_every_type_back_and_skip_by_the_statistics(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("k", pa.string()),
            ("day", pa.date32()),
            ("i", pa.int32()),
            ("f", pa.float64()),
            ("t", pa.timestamp("us", "UTC")),
            ("d", pa.decimal128(10, 2)),
            ("meta", pa.struct([("a", pa.struct([("t", pa.string())]))])),
            ("l", pa.list_(pa.int64())),
            ("b", pa.bool_()),
            ("y", pa.binary()),
        ]
    )
    at = datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)
    full = {"i": 1, "f": 0.5, "t": at, "d": Decimal("-3.10"), "meta": {"a": {"t": "x"}}, "l": [1, None], "b": True}
    rows: list[dict[str, Any]] = [
        {"k": "a b/ü", "day": DAY, "y": b"\xff", **full},
        {"k": None, "day": None, **dict.fromkeys([*full, "y"])},
        {"k": "a b/ü", "day": None, "y": b"", **full, "i": 7, "f": float("inf")},
    ]
    writer = writer_of(options_of(tmp_path, schema=schema, partition_by=("k", "day")))
    writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    files = writer.finish()
    assert [file.rows for file in files] == [1, 1, 1]
    commit(tmp_path, schema, ["k", "day"], files)
    frame = pl.read_delta(str(tmp_path)).sort("i", nulls_last=True)
    assert frame.select(schema.names).to_dicts() == [rows[0], rows[2], rows[1]]
    chosen = pl.scan_delta(str(tmp_path)).filter(pl.col("i") > 1).collect()
    assert chosen["i"].to_list() == [7]
    actions = pa.table(DeltaTable(str(tmp_path)).get_add_actions(flatten=True)).to_pylist()
    assert sorted(action["num_records"] for action in actions) == [1, 1, 1]
    assert {item["max.i"] for item in actions} == {1, 7, None}


def test_files_of_a_batch_never_share_a_name(tmp_path: Path) -> None:
    writer = writer_of(options_of(tmp_path, open_writers_max=1, row_group_rows_max=1))
    for number, day in enumerate(itertools.islice(itertools.cycle([DAY, None]), 20)):
        writer.write(batch([day], number))
    files = writer.finish()
    assert len({file.path for file in files}) == len(files) == 20


def test_a_report_of_another_penstock_version_names_the_version_to_install() -> None:
    newer = msgspec.msgpack.encode((REPORT_VERSION + 1, TaskReport()))
    with pytest.raises(UserError) as raised:
        decode_report(newer, TaskReport)
    assert "every executor" in raised.value.hint
