"""Compaction of exports: closed days become large files, and every row stays there once (RULES E4)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.maintenance import compact as compact_command
from penstock.errors import UserError
from penstock.lake.compaction import CompactionLimits
from penstock.storage import open_storage
from penstock.tables.export.export import ExportTable
from penstock.tables.export.logs import ExportLogs
from tests.support.export_root import (
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
from tests.support.pipes import CrashError
from tests.support.watched_storage import WatchedStorage
from tests.unit.tables.export.processes import acting_at, compacted, dying_at, quiet, restarted

STAGE_AGE_SECONDS = 3600.0
STEPS = (
    ("compact_staged", 1),
    ("compact_checked", 1),
    ("compact_committed", 1),
    ("removing", 1),
    ("removing", 4),
    ("removed", 1),
    ("renaming", 1),
    ("renamed", 1),
)


@contextmanager
def locked(root: ExportRoot, name: str) -> Iterator[None]:
    """The log of a type cannot be opened."""
    log = root.lake / (f"_penstock/shop/types/{name}/_delta_log" if root.logs.is_plain else f"{name}/_delta_log")
    log.rename(log.with_name("away"))
    log.write_text("in the way")
    yield
    log.unlink()
    log.with_name("away").rename(log)


def fresh(root: ExportRoot) -> ExportTable:
    """A process that has not opened the logs of types yet."""
    return ExportTable(ExportLogs(root.job, quiet(), root.storage))


def test_a_complete_day_becomes_one_file_per_type_across_partitions(tmp_path: Path) -> None:
    root = filled(tmp_path)
    report = compacted(root.table)
    assert (report.files_removed, report.files_added, report.rows, report.commits) == (12, 2, 60, 2)
    clicks, orders, *others = root.files()
    assert clicks.startswith(f"click/day={MONDAY}/compacted~shop.")
    assert orders.startswith(f"order/day={MONDAY}/compacted~shop.")
    assert others == [f"order/day={WEDNESDAY}/shop.0.33.parquet", f"order/day={WEDNESDAY}/shop.1.33.parquet"]
    assert rows_in(root.lake) == root.expected
    assert root.staged() == []


def test_a_bounded_compaction_merges_one_group_and_reports_that_more_remain(tmp_path: Path) -> None:
    root = filled(tmp_path)
    assert compacted(root.table, effort=CompactionLimits(alike_min=7)).files_removed == 0, (
        "six files of a type have the same size"
    )
    report = compacted(root.open(), effort=CompactionLimits(alike_min=6, bytes_max=1))
    assert (report.files_removed, report.files_added, report.left) == (6, 1, 1)
    assert compacted(root.open(), effort=CompactionLimits(alike_min=6)).left == 0
    assert rows_in(root.lake) == root.expected


def test_rows_keep_the_order_of_partition_and_offset(tmp_path: Path) -> None:
    root = filled(tmp_path)
    compacted(root.table)
    (path,) = root.lake.glob(f"order/day={MONDAY}/*.parquet")
    rows = pq.ParquetFile(path).read(columns=["kafka_partition", "kafka_offset"]).to_pylist()
    places = [(row["kafka_partition"], row["kafka_offset"]) for row in rows]
    starts = (0, 10, 20)
    assert places == [(number, start + step) for number in (0, 1) for start in starts for step in range(6)]


def test_a_second_compaction_finds_nothing_to_do(tmp_path: Path) -> None:
    root = filled(tmp_path)
    state = root.state
    compacted(root.table)
    files = root.files()
    assert compacted(root.open()).files_removed == 0
    assert (root.files(), root.state) == (files, state), "positions and totals are what they were"


def test_open_days_are_not_compacted_unless_requested(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    for number, day in enumerate((MONDAY, MONDAY, TUESDAY, TUESDAY, WEDNESDAY, WEDNESDAY)):
        root.write(ZERO, number * 10, number * 10 + 10, {("order", day): range(number * 10, number * 10 + 10)})
    assert compacted(root.table).files_removed == 0
    assert compacted(root.table, all_days=True).files_removed == 4
    assert [path for path in root.files() if WEDNESDAY in path] == [
        f"order/day={WEDNESDAY}/shop.0.49.parquet",
        f"order/day={WEDNESDAY}/shop.0.59.parquet",
    ]
    assert rows_in(root.lake) == root.expected


def test_outputs_have_about_the_target_size(tmp_path: Path) -> None:
    root = filled(tmp_path)
    sizes = [(root.lake / path).stat().st_size for path in root.files() if path.startswith(f"order/day={MONDAY}")]
    compacted(root.table, max(sizes) + 1)
    # Two files together pass that size, so pairs are made of six.
    assert len([path for path in root.files() if path.startswith(f"order/day={MONDAY}")]) == 3
    assert rows_in(root.lake) == root.expected


def test_files_of_the_target_size_are_not_compacted(tmp_path: Path) -> None:
    root = filled(tmp_path)
    assert compacted(root.table, 1).files_removed == 0


def test_files_of_other_jobs_in_the_same_root_are_never_touched(tmp_path: Path) -> None:
    ours = filled(tmp_path, export="cluster: west")
    theirs = filled(tmp_path, name="other", export="cluster: east")
    kept = [path for path in theirs.files() if "/east." in path]
    compacted(theirs.table)
    theirs_compacted = [path for path in theirs.files() if "compacted~other." in path]
    compacted(ours.table)
    remaining = ours.files()
    assert [path for path in remaining if "compacted~other." in path] == theirs_compacted
    assert [path for path in remaining if "/east." in path] == [path for path in kept if WEDNESDAY in path]
    assert rows_in(ours.lake) == ours.expected + theirs.expected


def test_a_foreign_parquet_file_in_the_folder_is_not_touched(tmp_path: Path) -> None:
    root = filled(tmp_path)
    foreign = root.lake / "order" / f"day={MONDAY}" / "notes.parquet"
    pq.write_table(pa.table({"note": ["foreign"]}), foreign)
    compacted(root.table)
    assert pq.ParquetFile(foreign).read().to_pylist() == [{"note": "foreign"}]


def test_columns_that_came_later_are_null_in_older_rows(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)})
    root.columns = pa.schema([*COLUMNS, ("price", pa.int64())])
    root.logs.add_columns("order", pa.schema([("price", pa.int64())]))
    root.write(ZERO, 5, 10, {("order", MONDAY): range(5, 10)}, watermark=WEDNESDAY)
    compacted(root.table)
    (path,) = root.lake.glob("order/*/*.parquet")
    table = pq.ParquetFile(path).read()
    assert table.schema.names == [*COLUMNS.names, "price"]
    assert table["id"].to_pylist() == list(range(10))
    assert rows_in(root.lake) == root.expected


def test_late_rows_are_compacted_again_and_the_footer_lists_every_original(tmp_path: Path) -> None:
    root = filled(tmp_path)
    originals = {path for path in root.files() if path.startswith(f"order/day={MONDAY}")}
    compacted(root.table)
    root.write(ZERO, 34, 40, {("order", MONDAY): range(34, 40)})
    compacted(root.table, all_days=True)
    (path,) = root.lake.glob(f"order/day={MONDAY}/*.parquet")
    footer = footer_of(path)
    assert {file.path for file in footer.written} == originals | {f"order/day={MONDAY}/shop.0.39.parquet"}
    late = next(file for file in footer.written if file.path.endswith("shop.0.39.parquet"))
    report = (late.topic_id, late.number, late.start, late.end, late.tasks, late.types, late.rows)
    assert report == ("topicA", 0, 34, 40, 1, {"order": 1}, 6)
    assert f"order/day={MONDAY}/shop.0.39.parquet" in footer.inputs
    assert rows_in(root.lake) == root.expected


def test_the_command_reports_what_it_did(tmp_path: Path) -> None:
    root = filled(tmp_path)
    app = typer.Typer()
    app.command()(compact_command)
    job = str(root.job_path)
    assert CliRunner().invoke(app, [job, "--target-size", "1B"]).stdout == "nothing to compact\n"
    report = json.loads(CliRunner().invoke(app, [job, "--json"]).stdout)
    assert (report["job"], report["files_removed"], report["files_added"], report["rows"]) == ("shop", 12, 2, 60)
    assert rows_in(root.lake) == root.expected


def test_the_command_refuses_a_job_without_a_log(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(compact_command)
    assert isinstance(CliRunner().invoke(app, [str(job_file(tmp_path))]).exception, UserError)


# killed


@pytest.mark.parametrize(("step", "visit"), STEPS)
def test_killed_at_a_step_another_process_finishes_the_compaction(tmp_path: Path, step: str, visit: int) -> None:
    root = filled(tmp_path)
    with pytest.raises(CrashError):
        compacted(root.open(dying_at(step, visit)))
    assert set(rows_in(root.lake).values()) == {1}, "no row twice"
    restarted(root)
    assert rows_in(root.lake) == root.expected
    compacted(root.open())
    assert rows_in(root.lake) == root.expected
    assert len(root.files()) == 4


def test_a_plain_reader_sees_no_row_twice_at_any_moment(tmp_path: Path) -> None:
    root = filled(tmp_path)
    moments: list[set[int]] = []
    storage = WatchedStorage(
        open_storage(str(root.lake), {}), lambda *_: moments.append(set(rows_in(root.lake).values()))
    )
    root.storage = storage
    assert compacted(root.open()).files_removed == 12
    assert len(moments) > 12
    assert {1} == set().union(*moments)
    assert rows_in(root.lake) == root.expected


def test_another_process_finishes_a_compaction_while_it_removes_files(tmp_path: Path) -> None:
    root = filled(tmp_path)
    slow = root.open(acting_at("removing", lambda: root.open().finish_renames()))
    assert compacted(slow).files_removed == 12
    assert rows_in(root.lake) == root.expected


def test_late_rows_that_come_in_the_middle_of_a_compaction_are_kept(tmp_path: Path) -> None:
    root = filled(tmp_path)
    with pytest.raises(CrashError):
        compacted(root.open(dying_at("removing", 3)))
    root.table = root.open()
    root.write(ZERO, 34, 39, {("order", MONDAY): range(34, 39)})
    restarted(root)
    assert rows_in(root.lake) == root.expected


# several processes


def test_of_two_compactions_of_the_same_day_one_lands(tmp_path: Path) -> None:
    root = filled(tmp_path)
    report = compacted(root.open(acting_at("compact_staged", lambda: compacted(root.open()))))
    assert (report.files_removed, report.dropped) == (0, 1)
    assert rows_in(root.lake) == root.expected


def test_a_batch_that_commits_in_between_does_not_stop_a_compaction(tmp_path: Path) -> None:
    root = filled(tmp_path)

    def commit() -> None:
        root.write(ONE, 34, 44, {("click", WEDNESDAY): range(34, 40), ("order", MONDAY): range(40, 44)})

    assert compacted(root.open(acting_at("compact_checked", commit))).files_removed == 12
    assert rows_in(root.lake) == root.expected


# what fails


def test_a_file_that_cannot_be_removed_holds_the_merged_one_back_until_it_can(tmp_path: Path) -> None:
    root = filled(tmp_path)
    stubborn = {f"order/day={MONDAY}/shop.{number}.5.parquet" for number in (0, 1)}

    def refuse(act: str, path: str) -> None:
        if act == "delete" and path in stubborn:
            raise UserError("not allowed")

    storage = root.storage = WatchedStorage(open_storage(str(root.lake), {}), refuse)
    report = compacted(root.open())
    assert report.failed == ("order: not allowed",)
    assert set(rows_in(root.lake).values()) == {1}
    assert stubborn <= set(root.files())
    again = compacted(root.open(), all_days=True)
    assert (again.files_removed, again.failed) == (0, ("order: not allowed",))
    storage.watch = None
    restarted(root)
    assert rows_in(root.lake) == root.expected


def test_compaction_removes_no_file_if_it_cannot_add_one(tmp_path: Path) -> None:
    root = filled(tmp_path)

    def refuse(act: str, path: str) -> None:
        if act == "put" and path.startswith("order/") and "_probe" in path:
            raise UserError("the quota is used up")

    root.storage = WatchedStorage(open_storage(str(root.lake), {}), refuse)
    report = compacted(root.open())
    assert (report.files_removed, report.dropped, report.failed) == (6, 1, ("order: the quota is used up",))
    assert rows_in(root.lake) == root.expected


def test_a_damaged_file_stops_the_compaction_of_its_type_alone_and_nothing_of_it_is_removed(tmp_path: Path) -> None:
    root = filled(tmp_path)
    damaged = root.lake / "click" / f"day={MONDAY}" / "shop.0.9.parquet"
    damaged.write_bytes(b"PAR1 nothing PAR1")
    clicks = [path for path in root.files() if path.startswith("click/")]
    report = compacted(root.table)
    assert report.files_removed == 6
    [reason] = report.failed
    assert reason.startswith(f"click: cannot read the footer of click/day={MONDAY}/shop.0.9.parquet")
    assert [path for path in root.files() if path.startswith("click/")] == clicks


@pytest.mark.parametrize("pending", [False, True], ids=["finished", "with a pending file"])
def test_a_plain_type_whose_log_cannot_be_opened_does_not_block_the_others(tmp_path: Path, pending: bool) -> None:
    root = filled(tmp_path)
    if pending:
        with pytest.raises(CrashError):
            compacted(root.open(dying_at("removing")))
    with locked(root, "order"):
        report = compacted(fresh(root))
        assert report.files_removed == 6
        assert [reason.split(":")[0] for reason in report.failed] == ["order"]
    assert compacted(restarted(root).table).failed == ()
    assert rows_in(root.lake) == root.expected


def test_a_delta_type_whose_log_cannot_be_opened_does_not_block_the_others(tmp_path: Path) -> None:
    root = filled(tmp_path, export="format: delta")
    with locked(root, "order"):
        report = compacted(fresh(root))
        assert report.files_removed == 6
        assert [reason.split(":")[0] for reason in report.failed] == ["order"]
    assert compacted(root.open()).failed == ()
    for name in ("order", "click"):
        places = pl.read_delta(str(root.lake / name)).select("kafka_partition", "kafka_offset").rows()
        assert sorted((name, *place) for place in places) == sorted(
            place for place in root.expected if place[0] == name
        )


# stores on which a rename is a copy


def test_young_files_are_not_compacted_where_a_rename_is_a_copy(tmp_path: Path) -> None:
    """A copy that another process began may end after the file was deleted, and bring it back."""
    storage = CopyingStorage()
    root = filled(tmp_path, storage)
    assert compacted(root.table).files_removed == 0
    later = quiet(now=lambda: time.time() + 2 * STAGE_AGE_SECONDS)
    assert compacted(root.open(later)).files_removed == 12
    assert rows_stored(storage) == root.expected


@pytest.mark.parametrize("copies", [False, True])
def test_a_delayed_rename_never_restores_a_compacted_file(tmp_path: Path, copies: bool) -> None:
    storage = CopyingStorage() if copies else None
    root = filled(tmp_path, storage)

    def overtake() -> None:
        other = root.open(quiet(now=lambda: time.time() + 2 * STAGE_AGE_SECONDS))
        assert other.finish_renames() == {}
        assert compacted(other, all_days=True).files_removed == 13

    root.table = root.open(acting_at("renaming", overtake))
    root.write(ZERO, 34, 39, {("order", MONDAY): range(34, 39)})
    assert (rows_stored(storage) if storage is not None else rows_in(root.lake)) == root.expected
