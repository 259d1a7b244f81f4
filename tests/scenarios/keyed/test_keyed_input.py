"""The scenarios of upstream's keyed store, its weak points, bad input, first loads, and damage that `verify` finds."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from penstock.environment import Environment
from penstock.errors import TransientError, UserError
from penstock.reporting.model import Section
from penstock.tables.keyed.merging.runs import RunWriter
from penstock.tables.kind import CompactRequest, VacuumRequest
from penstock.tables.registry import kind_of
from penstock.watch.status import status
from tests.support.keyed_tables import ONE, ZERO, Keyed, finish, row
from tests.support.quarantine_url import quarantine_of

# scenarios of FiloDB (research: memtable, reprojector and column store)


def test_rows_are_stored_in_the_order_of_their_keys(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "partition_keys: [device], row_keys: [number], buckets: 1")
    table.put(*(row(number, number, device) for number in (3, 1, 2) for device in "ba"))
    table.run()
    [file] = table.files()
    result = pq.read_table(file, columns=["device", "number"], partitioning=None).to_pylist()
    assert [(item["device"], item["number"]) for item in result] == [(d, n) for d in "ab" for n in (1, 2, 3)]


def test_successive_flushes_add_and_replace(tmp_path: Path) -> None:
    """99 rows in two flushes, then three of them again: 99 rows, whichever process flushes, also after a restart."""
    table = Keyed(tmp_path, chunk := "partition_keys: [device], row_keys: [number], chunk_rows: 20")
    table.put(*(row(number, number) for number in range(60)))
    table.run()
    table.put(*(row(number, number) for number in range(60, 99)))
    table.run()
    assert sum(table.values().values()) == 99 * 98 // 2
    table.put(*(row(number, number) for number in (7, 70, 98)))
    Keyed(tmp_path, chunk, log=table.log).run()
    assert sum(table.values().values()) == 99 * 98 // 2 and len(table.values()) == 99


def test_a_failed_write_fails_the_batch_and_moves_no_position(tmp_path: Path) -> None:
    """Upstream logged a failed flush and reported success."""
    table = Keyed(tmp_path)
    table.put(row(1, 10))
    table.run()
    table.put(row(1, 11))

    def fail(step: str) -> None:
        if step == "merged":
            raise TransientError("the disk is full")

    with pytest.raises(TransientError):
        table.run(Environment(at_step=fail))
    assert table.values() == {("a", 1): 10}
    assert table.table().state([ZERO]).of(ZERO).position == 1
    table.run()
    assert table.values() == {("a", 1): 11}


@pytest.mark.parametrize("step", ["runs_staged", "merged", "checked", "tombstones_written"])
def test_a_process_continues_unchanged_after_a_failed_attempt(tmp_path: Path, step: str) -> None:
    """Upstream kept rows in memory that it failed to write, and reported them as written."""
    table = Keyed(tmp_path, "row_keys: [number], delete: gone, buckets: 2, chunk_rows: 3")
    failing: list[str] = []

    def fail(reached: str) -> None:
        if reached in failing:
            failing.remove(reached)
            raise TransientError("the disk is full")

    rounds = table.open(Environment(at_step=fail))
    table.put(*(row(number, number) for number in range(9)))
    finish(rounds)
    table.put(row(1, 11), row(2, None, gone=True), row(20, 20))
    failing += [step, step]
    for _ in range(2):
        with pytest.raises(TransientError):
            finish(rounds)
    assert len(table.values()) == 9
    table.put(row(3, 33))
    finish(rounds)
    assert table.values() == {("a", n): {1: 11, 3: 33}.get(n, n) for n in (0, 1, 3, 4, 5, 6, 7, 8, 20)}
    assert table.totals() == (13, 13, 0, 0) and table.verified().ok


def test_rows_beyond_the_memory_of_a_task_go_to_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's gate for low memory had no effect."""
    monkeypatch.setattr("penstock.tables.keyed.merging.runs.RUN_BYTES_MAX", 2_000)
    spilled: list[int] = []
    spill = RunWriter._spill

    def noting(self: RunWriter) -> None:
        spilled.append(self._waiting_bytes)
        spill(self)

    monkeypatch.setattr(RunWriter, "_spill", noting)
    table = Keyed(tmp_path, "row_keys: [number], delete: gone, buckets: 2", batch=500)
    for turn in range(3):
        table.put(*(row(number, 100 * turn + number, gone=(number + turn) % 5 == 0) for number in range(30)))
        table.put(*(row(number, 100 * turn + number) for number in range(30, 45)), to=ONE)
    table.run()
    assert len(spilled) > 4
    expected = {("a", number): 200 + number for number in range(45) if number >= 30 or (number + 2) % 5}
    assert table.values() == expected and table.verified().ok


