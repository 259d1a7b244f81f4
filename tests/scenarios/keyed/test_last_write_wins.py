"""One row for each key: inserts, updates and deletes in any order, in any batches, by any number of processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.environment import Environment
from tests.support.keyed_tables import ONE, ZERO, Keyed, finish, row
from tests.support.tries import tries

SLOW = settings(
    max_examples=tries(8),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
NUMBERS = st.integers(0, 4)
RECORDS = st.lists(st.tuples(st.sampled_from("ab"), NUMBERS, st.integers(0, 9), st.booleans()), max_size=25)
VECTORS = st.sampled_from(["true", "false"])
CUTS = st.lists(st.integers(1, 6), min_size=1, max_size=6)


def test_a_key_has_one_row_with_the_newest_values(tmp_path: Path) -> None:
    table = Keyed(tmp_path)
    table.put(row(1, 10), row(2, 20), row(1, 11))
    table.run()
    table.put(row(2, 21), row(3, 30))
    table.run()
    assert table.values() == {("a", 1): 11, ("a", 2): 21, ("a", 3): 30}
    # Two writes of key 1 were in one batch: the first of them lost.
    assert table.totals() == (5, 4, 0, 1)
    assert table.verified().ok


@pytest.mark.parametrize("vectors", [True, False])
def test_files_without_a_key_of_the_batch_are_not_rewritten(tmp_path: Path, vectors: bool) -> None:
    keyed = f"partition_keys: [device], row_keys: [number], buckets: 1, deletion_vectors: {str(vectors).lower()}"
    table = Keyed(tmp_path, keyed)
    for first in range(0, 500, 100):
        table.put(*(row(number, 0) for number in range(first, first + 100)))
        table.run()
    before = table.files()
    table.put(row(250, 7))
    table.run()
    assert (len(before), len(before - table.files()), len(table.files() - before)) == (5, 0 if vectors else 1, 1)
    assert table.values()["a", 250] == 7 and len(table.values()) == 500


def test_a_file_whose_range_has_the_key_but_no_row_is_not_rewritten(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "partition_keys: [device], row_keys: [number], buckets: 1")
    table.put(row(1, 0), row(9, 0))
    table.run()
    before = table.files()
    table.put(row(5, 0))
    table.run()
    assert before < table.files()


def test_deleted_rows_are_removed_and_counted_as_written(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [device, number], delete: gone")
    table.put(row(1, 10), row(2, 20))
    table.run()
    table.put(row(1, None, gone=True), row(7, None, gone=True))
    table.run()
    assert table.values() == {("a", 2): 20}
    assert table.totals() == (4, 4, 0, 0)
    table.put(row(1, 12))
    table.run()
    assert table.values() == {("a", 1): 12, ("a", 2): 20}
    assert table.verified().ok


def test_a_delete_is_a_condition_and_null_is_not_true(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], delete: \"note = 'gone' or not (note = 'here') and number > 2\"")
    table.put(row(1, 10), row(2, 20), row(3, 30), row(4, 40))
    table.put(row(1, 0, note="gone"), row(2, 21, note="left"), row(3, 0, note="left"), row(4, 41, note="here"))
    table.run()
    assert table.values() == {("a", 2): 21, ("a", 4): 41}
    assert table.verified().ok


def test_a_tombstone_deletes_the_row_of_its_kafka_key(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [kafka_key]")
    table.put(row(1, 10), key=b"x")
    table.put(row(2, 20), key=b"y")
    table.run()
    table.put(None, key=b"x")
    table.run()
    assert table.values() == {("a", 2): 20}
    assert table.verified().ok


def test_a_tombstone_whose_row_cannot_be_identified_is_quarantined(tmp_path: Path) -> None:
    table = Keyed(tmp_path)
    table.put(row(1, 10), None)
    table.run()
    assert table.values() == {("a", 1): 10}
    assert table.totals() == (2, 1, 1, 0)


def test_nulls_of_partial_updates_keep_existing_values(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], delete: gone, partial_updates: merge")
    table.put(row(1, 10, note="a"), row(2, 20))
    table.run()
    table.put(row(1, None, note="b"), row(2, None, gone=True), row(2, None, note="new"))
    table.run()
    result = {item["number"]: (item["value"], item["note"]) for item in table.rows()}
    assert result == {1: (10, "b"), 2: (None, "new")}


def test_nested_values_are_merged_as_a_whole(tmp_path: Path) -> None:
    schema = 'number: long, place: {x: long, y: string}, tags: [string], counts: "map<string,long>"'
    table = Keyed(tmp_path, "row_keys: [number], partial_updates: merge", schema=schema)
    whole = {"number": 1, "place": {"x": 1, "y": "a"}, "tags": ["s", "t"], "counts": {"k": 1}}
    table.put(whole, {"number": 2, "tags": []})
    table.run()
    table.put({"number": 1, "tags": ["u"]}, {"number": 1, "place": {"x": 2}}, {"number": 2, "counts": {"z": 2}})
    table.run()
    frame = pl.read_delta(table.path).sort("number")
    assert frame["place"].to_list() == [{"x": 2, "y": None}, None]
    assert frame["tags"].to_list() == [["u"], []]
    assert [dict(item) for item in frame["counts"].to_list()] == [{"k": 1}, {"z": 2}]
    assert table.verified().ok


PARTIAL = "row_keys: [number], sequence: seq, delete: gone, partial_updates: merge"


@pytest.mark.parametrize("runs", [1, 3], ids=["one-batch", "three-batches"])
def test_a_late_partial_update_fills_in_what_newer_ones_left_out(tmp_path: Path, runs: int) -> None:
    table = Keyed(tmp_path, PARTIAL)
    batches = [row(1, None, note="new", seq=5)], [row(1, 10, note="old", seq=3)], [row(1, 20, color="red", seq=2)]
    for number, records in enumerate(batches):
        table.put(*records, to=ONE if number % 2 else ZERO)
        if runs > 1:
            table.run()
    table.run()
    [stored] = table.rows()
    assert (stored["value"], stored["note"], stored["color"], stored["seq"]) == (10, "new", "red", 5)
    assert table.verified().ok


@pytest.mark.parametrize("runs", [1, 3], ids=["one-batch", "three-batches"])
def test_a_late_delete_removes_only_older_values(tmp_path: Path, runs: int) -> None:
    table = Keyed(tmp_path, PARTIAL)
    for number, record in enumerate([row(1, 10, seq=1), row(1, None, note="n", seq=5), row(1, None, gone=True, seq=3)]):
        table.put(record, to=ONE if number % 2 else ZERO)
        if runs > 1:
            table.run()
    table.run()
    [stored] = table.rows()
    assert (stored["value"], stored["note"], stored["seq"]) == (None, "n", 5)
    assert table.verified().ok


def test_verify_finds_a_merged_value_that_is_not_of_its_record(tmp_path: Path) -> None:
    table = Keyed(tmp_path, PARTIAL)
    table.put(row(1, 10, seq=1), row(1, None, note="n", seq=2))
    table.run()
    assert table.verified().ok
    DeltaTable(table.path).update({"value": "11"}, predicate="number = 1")
    assert {check.name for check in table.verified().checks if not check.ok} >= {"records"}


def test_an_older_sequence_changes_nothing(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], sequence: seq")
    table.put(row(1, 10, seq=5))
    table.run()
    table.put(row(1, 99, seq=4), to=ONE)
    table.run()
    before = table.files()
    assert table.values() == {("a", 1): 10}
    assert table.totals(ONE) == (1, 0, 0, 1)
    table.put(row(1, 11, seq=6), to=ONE)
    table.run()
    assert table.values() == {("a", 1): 11}
    assert before.isdisjoint(table.files())


@dataclass(slots=True)
class Oracle:
    """A dictionary of the operation with the greatest order, by key."""

    operations: dict[tuple[str, int], tuple[Any, int | None]]

    def apply(self, key: tuple[str, int], order: Any, value: int | None) -> None:
        newest = self.operations.get(key)
        if newest is None or order > newest[0]:
            self.operations[key] = (order, value)

    @property
    def rows(self) -> dict[tuple[str, int], int]:
        return {key: value for key, (_, value) in self.operations.items() if value is not None}


def fresh_folder(folder: Path) -> Path:
    result = folder / str(len(list(folder.iterdir())))
    result.mkdir()
    return result


@SLOW
@given(records=RECORDS, cuts=CUTS, chunk_rows=st.integers(1, 7), buckets=st.integers(1, 3), vectors=VECTORS)
def test_a_keyed_table_equals_a_dictionary_of_its_records(
    tmp_path: Path,
    records: list[tuple[str, int, int, bool]],
    cuts: list[int],
    chunk_rows: int,
    buckets: int,
    vectors: str,
) -> None:
    keyed = "partition_keys: [device], row_keys: [number], delete: gone"
    keyed += f", chunk_rows: {chunk_rows}, buckets: {buckets}, deletion_vectors: {vectors}"
    table, oracle = Keyed(fresh_folder(tmp_path), keyed, batch=4), Oracle({})
    waiting = list(enumerate(records))
    for turn in range(len(records) + 1):
        count = cuts[turn % len(cuts)]
        taken, waiting = waiting[:count], waiting[count:]
        for offset, (device, number, value, gone) in taken:
            table.put(row(number, value, device, gone=gone))
            oracle.apply((device, number), offset, None if gone else value)
        table.run()
        if not waiting:
            break
    assert table.values() == oracle.rows
    assert table.verified().ok


@SLOW
@given(
    records=st.lists(
        st.tuples(NUMBERS, st.integers(0, 9), st.booleans(), st.integers(0, 6), st.booleans()), min_size=6, max_size=24
    ),
    step=st.sampled_from(["merged", "checked", "tombstones_written", "committed"]),
    vectors=VECTORS,
)
def test_processes_that_write_the_same_keys_give_the_rows_of_one_process(
    tmp_path: Path, records: list[tuple[int, int, bool, int, bool]], step: str, vectors: str
) -> None:
    keyed = "row_keys: [device, number], delete: gone, sequence: seq, buckets: 2, chunk_rows: 3"
    keyed += f", deletion_vectors: {vectors}"
    table, oracle = Keyed(fresh_folder(tmp_path), keyed, batch=3), Oracle({})
    offsets = {ZERO: 0, ONE: 0}
    for number, value, gone, order, second in records:
        to = ONE if second else ZERO
        # The parity keeps records of two partitions from having the same sequence.
        seq = 2 * order + second
        table.put(row(number, value, gone=gone, seq=seq), to=to)
        oracle.apply(("a", number), (seq, offsets[to]), None if gone else value)
        offsets[to] += 1
    rival = table.open(None, ONE)

    def interfere(reached: str) -> None:
        if reached == step:
            rival.round(flush_now=True)

    table.run(Environment(at_step=interfere), ZERO)
    finish(rival)
    assert table.values() == oracle.rows
    assert table.verified().ok


@SLOW
@given(
    records=st.lists(
        st.tuples(NUMBERS, st.none() | st.integers(0, 9), st.none() | st.sampled_from("xyz"), st.booleans()),
        max_size=20,
    ),
    cuts=CUTS,
    vectors=VECTORS,
)
def test_merged_rows_equal_a_dictionary_of_the_records(
    tmp_path: Path, records: list[tuple[int, int | None, str | None, bool]], cuts: list[int], vectors: str
) -> None:
    keyed = "row_keys: [number], delete: gone, partial_updates: merge, buckets: 2, chunk_rows: 3"
    keyed += f", deletion_vectors: {vectors}"
    table = Keyed(fresh_folder(tmp_path), keyed)
    expected: dict[int, tuple[int | None, str | None]] = {}
    for turn, (number, value, note, gone) in enumerate(records):
        table.put(row(number, value, note=note, gone=True if gone else None))
        if gone:
            expected.pop(number, None)
        else:
            before = expected.get(number, (None, None))
            expected[number] = (before[0] if value is None else value, before[1] if note is None else note)
        if turn % cuts[0] == 0:
            table.run()
    table.run()
    assert {item["number"]: (item["value"], item["note"]) for item in table.rows()} == expected
    assert table.verified().ok


@pytest.mark.parametrize("mode", ["replace", "merge"])
def test_a_batch_read_twice_changes_nothing(tmp_path: Path, mode: str) -> None:
    """Another job reads the same topic into the same table, which has every record already."""
    keyed = f"row_keys: [number], delete: gone, partial_updates: {mode}"
    table = Keyed(tmp_path, keyed)
    table.put(*(row(number % 7, number, gone=number == 5) for number in range(20)))
    table.run()
    before, files = table.values(), table.files()
    again = Keyed(tmp_path, keyed, name="again", log=table.log)
    again.run()
    assert (again.values(), again.files()) == (before, files)
