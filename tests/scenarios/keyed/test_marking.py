"""Batches that change few rows of a file mark them, and the files of vectors follow the rules of all staged files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.events import CheckpointFailed
from penstock.job.spec import job_of
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.opening import find_table
from penstock.lake.reports import CompactReport
from penstock.tables.keyed import merger
from penstock.tables.keyed.layout import Layout, key_frame, order_columns
from penstock.tables.keyed.merging import chunks, merge, open_chunk, search
from penstock.tables.keyed.merging.merge import MANY_SMALL
from penstock.tables.keyed.merging.search import old_rows
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.kind import CompactRequest, Lookups, VacuumRequest
from penstock.tables.registry import kind_of
from tests.support.keyed_tables import Keyed, row
from tests.support.pipes import CrashError, Recorder, crash_at

ONE_BUCKET = "row_keys: [number], delete: gone, buckets: 1"
WEEK_SECONDS = 7 * 86_400


def filled(folder: Path, keyed: str = ONE_BUCKET, rows: int = 100) -> Keyed:
    table = Keyed(folder, keyed)
    table.put(*(row(number, number) for number in range(rows)))
    table.run()
    return table


def compact(table: Keyed) -> CompactReport:
    return kind_of(table.job).compact(table.job, CompactRequest(), Environment(), None)


def vacuum(table: Keyed, after_seconds: float = 0.0) -> set[str]:
    """The kinds of the files that were deleted, by their suffix."""
    now = Environment().now
    environment = Environment(now=lambda: now() + after_seconds)
    report = kind_of(table.job).vacuum(table.job, VacuumRequest(), environment)
    return {Path(file.path).suffix for file in report.deleted if file.table == table.path}


def vector_files(table: Keyed) -> set[str]:
    return {str(path.relative_to(table.path)) for path in Path(table.path).rglob("*.bin")}


def test_few_rows_are_marked_and_many_rewrite_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merger, "REWRITE_SHARE", 0.1)
    table = filled(tmp_path)
    before = table.files()
    table.put(*(row(number, -1) for number in range(10)))
    table.run()
    [file] = [file for file in table.table().active_files() if file.vector is not None]
    assert (file.rows, file.deleted, before <= table.files()) == (100, 10, True)
    table.put(*(row(number, -2) for number in range(10, 21)))
    table.run()
    assert not before & table.files() and not table.table().vectors()
    assert sorted(table.values().values()) == sorted([-1] * 10 + [-2] * 11 + [*range(21, 100)])


def test_a_table_without_vectors_rewrites_and_needs_no_new_reader(tmp_path: Path) -> None:
    table = filled(tmp_path, f"{ONE_BUCKET}, deletion_vectors: false")
    table.put(row(1, -1))
    table.run()
    handle = DeltaTable(table.path)
    assert handle.protocol().min_reader_version == 1 and not vector_files(table)
    assert handle.to_pyarrow_table().num_rows == 100


def test_a_table_declares_the_one_feature_that_readers_need(tmp_path: Path) -> None:
    protocol = DeltaTable(filled(tmp_path).path).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == ["deletionVectors"]


def test_a_file_whose_last_rows_are_deleted_leaves_the_table(tmp_path: Path) -> None:
    table = filled(tmp_path)
    for numbers in (range(60), range(60, 100)):
        table.put(*(row(number, None, gone=True) for number in numbers))
        table.run()
    assert not table.files() and table.rows() == [] and table.verified().ok


def test_polars_and_datafusion_read_the_same_rows_before_and_after_a_checkpoint(tmp_path: Path) -> None:
    table = filled(tmp_path)
    for number in range(3):
        table.put(row(number, -number), row(50 + number, None, gone=True))
        table.run()
    expected = sorted([*(-number for number in range(3)), *range(3, 50), *range(53, 100)])
    handle = DeltaTable(table.path)
    for _ in range(2):
        query = QueryBuilder().register("rows", handle).execute("select value from rows").read_all()
        assert sorted(pa.table(query)["value"].to_pylist()) == expected
        assert sorted(pl.read_delta(table.path)["value"].to_list()) == expected
        handle.create_checkpoint()
        for entry in Path(table.path, "_delta_log").glob("*.json"):
            # From here on only the checkpoint has the vectors.
            entry.write_text("\n".join(line for line in entry.read_text().splitlines() if '"commitInfo"' in line))
    table.put(row(2, 7))
    table.run()
    assert table.values()[("a", 2)] == 7 and len(table.values()) == 97


def test_checkpoints_are_written_after_own_entries_as_often_as_the_table_states(tmp_path: Path) -> None:
    table = filled(tmp_path)
    DeltaTable(table.path).alter.set_table_properties({"delta.checkpointInterval": "5"})
    for number in range(6):
        table.put(row(number, -1))
        table.run()
    assert list(Path(table.path, "_delta_log").glob("*.checkpoint.parquet"))
    assert len(table.values()) == 100 and table.verified().ok


def test_a_checkpoint_that_cannot_be_written_is_reported_and_the_commit_stays(tmp_path: Path) -> None:
    table = filled(tmp_path)
    DeltaTable(table.path).alter.set_table_properties({"delta.checkpointInterval": "1"})
    recorder = Recorder()
    log = find_table(job_of(table.job, KeyedSpec).table, "keyed", Environment(listener=recorder))
    assert log is not None
    # A folder is where the checkpoint should be.
    Path(table.path, "_delta_log", f"{log.version + 1:020d}.checkpoint.parquet").mkdir()
    log.commit_actions([], {"other": 1}, {})
    assert [name for name, _ in recorder.events] == [CheckpointFailed.name]
    log.refresh()
    assert log.transaction("other") == 1


def test_bounds_of_a_marked_file_are_declared_wide(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.put(row(99, -1))
    table.run()
    data = table.table()
    [path] = data.vectors()
    assert json.loads(data.logged_files()[path].stats)["tightBounds"] is False


# compaction and vacuum


def test_a_compaction_rewrites_a_file_with_many_deleted_rows_only(tmp_path: Path) -> None:
    table = filled(tmp_path, f"{ONE_BUCKET}, chunk_rows: 100")
    table.put(*(row(number, None, gone=True) for number in range(30)))
    table.run()
    assert compact(table).files_removed == 0
    table.put(row(30, None, gone=True))
    table.run()
    assert compact(table).files_removed == 1
    assert not table.table().vectors() and len(table.values()) == 69 and table.verified().ok


def test_a_compaction_leaves_a_file_whose_rows_were_marked_meanwhile(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.put(*(row(number, None, gone=True) for number in range(40)))
    table.run()
    table.put(row(50, None, gone=True))
    waiting = [table.run]

    def at_step(step: str) -> None:
        if step == "compact_staged" and waiting:
            waiting.pop()()

    environment = Environment(at_step=at_step)
    report = kind_of(table.job).compact(table.job, CompactRequest(), environment, None)
    assert (report.files_removed, report.dropped) == (0, 1)
    assert len(table.values()) == 59 and table.verified().ok


def test_a_vacuum_keeps_vectors_that_readers_of_a_retained_version_need(tmp_path: Path) -> None:
    table = filled(tmp_path)
    for number in (1, 2):
        table.put(row(number, -number))
        table.run()
    version = DeltaTable(table.path).version()
    first, second = (pl.read_delta(table.path, version=at).sort("number").rows() for at in (version - 1, version))
    vacuum(table)
    assert len(vector_files(table)) == 2
    assert pl.read_delta(table.path, version=version - 1).sort("number").rows() == first != second
    assert ".bin" in vacuum(table, WEEK_SECONDS + 60)
    [left] = vector_files(table)
    assert {vector.path for vector in table.table().vectors().values()} == {left}
    assert pl.read_delta(table.path).sort("number").rows() == second


def test_data_that_was_marked_long_ago_stays_as_long_as_its_removal_is_new(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.put(row(1, -1))
    table.run()
    [path] = table.table().vectors()
    log = table.table().storage()
    entry = f"_delta_log/{DeltaTable(table.path).version():020d}.json"
    lines = [json.loads(line) for line in log.read(entry).splitlines()]
    for line in lines:
        if "remove" in line:
            line["remove"]["deletionTimestamp"] -= 2 * WEEK_SECONDS * 1000
    log.put(entry, "\n".join(map(json.dumps, lines)).encode())
    table.put(*(row(number, None, gone=True) for number in range(100)))
    table.run()
    assert path not in {file.path for file in table.table().active_files()}
    vacuum(table)
    assert Path(table.path, path).exists()


@pytest.mark.parametrize("step", ["merged", "checked"])
def test_a_vacuum_deletes_the_vectors_of_a_batch_that_never_landed(tmp_path: Path, step: str) -> None:
    table = filled(tmp_path)
    table.put(row(1, -1))
    with pytest.raises(CrashError):
        table.run(Environment(at_step=crash_at(step)))
    orphans = vector_files(table)
    assert orphans and ".bin" not in vacuum(table), "a commit may still name it"
    table.run()
    assert ".bin" in vacuum(table)
    assert not orphans & vector_files(table) and table.verified().ok


# many small files, and finding rows


def test_small_files_of_large_rows_are_not_joined_in_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "SMALL_BYTES", 100)
    table = filled(tmp_path)
    for number in range(10):
        table.put(row(number, -1))
        table.run()
    assert len(table.files()) == 11


WAYS = {"joined": (1_000_000, 0), "texts searched": (0, 0), "codes searched": (0, 1_000_000)}
"""Ways to find keys, by the number of rows, and by the bytes of a text, that lead to them."""


def find(patch: pytest.MonkeyPatch, way: str) -> None:
    rows_min, bytes_max = WAYS[way]
    patch.setattr(search, "ROWS_SEARCHED_MIN", rows_min)
    patch.setattr(search, "ROWS_PER_KEY_MIN", 0)
    patch.setattr(open_chunk, "REPEATED_BYTES_MAX", bytes_max)


def test_many_small_files_of_a_bucket_become_one_with_the_next_batch(tmp_path: Path) -> None:
    table = filled(tmp_path)
    assert MANY_SMALL.alike_min is not None
    counts = []
    for number in range(4 * MANY_SMALL.alike_min):
        table.put(row(number, -1), row(1000 + number, 1))
        table.run()
        counts.append(len(table.files()))
    assert max(counts) <= 2 * MANY_SMALL.alike_min
    assert len(table.values()) == 100 + len(counts) and table.verified().ok


@given(
    numbers=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 60)), min_size=1, unique=True).map(sorted),
    wanted=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 60)), min_size=1, unique=True).map(sorted),
    group_rows=st.integers(1, 9),
    way=st.sampled_from([*WAYS]),
)
def test_rows_are_found_whatever_the_row_groups(
    tmp_path_factory: pytest.TempPathFactory,
    numbers: list[tuple[str, int]],
    wanted: list[tuple[str, int]],
    group_rows: int,
    way: str,
) -> None:
    table = Keyed(tmp_path_factory.mktemp("groups"), "partition_keys: [device], row_keys: [number]")
    schema = pa.schema(
        [("device", pa.string()), ("number", pa.int64()), ("_sequence", pa.int64()), ("_tiebreak", pa.int64())]
    )
    place = replace(table.job.table, path=table.path)
    store = chunks.ChunkStore(table.path, {}, schema, place.layout, 1000)  # type: ignore[attr-defined]
    rows = pa.Table.from_pylist(
        [{"device": device, "number": number, "_sequence": 0, "_tiebreak": 0} for device, number in numbers], schema
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "ROW_GROUP_ROWS_MAX", group_rows)
        [file] = store.write(rows, 0, lambda: "c.1." + "0" * 32 + ".pq")
    keys = {"key0": [device for device, _ in wanted], "key1": [number for _, number in wanted]}
    order = dict.fromkeys(order_columns(store.layout), 1)
    records = pl.DataFrame({**keys, "key": range(len(wanted))}).with_columns(**{k: pl.lit(v) for k, v in order.items()})
    with pytest.MonkeyPatch.context() as patch:
        find(patch, way)
        pairs = old_rows(store, ActiveFile(file.path, file.size_bytes, 0, ("0",)), records)
    assert pairs["newer"].all() and not pairs["tie"].any()
    assert [numbers[old] for old in pairs["old"]] == [wanted[key] for key in pairs["key"]]
    assert [wanted[key] for key in pairs["key"]] == [item for item in wanted if item in numbers]
    some = np.array([number for number in range(len(numbers)) if number % 3 == 0][::-1])
    assert store.read_at(file.path, some).to_pylist() == [rows.to_pylist()[number] for number in some]


MOMENT = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int16(), lambda number: number - 5),
        (pa.bool_(), lambda number: number > 5),
        (pa.date32(), lambda number: date(1969, 12, 28) + timedelta(days=number)),
        (pa.timestamp("us", "UTC"), lambda number: MOMENT + timedelta(microseconds=number)),
        (pa.binary(), lambda number: bytes([250 - number])),
        (pa.string(), lambda number: "\U0001d11e" * (number % 3) + str(number)),
    ],
    ids=["short", "boolean", "date", "timestamp", "bytes", "text"],
)
def test_rows_are_found_by_keys_of_every_type(
    tmp_path: Path, kind: pa.DataType, value: Callable[[int], Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nested columns come before the second key: the footer numbers their leaves."""
    nested = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    schema = pa.schema(
        [("nested", nested), ("one", kind), ("two", pa.int64()), ("_sequence", pa.int64()), ("_tiebreak", pa.int64())]
    )
    store = chunks.ChunkStore(str(tmp_path), {}, schema, Layout(("one", "two")), 1000)
    values = [{"one": value(number), "two": number, "_sequence": 0, "_tiebreak": 0} for number in range(12)]
    rows = store.sorted([pa.Table.from_pylist(values, schema)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "ROW_GROUP_ROWS_MAX", 2)
        [file] = store.write(rows, 0, lambda: "c.1." + "0" * 32 + ".pq")
    find(monkeypatch, way)
    order = pl.DataFrame(dict.fromkeys(order_columns(store.layout), [1] * 12))
    records = key_frame(store.layout, rows).hstack(order).with_row_index("key")
    for wanted in (records, records[3:4], records[8:12]):
        pairs = old_rows(store, ActiveFile(file.path, file.size_bytes, 0, ("0",)), wanted)
        assert pairs["old"].to_list() == pairs["key"].to_list() == wanted["key"].to_list()


def test_rows_are_found_in_a_file_of_another_writer_whatever_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(monkeypatch, "texts searched")
    schema = pa.schema([("number", pa.int64()), ("_sequence", pa.int64()), ("_tiebreak", pa.int64())])
    store = chunks.ChunkStore(str(tmp_path), {}, schema, Layout(("number",)), 1000)
    numbers = [7, 3, 9, 1, 5]
    rows = pa.table({"number": numbers, "_sequence": [0] * 5, "_tiebreak": [0] * 5}, schema)
    pq.write_table(rows, tmp_path / "part-0.parquet")
    order = pl.DataFrame(dict.fromkeys(order_columns(store.layout), [1] * 5))
    records = pl.DataFrame({"key0": sorted(numbers)}).hstack(order).with_row_index("key")
    pairs = old_rows(store, ActiveFile("part-0.parquet", 0, 0, ("0",)), records)
    assert [numbers[old] for old in pairs["old"]] == sorted(numbers)


def test_partial_updates_of_marked_rows_keep_their_other_values(tmp_path: Path) -> None:
    table = Keyed(tmp_path, f"{ONE_BUCKET}, partial_updates: merge")
    table.put(*(row(number, number, note="first") for number in range(50)))
    table.run()
    table.put(row(7, None, note="second"), row(8, 80))
    table.run()
    table.put(row(7, 70))
    table.run()
    assert table.table().vectors()
    rows = {item["number"]: (item["value"], item["note"]) for item in table.rows()}
    assert (rows[7], rows[8], len(rows)) == ((70, "second"), (80, "first"), 50)


def test_the_row_of_a_key_is_found_without_spark(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.put(row(7, -7), row(8, None, gone=True))
    table.run()
    kind = kind_of(table.job)
    assert isinstance(kind, Lookups)
    rows = [kind.find_row(table.job, {"number": text}) for text in ("7", "8", "9", "100")]
    assert [item and item.values["value"] for item in rows] == [-7, None, 9, None] and rows[1] is None
    for key, fault in (({"number": "seven"}, "not a value of number"), ({}, "the key has no number")):
        with pytest.raises(UserError, match=fault):
            kind.find_row(table.job, key)