def test_a_run_without_new_records_makes_no_commit(tmp_path: Path) -> None:
    table = Keyed(tmp_path)
    table.put(row(1, 1))
    table.run()
    version = table.table().version
    table.run()
    assert table.table().version == version


def test_vacuum_deletes_only_files_of_failed_attempts(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], delete: gone")
    table.put(row(1, 10), row(2, None, gone=True))

    def fail(step: str) -> None:
        if step == "merged":
            raise TransientError("killed")

    with pytest.raises(TransientError):
        table.run(Environment(at_step=fail))
    kind = kind_of(table.job)
    assert kind.vacuum(table.job, VacuumRequest(), Environment()).deleted == ()
    table.run()
    kind.vacuum(table.job, VacuumRequest(), Environment())
    on_disk = {str(item) for item in Path(table.path).rglob("*.pq")}
    assert on_disk == table.files()
    assert len(list(Path(f"{table.path}_tombstones").rglob("*.pq"))) == 1
    assert table.values() == {("a", 1): 10} and table.verified().ok


def test_small_files_of_a_bucket_are_compacted(tmp_path: Path) -> None:
    # With deletion vectors batches join small files themselves.
    table = Keyed(tmp_path, "partition_keys: [device], row_keys: [number], buckets: 1, deletion_vectors: false")
    for number in range(30):
        table.put(row(number, number))
        table.run()
    assert len(table.files()) == len(table.values()) == 30
    report = kind_of(table.job).compact(table.job, CompactRequest(), Environment(), None)
    assert report.rows == 30 and len(table.files()) == 1
    assert table.verified().ok


def test_earlier_versions_of_the_table_can_be_read(tmp_path: Path) -> None:
    table = Keyed(tmp_path)
    table.put(row(1, 10))
    table.run()
    before = DeltaTable(table.path).version()
    table.put(row(1, 11))
    table.run()
    assert pl.read_delta(table.path, version=before)["value"].to_list() == [10]


# bad input


def test_records_without_a_key_are_quarantined_and_the_others_written(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "partition_keys: [device], row_keys: [note], sequence: seq")
    good = {"device": "a", "note": "n", "seq": 1, "value": 1}
    table.put(
        good,
        {**good, "note": None},
        {**good, "device": None},
        {**good, "seq": None},
        {**good, "note": "x" * 40_000},
        b"{",
        b"[1]",
    )
    table.run()
    assert table.totals() == (7, 1, 6, 0)
    errors = pl.read_delta(quarantine_of(table.job)).sort("offset")["error"].to_list()
    for error, text in zip(errors, ("row key", "partition key", "sequence", "longer"), strict=False):
        assert text in error
    assert table.verified().ok


