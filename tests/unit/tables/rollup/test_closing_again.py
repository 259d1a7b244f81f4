"""Closing continues after an interruption, after changes of the job file, and alongside other writers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import get_args

import pytest

from penstock.errors import TransientError, UserError
from penstock.lake.compaction import EVERYTHING
from penstock.lake.delta.compact import compact
from penstock.lake.delta.files import active_files
from penstock.lake.delta.vacuum import Dead, KeptReason, ListedTable
from penstock.tables.rollup import aggregate, close_task, closing
from penstock.tables.rollup.closing import WindowsRewrittenError, compact_partials, windows_rules
from penstock.tables.rollup.decide import BeginClose, Clean
from penstock.tables.rollup.events import WindowsClosed
from penstock.tables.rollup.spec import Aggregates, LatePolicy, Window
from tests.unit.tables.rollup.rollup_lake import HOUR, MINUTE, TEN_MINUTES, Point, RollupLake

HOSTS = [f"host-{number}" for number in range(12)]


def fail_at(lake: RollupLake, step: str) -> None:
    """The process ends when it reaches the step; another one continues."""

    def at_step(reached: str) -> None:
        if reached == step:
            raise TransientError(f"failpoint {step}")

    process = lake.another_process()
    process._environment.at_step = at_step
    process._partials.environment.at_step = process._windows.environment.at_step = at_step
    with pytest.raises(TransientError, match=step):
        lake.work(process)


@pytest.mark.parametrize("late", get_args(LatePolicy))
@pytest.mark.parametrize("step", ["close_begun", "close_staged", "close_landed"])
def test_a_close_that_was_interrupted_after_any_step_is_completed_by_another_process(
    tmp_path: Path, step: str, late: LatePolicy
) -> None:
    lake = RollupLake(tmp_path, late=late, update_grace_ms=HOUR.millis)
    lake.land([Point(host, 0, 1.0) for host in HOSTS])
    lake.close_all(60_000)
    lake.land([Point(host, 60_000, 2.0) for host in HOSTS])
    lake.land([Point(host, 1_000, 4.0) for host in HOSTS[:6]])
    lake.land([Point("clock", 120_000, 0.0)])
    fail_at(lake, step)
    lake.work()
    updated = late == "update"
    expected = {("1m", host, 60_000): (2.0, 0) for host in HOSTS}
    expected |= {("1m", host, 0): (5.0, 1) if updated and host in HOSTS[:6] else (1.0, 0) for host in HOSTS}
    assert lake.values("sum", "revision") == expected
    assert (lake.number("late/1m"), lake.number("updated")) == ((0, 6) if updated else (6, 0))
    assert (lake.number("close"), lake.number("closed")) == (2, 2)


def test_buckets_whose_windows_do_not_fit_in_memory_are_closed_in_parts_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(close_task, "MERGED_ROWS_MAX", 3)
    for module in (aggregate, close_task):
        monkeypatch.setattr(module, "MERGE_ROWS_MIN", 2)
    lake = RollupLake(tmp_path, late="update", update_grace_ms=HOUR.millis)
    lake.land([Point(host, 0, 1.0) for host in HOSTS])
    lake.close_all(60_000)
    lake.land([Point(host, 1_000, 1.0) for host in HOSTS])
    lake.close_all(120_000)
    assert lake.values("count", "revision") == {("1m", host, 0): (2, 1) for host in HOSTS}
    first, second = (event for event in lake.recorded.events if isinstance(event, WindowsClosed))
    assert (first.close, first.rows, first.updated) == (1, 12, 0)
    assert (second.close, second.rows, second.updated) == (2, 1, 12), "the row is that of the clock's series"
    lake.windows.refresh()
    assert len(active_files(lake.windows.handle)) > 4


def test_values_are_the_same_in_many_tasks_slices_and_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "TASK_ROWS_MIN", 10)
    for module in (aggregate, close_task):
        monkeypatch.setattr(module, "MERGE_ROWS_MIN", 4)
    lake = RollupLake(tmp_path, (MINUTE, TEN_MINUTES), late="update", update_grace_ms=HOUR.millis)
    for at in (0, 1_000, 70_000, 300_000):
        lake.land([Point(host, at, 1.0) for host in HOSTS])
    lake.close_all(600_000)
    lake.land([Point(host, 2_000, 1.0) for host in HOSTS])
    lake.close_all(660_000)
    assert lake.values("count", "revision") == {
        **{("1m", host, 0): (3, 1) for host in HOSTS},
        **{("1m", host, at): (1, 0) for host in HOSTS for at in (60_000, 300_000)},
        **{("10m", host, 0): (5, 1) for host in HOSTS},
    }


def test_a_compaction_of_partials_changes_no_points_positions_or_later_closes(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path, (MINUTE, TEN_MINUTES), aggregates=Aggregates(ends=True))
    for number in range(8):
        lake.land([Point("a", 0, float(number)), Point("b", number * 1_000, 1.0)])
    lake.land([Point("clock", 60_000, 0.0)])
    lake.work()
    lake.land([Point("a", 1_000, 100.0)])
    before = lake.partials.state(lake.log.partitions())
    report = compact_partials(lake.partials, lake.job.table, EVERYTHING)
    assert (report.files_removed, report.files_added) == (9, 1)
    lake.partials.refresh()
    by_epoch = {file.values: file.rows for file in active_files(lake.partials.handle)}
    assert by_epoch == {("1970-01-01", "0"): 3, ("1970-01-01", "1"): 1}, "a, b and the clock; and what is late"
    assert lake.partial_points() == 18
    assert lake.partials.state(lake.log.partitions()).partitions == before.partitions
    lake.close_all(600_000)
    assert lake.values("count", "sum", "first", "last")["10m", "a", 0] == (9, 128.0, 0.0, 100.0)
    assert (lake.number("late/1m"), lake.number("late/10m")) == (1, 0)


@pytest.mark.parametrize("step", ["close_begun", "close_staged"])
def test_a_compaction_of_partials_during_a_close_loses_and_duplicates_nothing(tmp_path: Path, step: str) -> None:
    lake = RollupLake(tmp_path)
    for _ in range(3):
        lake.land([Point("a", 0, 1.0)])
    lake.land([Point("clock", 60_000, 0.0)])

    def at_step(reached: str) -> None:
        if reached == step:
            assert compact_partials(lake.partials, lake.job.table, EVERYTHING).files_removed > 1

    process = lake.another_process()
    process._environment.at_step = at_step
    lake.work(process)
    assert lake.values("count") == {("1m", "a", 0): (3,)}
    assert lake.partial_points() + lake.number("points_removed") == 4


def test_a_compaction_planned_before_a_close_changes_no_file_of_it(tmp_path: Path) -> None:
    """A stopped process tries to clean; meanwhile another one began a close that may need the files."""
    lake = RollupLake(tmp_path)
    lake.land([Point("a", 0, 1.0)])
    lake.land([Point("clock", 60_000, 0.0)])
    stopped = lake.another_process()
    for _ in range(2):
        chore = lake.due()
        assert chore is not None
        lake.perform(chore)
    clean = lake.due(stopped)
    assert isinstance(clean, Clean)
    lake.land([Point("clock", 120_000, 0.0)])
    lake.perform(BeginClose(2, 120_000, 120_000), lake.another_process())
    lake.perform(clean, stopped)
    assert lake.number("points_removed") == 0
    lake.work()
    assert lake.partial_points() + lake.number("points_removed") == 3


def test_aggregates_added_later_are_null_where_partials_lack_them(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path, (MINUTE, TEN_MINUTES))
    lake.land([Point("a", 0, 1.0)])
    lake.close_all(60_000)
    asked = Aggregates(ends=True, mean=True)
    lake.reopen((MINUTE, TEN_MINUTES), aggregates=asked)
    lake.land([Point("a", 60_000, 3.0)])
    lake.close_all(600_000)
    assert lake.values("count", "mean", "first") == {
        ("1m", "a", 0): (1, None, None),
        ("1m", "a", 60_000): (1, 3.0, 3.0),
        ("10m", "a", 0): (2, 2.0, None),
    }


@pytest.mark.parametrize("windows", [(TEN_MINUTES,), (MINUTE,), (MINUTE, TEN_MINUTES, HOUR), (MINUTE, HOUR)])
def test_another_list_of_windows_is_refused(tmp_path: Path, windows: tuple[Window, ...]) -> None:
    lake = RollupLake(tmp_path, (MINUTE, TEN_MINUTES))
    lake.land([Point("a", 0, 1.0)])
    with pytest.raises(UserError, match="created for 1m, 10m"):
        lake.reopen(windows)
    lake.reopen((MINUTE, TEN_MINUTES))


def test_a_table_that_was_deleted_alone_stops_the_job(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path)
    lake.land([Point("a", 0, 1.0)])
    lake.close_all(60_000)
    lake.land([Point("a", 60_000, 1.0)])
    lake.close_all(120_000)
    shutil.rmtree(tmp_path / "rollups")
    lake.reopen((MINUTE,))
    with pytest.raises(UserError):
        lake.work()


def test_a_compaction_between_staging_and_commit_of_an_update_duplicates_nothing(tmp_path: Path) -> None:
    """The files that the update replaces were removed before its commit: it is done again (RULES C3)."""
    lake = RollupLake(tmp_path, late="update", update_grace_ms=HOUR.millis)
    for at in (0, 60_000, 120_000):
        lake.land([Point("a", at, 1.0)])
        lake.close_all(at + 60_000)
    lake.land([Point("a", 1_000, 1.0)])
    lake.land([Point("clock", 240_000, 0.0)])

    def at_step(step: str) -> None:
        if step == "close_staged":
            lake.windows.refresh()
            assert compact(lake.windows, 10**9).files_removed > 1

    process = lake.another_process()
    process._environment.at_step = at_step
    with pytest.raises(WindowsRewrittenError):
        lake.work(process)
    lake.work()
    assert lake.values("count", "revision") == {
        ("1m", "a", 0): (2, 1),
        ("1m", "a", 60_000): (1, 0),
        ("1m", "a", 120_000): (1, 0),
    }


def test_vacuum_takes_a_staged_file_of_a_close_only_once_the_close_is_complete(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path)
    lake.land([Point("a", 0, 1.0), Point("clock", 60_000, 0.0)])
    fail_at(lake, "close_staged")
    result = ListedTable.of(lake.windows).classify(windows_rules)
    assert not result.dead and result.kept[KeptReason.COMMITTABLE] == 1
    lake.work()
    result = ListedTable.of(lake.windows).classify(windows_rules)
    assert [reason for _, reason in result.dead] == [Dead.CLOSED]
    assert result.kept[KeptReason.ACTIVE] == 1
