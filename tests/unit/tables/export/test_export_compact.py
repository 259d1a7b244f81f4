"""Compaction of exports: closed days become large files, and every row stays there once (RULES L7)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.maintenance import compact as compact_command
from penstock.environment import Environment
from penstock.errors import UserError
from penstock.lake.maintenance.compaction import Effort
from penstock.lake.storage import Entry as Stored
from penstock.lake.storage import open_storage
from penstock.tables.export.compact import compact
from penstock.tables.export.ledger.entry import EntryKind
from penstock.tables.export.ledger.state import Unfinished
from tests.export_root import (
    COLUMNS,
    MONDAY,
    ONE,
    TUESDAY,
    WEDNESDAY,
    ZERO,
    CopyingStorage,
    ExportRoot,
    filled,
    footer_of,
    job_file,
    rows_in,
    rows_stored,
)
from tests.watched_storage import WatchedStorage

STAGE_AGE_SECONDS = 3600.0


def before(step: str, act: object) -> Environment:
    """An environment in which something happens the first time that a step is reached."""
    waiting = [act]

    def reach(reached: str) -> None:
        if reached == step and waiting:
            act = waiting.pop()
            assert callable(act)
            act()

    return Environment(sleep=lambda _: None, reach=reach)


def test_a_complete_day_becomes_one_file_per_type_across_partitions(tmp_path: Path) -> None:
    root = filled(tmp_path)
    report = compact(root.table)
    assert (report.files_removed, report.files_added, report.rows, report.commits) == (12, 2, 60, 2)
    entry = root.state.number
    assert root.files() == [
        f"click/day={MONDAY}/compacted~shop.{entry - 1}.0.parquet",
        f"order/day={MONDAY}/compacted~shop.{entry}.0.parquet",
        f"order/day={WEDNESDAY}/shop.0.33.parquet",
        f"order/day={WEDNESDAY}/shop.1.33.parquet",
    ]
    assert rows_in(root.lake) == root.expected
    assert root.staged() == []


def test_a_bounded_compaction_takes_one_group_and_says_that_more_is_left(tmp_path: Path) -> None:
    root = filled(tmp_path)
    assert compact(root.table, effort=Effort(alike_min=7)).files_removed == 0, "six files of a type have the same size"
    report = compact(root.open(), effort=Effort(alike_min=6, bytes_max=1))
    assert (report.files_removed, report.files_added, report.left) == (6, 1, 1)
    assert compact(root.open(), effort=Effort(alike_min=6)).left == 0
    assert rows_in(root.lake) == root.expected


def test_rows_keep_the_order_of_partition_and_offset(tmp_path: Path) -> None:
    root = filled(tmp_path)
    compact(root.table)
    (path,) = root.lake.glob(f"order/day={MONDAY}/*.parquet")
    rows = pq.ParquetFile(path).read(columns=["kafka_partition", "kafka_offset"]).to_pylist()
    places = [(row["kafka_partition"], row["kafka_offset"]) for row in rows]
    starts = (0, 10, 20)
    assert places == [(number, start + step) for number in (0, 1) for start in starts for step in range(6)]


def test_a_second_compaction_finds_nothing_to_do(tmp_path: Path) -> None:
    root = filled(tmp_path)
    compact(root.table)
    entry = root.state.number
    assert compact(root.open()).files_removed == 0
    assert root.state.number == entry


def test_positions_lanes_and_totals_are_what_they_were(tmp_path: Path) -> None:
    root = filled(tmp_path)
    known = root.state
    compact(root.table)
    assert (root.state.partitions, root.state.types) == (known.partitions, known.types)
    assert [each.kind for each in root.table.ledger.last(2)] == [EntryKind.COMPACTION] * 2


def test_open_days_are_left_alone_unless_all_are_wanted(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    for number, day in enumerate((MONDAY, MONDAY, TUESDAY, TUESDAY, WEDNESDAY, WEDNESDAY)):
        root.write(ZERO, number * 10, number * 10 + 10, {("order", day): range(number * 10, number * 10 + 10)})
    assert compact(root.table).files_removed == 0
    assert compact(root.table, all_days=True).files_removed == 4
    assert [path for path in root.files() if WEDNESDAY in path] == [
        f"order/day={WEDNESDAY}/shop.0.49.parquet",
        f"order/day={WEDNESDAY}/shop.0.59.parquet",
    ]
    assert rows_in(root.lake) == root.expected


def test_outputs_have_about_the_size_that_is_wanted(tmp_path: Path) -> None:
    root = filled(tmp_path)
    sizes = [(root.lake / path).stat().st_size for path in root.files() if path.startswith(f"order/day={MONDAY}")]
    compact(root.table, max(sizes) + 1)
    # Two files together pass that size, so pairs are made of six.
    assert len([path for path in root.files() if path.startswith(f"order/day={MONDAY}")]) == 3
    assert rows_in(root.lake) == root.expected


def test_files_that_are_large_enough_stay(tmp_path: Path) -> None:
    root = filled(tmp_path)
    assert compact(root.table, 1).files_removed == 0


def test_files_of_other_jobs_in_the_same_root_are_never_touched(tmp_path: Path) -> None:
    ours = filled(tmp_path, export="cluster: west")
    theirs = filled(tmp_path, name="other", export="cluster: east")
    kept = [path for path in theirs.files() if "/east." in path]
    compact(theirs.table)
    theirs_compacted = [path for path in theirs.files() if "compacted~other." in path]
    compact(ours.table)
    left = ours.files()
    assert [path for path in left if "compacted~other." in path] == theirs_compacted
    assert [path for path in left if "/east." in path] == [path for path in kept if WEDNESDAY in path]
    assert rows_in(ours.lake) == ours.expected + theirs.expected


def test_a_foreign_parquet_file_in_the_folder_stays_as_it_is(tmp_path: Path) -> None:
    root = filled(tmp_path)
    foreign = root.lake / "order" / f"day={MONDAY}" / "notes.parquet"
    pq.write_table(pa.table({"note": ["mine"]}), foreign)
    compact(root.table)
    assert pq.ParquetFile(foreign).read().to_pylist() == [{"note": "mine"}]


def test_columns_that_came_later_are_null_in_older_rows(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)})
    root.columns = pa.schema([*COLUMNS, ("price", pa.int64())])
    root.write(ZERO, 5, 10, {("order", MONDAY): range(5, 10)}, watermark=WEDNESDAY)
    compact(root.table)
    (path,) = root.lake.glob("order/*/*.parquet")
    table = pq.ParquetFile(path).read()
    assert table.schema.names == [*COLUMNS.names, "price"]
    assert table["id"].to_pylist() == list(range(10))
    assert rows_in(root.lake) == root.expected


def test_late_rows_are_compacted_again_and_the_footer_lists_every_original(tmp_path: Path) -> None:
    root = filled(tmp_path)
    originals = {path for path in root.files() if path.startswith(f"order/day={MONDAY}")}
    compact(root.table)
    root.write(ZERO, 34, 40, {("order", MONDAY): range(34, 40)})
    compact(root.table, all_days=True)
    (path,) = root.lake.glob(f"order/day={MONDAY}/*.parquet")
    footer = footer_of(path)
    assert (footer["v"], footer["kind"], footer["type"], footer["day"]) == (1, "compacted", "order", MONDAY)
    assert {each["path"] for each in footer["replaces"]} == originals | {f"order/day={MONDAY}/shop.0.39.parquet"}
    late = next(each for each in footer["replaces"] if each["path"].endswith("shop.0.39.parquet"))
    told = (late["topic_id"], late["partition"], late["slice"], late["piece"], late["pieces"], late["types"])
    assert told == ("topicA", 0, [34, 40], [34, 40], 1, {"order": {"files": 1, "first": 34, "last": 39}})
    assert all(set(each) >= {"batch", "topic", "main", "rows"} for each in footer["replaces"])
    assert rows_in(root.lake) == root.expected


def test_two_compactions_of_the_same_day_double_nothing(tmp_path: Path) -> None:
    root = filled(tmp_path)
    slow = root.open(before("compact_staged", lambda: compact(root.open())))
    report = compact(slow)
    assert (report.files_removed, report.dropped) == (0, 1)
    assert rows_in(root.lake) == root.expected


def test_a_batch_that_commits_in_between_only_costs_another_look(tmp_path: Path) -> None:
    root = filled(tmp_path)

    def commit() -> None:
        root.write(ONE, 34, 44, {("click", WEDNESDAY): range(34, 44)})

    assert compact(root.open(before("compact_checked", commit))).files_removed == 12
    assert rows_in(root.lake) == root.expected


def test_a_file_that_cannot_be_removed_holds_the_new_one_back_until_it_can(tmp_path: Path) -> None:
    """A reader never sees a row twice; whoever comes next finishes what was ordered."""
    root = filled(tmp_path)
    watched = WatchedStorage(open_storage(str(root.lake), {}))
    stubborn = {f"order/day={MONDAY}/shop.{number}.5.parquet" for number in (0, 1)}

    def refuse(act: str, path: str) -> None:
        if act == "delete" and path in stubborn:
            raise UserError("not allowed")

    watched.watch = refuse
    root.storage = watched
    assert compact(root.open()).unfinished == 1
    assert set(rows_in(root.lake).values()) == {1}
    assert stubborn <= set(root.files())
    # The files are not the table's any more: no other compaction may take their rows along.
    assert compact(root.open(), all_days=True).files_removed == 0
    watched.watch = None
    root.open().complete()
    assert rows_in(root.lake) == root.expected


def test_nothing_is_removed_where_nothing_can_be_added(tmp_path: Path) -> None:
    root = filled(tmp_path)
    watched = WatchedStorage(open_storage(str(root.lake), {}))

    def refuse(act: str, path: str) -> None:
        if act == "put" and "_probe" in path:
            raise UserError("the quota is used up")

    watched.watch = refuse
    root.storage = watched
    report = compact(root.open())
    assert (report.files_removed, report.dropped) == (0, 2)
    assert rows_in(root.lake) == root.expected


def test_where_a_rename_is_a_copy_files_wait_until_their_sources_are_old_enough_to_go(tmp_path: Path) -> None:
    storage = CopyingStorage()
    root = filled(tmp_path, storage)
    report = compact(root.table)
    assert (report.files_removed, report.waiting) == (0, 12)
    later = Environment(now=lambda: time.time() + 2 * STAGE_AGE_SECONDS, sleep=lambda _: None)
    assert compact(root.open(later)).files_removed == 12
    assert rows_stored(storage) == root.expected


def test_a_process_that_slept_over_its_rename_brings_no_compacted_file_back(tmp_path: Path) -> None:
    """On a store that copies: the staged source is gone before its copy is removed."""
    storage = CopyingStorage()
    root = ExportRoot(job_file(tmp_path), storage=storage)
    root.start(ZERO)
    orders = []
    for start in (0, 10, 20):
        root.write(ZERO, start, start + 10, {("order", MONDAY): range(start, start + 10)})
        orders.append(root.state.unfinished)
    root.write(ZERO, 30, 40, {("order", WEDNESDAY): range(30, 40)}, watermark=WEDNESDAY)
    later = Environment(now=lambda: time.time() + 2 * STAGE_AGE_SECONDS, sleep=lambda _: None)
    assert compact(root.open(later)).files_removed == 3
    orders.append(root.state.unfinished)
    root.write(ZERO, 40, 50, {("order", MONDAY): range(40, 50)})
    much_later = Environment(now=lambda: time.time() + 4 * STAGE_AGE_SECONDS, sleep=lambda _: None)
    root.write(ZERO, 50, 60, {("click", WEDNESDAY): range(50, 60)})
    assert compact(root.open(much_later), all_days=True).files_removed == 2
    for late in orders:
        root.open().finishing.move(late)
        assert rows_stored(storage) == root.expected


def test_a_file_that_appears_while_compaction_looks_around_is_not_taken_while_its_source_is_there(
    tmp_path: Path,
) -> None:
    """On a store that copies: a late row of a complete day, committed between the listings, and a copy that is late."""
    storage = WatchedStorage(CopyingStorage())
    root = filled(tmp_path, storage)
    late: list[Unfinished] = []

    def commit(act: str, path: str) -> None:
        if act == "list" and path == "order":
            storage.watch = None
            root.write(ZERO, 34, 39, {("order", MONDAY): range(34, 39)})
            late.append(root.state.unfinished)

    storage.watch = commit
    later = Environment(now=lambda: time.time() + 2 * STAGE_AGE_SECONDS, sleep=lambda _: None)
    assert compact(root.open(later)).files_removed
    root.open().finishing.move(late[0])
    assert rows_stored(storage) == root.expected


class OldSources(WatchedStorage):
    """A store on which staged files have waited for a long time until they were copied."""

    def list(self, prefix: str = "", after: str = "") -> Iterator[Stored]:
        for each in super().list(prefix, after):
            old = each.modified_at - timedelta(seconds=2 * STAGE_AGE_SECONDS)
            yield replace(each, modified_at=old) if each.path.startswith("_penstock/") else each


def test_a_file_that_was_copied_a_short_while_ago_waits_however_old_its_source_was(tmp_path: Path) -> None:
    """A rename that was pending for a day: the same copy by another process may be under way now."""
    storage = OldSources(CopyingStorage())
    root = filled(tmp_path, storage)
    report = compact(root.open())
    assert (report.files_removed, report.waiting) == (0, 12)
    left = [each.path for each in storage.list(root.table.places.staged)]
    assert [".30.34." in path for path in left] == [True], "only the newest entry may still be copied"


def test_a_number_that_an_earlier_ledger_used_is_no_name_for_another_file(tmp_path: Path) -> None:
    root = filled(tmp_path)
    taken = root.lake / "click" / f"day={MONDAY}" / f"compacted~shop.{root.state.number + 1}.0.parquet"
    pq.write_table(pa.table({"kafka_partition": [9], "kafka_offset": [9], "large": ["x" * 10_000]}), taken)
    compact(root.table, taken.stat().st_size - 1)
    assert rows_in(root.lake) == root.expected + Counter({("click", 9, 9): 1})


def test_a_damaged_file_stops_compaction_before_anything_is_removed(tmp_path: Path) -> None:
    root = filled(tmp_path)
    damaged = root.lake / "click" / f"day={MONDAY}" / "shop.0.9.parquet"
    damaged.write_bytes(b"PAR1 nothing PAR1")
    known = root.files()
    with pytest.raises(Exception, match=r"cannot read the footer of click/.*0\.9\.parquet"):
        compact(root.table)
    assert root.files() == known


def test_the_job_file_says_how_large_files_shall_be(tmp_path: Path) -> None:
    root = filled(tmp_path, export="compact_size: 1B")
    assert compact(root.table).files_removed == 0
    assert compact(root.table, replace(root.table.export, compact_bytes=10**6).compact_bytes).files_removed == 12


def test_the_command_tells_what_it_did_and_what_waits(tmp_path: Path) -> None:
    root = filled(tmp_path)
    app = typer.Typer()
    app.command()(compact_command)
    job = str(root.job_path)
    assert CliRunner().invoke(app, [job, "--target-size", "1B"]).stdout == "nothing to compact\n"
    told = json.loads(CliRunner().invoke(app, [job, "--json"]).stdout)
    assert (told["job"], told["files_removed"], told["files_added"], told["rows"]) == ("shop", 12, 2, 60)
    assert rows_in(root.lake) == root.expected


def test_the_command_says_that_there_is_no_ledger(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(compact_command)
    assert isinstance(CliRunner().invoke(app, [str(job_file(tmp_path))]).exception, UserError)