def test_a_key_of_another_type_is_a_bad_record_and_a_job_with_one_is_refused(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number]")
    table.put(row(1, 10), {"device": "a", "number": "2", "value": 20}, {"device": "a", "number": 3.5, "value": 30})
    table.put({"device": "a", "number": {"n": 1}, "value": 1}, {"device": "a", "number": True, "value": 1}, row(4, 40))
    table.run()
    assert table.values() == {("a", 1): 10, ("a", 4): 40}
    assert table.totals() == (6, 2, 4, 0)
    other = Keyed(tmp_path, "row_keys: [number]", schema=table.schema.replace("number: long", "number: string"))
    with pytest.raises(UserError, match="number"):
        Keyed(tmp_path, other.keyed, schema=other.schema, log=table.log).run()
    assert table.values() == {("a", 1): 10, ("a", 4): 40} and table.verified().ok


def test_a_batch_of_one_key_is_one_row_and_counts_every_record(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number]", batch=10_000)
    table.put(*(row(7, value) for value in range(500)))
    table.put(*(row(7, value) for value in range(500, 503)), to=ONE)
    table.run()
    assert len(table.values()) == 1
    read = [sum(total) for total in zip(table.totals(ZERO), table.totals(ONE), strict=True)]
    assert read == [503, 1, 0, 502]


@pytest.mark.parametrize("length", [32 * 1024, 32 * 1024 + 1])
def test_a_key_may_have_32_kilobytes_and_no_more(tmp_path: Path, length: int) -> None:
    table = Keyed(tmp_path, "row_keys: [note]")
    for value in (1, 2):
        table.put({"note": "k" * length, "value": value})
        table.run()
    fits = length <= 32 * 1024
    assert [item["value"] for item in table.rows()] == ([2] if fits else [])
    assert table.totals() == ((2, 2, 0, 0) if fits else (2, 0, 2, 0))


def test_a_partition_key_may_have_a_default(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "partition_keys: [home], row_keys: [number]", columns="home: \"coalesce(device, 'none')\"")
    table.put({"number": 1, "value": 1}, {"number": 1, "value": 2, "device": "none"}, {"number": 2, "value": 3})
    table.run()
    assert sorted(item["value"] for item in table.rows()) == [2, 3]
    assert table.verified().ok


def test_new_columns_are_taken_and_older_files_keep_their_rows(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], buckets: 1")
    table.put(row(1, 10), row(2, 20))
    table.run()
    table.put(row(1, 11, color="red"))
    table.run()
    result = {item["number"]: (item["value"], item["color"]) for item in table.rows()}
    assert result == {1: (11, "red"), 2: (20, None)}
    assert table.verified().ok


RESERVED = ["_sequence", "_Sequence", "_BUCKET", "_delete", "_Delete", "_tiebreak", "_sequences"]


@pytest.mark.parametrize("name", RESERVED)
def test_a_record_with_a_reserved_field_is_quarantined_and_the_others_written(tmp_path: Path, name: str) -> None:
    table = Keyed(tmp_path, "row_keys: [number]", on="new_column: add")
    table.put(row(1, 1), {**row(2, 2), name: 7}, {**row(3, 3), name: {"a": 1}}, {**row(4, 4, color="red"), name: None})
    table.run()
    table.put(row(1, 11))
    table.run()
    assert table.values() == {("a", 1): 11, ("a", 4): 4}
    assert table.totals() == (5, 3, 2, 0)
    errors = pl.read_delta(quarantine_of(table.job))["error"].to_list()
    assert len(errors) == 2 and all(error.startswith(f"{name}: ") for error in errors)
    assert "color" in pl.read_delta(table.path).columns
    assert table.verified().ok


@pytest.mark.parametrize("name", RESERVED)
def test_a_reserved_field_is_ignored_like_any_other_if_new_columns_are_ignored(tmp_path: Path, name: str) -> None:
    table = Keyed(tmp_path, "row_keys: [number]", on="new_column: ignore")
    table.put(row(1, 1), {**row(2, 2), name: 7})
    table.run()
    assert table.values() == {("a", 1): 1, ("a", 2): 2} and table.verified().ok


@pytest.mark.parametrize("name", ["_delete", "_DELETE"])
def test_a_table_to_which_another_writer_added_a_reserved_column_is_refused(tmp_path: Path, name: str) -> None:
    table = Keyed(tmp_path, "row_keys: [number]")
    table.put(row(1, 1))
    table.run()
    DeltaTable(table.path).alter.add_columns([Field(name, PrimitiveType("boolean"))])
    with pytest.raises(UserError, match=name):
        table.open()


def test_a_column_that_another_process_adds_between_merge_and_commit_is_not_lost(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], sequence: seq, buckets: 1")
    table.put(row(1, 10, seq=1), row(2, 20, seq=1))
    table.run()
    table.put(row(2, 22, seq=3))
    table.put(row(1, 11, seq=2, color="red"), to=ONE)
    rival = table.open(None, ONE)
    done: list[str] = []

    def at_step(step: str) -> None:
        if step == "merged" and not done:
            done.append(step)
            for _ in range(5):
                rival.round(flush_now=True)

    table.run(Environment(at_step=at_step), ZERO)
    result = {item["number"]: (item["value"], item["color"]) for item in table.rows()}
    assert result == {1: (11, "red"), 2: (22, None)}


# what verify finds


def filled(folder: Path) -> Keyed:
    table = Keyed(folder, "row_keys: [number], buckets: 2")
    table.put(*(row(number, number) for number in range(20)))
    table.run()
    assert table.verified().ok
    return table


def failed(table: Keyed) -> set[str]:
    return {check.name for check in table.verified().checks if not check.ok}


def test_a_row_that_another_writer_changed_is_found(tmp_path: Path) -> None:
    table = filled(tmp_path)
    DeltaTable(table.path).update({"value": "0"}, predicate="number = 7")
    assert "records" in failed(table)


def test_a_row_that_another_writer_deleted_is_found(tmp_path: Path) -> None:
    table = filled(tmp_path)
    DeltaTable(table.path).delete("number = 7")
    assert failed(table) == {"rows", "records"}


def test_a_key_that_another_writer_appended_again_is_found(tmp_path: Path) -> None:
    table = filled(tmp_path)
    rows = pl.read_delta(table.path).filter(pl.col("number") == 7).to_arrow()
    write_deltalake(table.path, rows, mode="append")
    assert "rows" in failed(table)


def test_a_file_whose_content_contradicts_its_name_is_found(tmp_path: Path) -> None:
    table = filled(tmp_path)
    for file in Path(table.path).rglob("s.*.k*.pq"):
        rows = pq.read_table(file, partitioning=None)
        others = pc.add(rows.column("value"), 1)
        at = rows.schema.get_field_index("value")
        pq.write_table(rows.set_column(at, "value", others), file, store_schema=False)
    assert "rows" in failed(table)


def test_status_shows_rows_buckets_and_chunks(tmp_path: Path) -> None:
    table = filled(tmp_path)
    result = status(table.job, open_log=lambda job: table.log.view(job.log))
    [section] = [item for item in result.sections if isinstance(item, Section) and item.key == "keyed"]
    assert section.values == {"rows": 20, "buckets": 2, "chunks": 2, "chunks_max": 1}
    table.put(row(1, 2), row(1, 3))
    table.run()
    report = status(table.job, open_log=lambda job: table.log.view(job.log)).as_json()
    assert sum(shown["superseded"] for shown in report["partitions"]) == 1
    for shown in report["partitions"]:
        assert shown["read"] == sum(shown[name] for name in ("written", "superseded", "quarantined", "filtered"))
    assert json.dumps(report)


def test_a_log_that_lost_its_beginning_still_proves_what_it_has(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.log.expire(ZERO, 10)
    assert table.verified(values=False).ok
    [records] = [check for check in table.verified().checks if not check.ok]
    assert [question.what for question in records.unproven] == ["10 rows of records that the log no longer has"]
    DeltaTable(table.path).delete("number = 15")
    assert "records" in failed(table)
