"""Replay runs of an export in both formats: each record is in its type or in quarantine after any crash (RULES Q2)."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from penstock.errors import PenstockError, TransientError
from penstock.logs.log import Slice
from penstock.quarantine.replay import OvertakenError, finish_replay
from penstock.quarantine.table import open_quarantine
from penstock.tables.export.upkeep import vacuum
from penstock.tables.export.writer import ExportRuns, replayed_slice
from tests.support.export_root import MONDAY, TUESDAY, WEDNESDAY, ZERO, ExportRoot, Place, Rows
from tests.support.export_root import rows_in as plain_rows
from tests.support.pipes import CrashError
from tests.support.quarantine_url import export_quarantine
from tests.unit.tables.export.bad_records import in_quarantine, write_with_bad
from tests.unit.tables.export.processes import acting_at, compacted, dying_at, quiet
from tests.unit.tables.export.replayed_root import (
    BAD,
    commit_run,
    finish_runs,
    replay,
    staged_run,
    with_bad,
    with_later_type,
)

RUN: Rows = {("order", MONDAY): [3, 8], ("click", TUESDAY): [4]}
FORMATS = ("format: parquet", "format: delta")


@pytest.fixture(params=FORMATS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> ExportRoot:
    return with_bad(tmp_path, export=request.param)


def rows_of(root: ExportRoot) -> Counter[Place]:
    """How often readers find each row."""
    if root.logs.is_plain:
        return plain_rows(root.lake)
    counter: Counter[Place] = Counter()
    for name in root.job.table.types:
        places = pl.read_delta(str(root.lake / name)).select("kafka_partition", "kafka_offset").rows()
        counter.update((name, *place) for place in places)
    return counter


def check_each_once(root: ExportRoot) -> None:
    """Every bad record is in one type or in quarantine, and all others are where they were."""
    offsets = Counter(offset for _, _, offset in rows_of(root).elements()) + Counter(in_quarantine(root))
    assert offsets == Counter(range(14))


@contextmanager
def locked(root: ExportRoot, name: str) -> Iterator[None]:
    """The log of a type can neither be read nor written."""
    log = root.lake / (f"_penstock/shop/types/{name}/_delta_log" if root.logs.is_plain else f"{name}/_delta_log")
    log.rename(log.with_name("away"))
    log.write_text("in the way")
    yield
    log.unlink()
    log.with_name("away").rename(log)


def test_a_replay_adds_rows_and_moves_no_position(root: ExportRoot) -> None:
    before = root.state.of(ZERO)
    replay(root, RUN)
    state = root.state.of(ZERO)
    assert (state.position, state.token, state.lags) == (before.position, before.token, {})
    assert (state.totals.quarantined, state.totals.replayed, state.totals.written) == (3, 3, before.totals.written)
    assert (rows_of(root), in_quarantine(root)) == (root.expected, [])
    root.write(ZERO, 14, 18, {("order", WEDNESDAY): [14, 15], ("click", WEDNESDAY): [16, 17]})
    assert rows_of(root) == root.expected


# killed


@pytest.mark.parametrize(("step", "visit"), [("replay_begun", 1), ("type_committed", 1), ("type_committed", 2)])
def test_a_run_that_dies_is_finished_by_the_next_start(root: ExportRoot, step: str, visit: int) -> None:
    """`click` has one row of the run, and is written before `order`, which has two."""
    with pytest.raises(CrashError):
        replay(root, RUN, environment=dying_at(step, visit))
    assert finish_runs(root) == 3
    assert in_quarantine(root) == []
    check_each_once(root)
    assert finish_runs(root) == 0


@pytest.mark.parametrize("step", ["renaming", "renamed"])
def test_a_run_that_dies_among_its_renames_is_finished_by_the_next_start(tmp_path: Path, step: str) -> None:
    root = with_bad(tmp_path)
    with pytest.raises(CrashError):
        replay(root, RUN, environment=dying_at(step))
    assert finish_runs(root) == 3
    check_each_once(root)


def test_a_run_that_dies_before_its_removal_is_removed_by_the_next_process(root: ExportRoot) -> None:
    replay(root, {("order", MONDAY): [3]}, removes=False)
    assert in_quarantine(root) == [3, 4, 8]
    assert finish_runs(root) == 1
    replay(root, {("order", MONDAY): [4]}, 2)
    assert in_quarantine(root) == [8]
    assert rows_of(root) == root.expected


def test_a_replay_that_died_before_its_first_commit_leaves_only_files_that_vacuum_deletes(root: ExportRoot) -> None:
    root.stage_replay(ZERO, 1, {("order", MONDAY): [3]})
    assert vacuum(root.open()).deleted == ()
    replay(root, {("order", MONDAY): [3]})
    assert len(vacuum(root.open()).deleted) == 1
    assert rows_of(root) == root.expected


def test_an_export_continues_while_a_killed_replay_is_unfinished(root: ExportRoot) -> None:
    with pytest.raises(CrashError):
        replay(root, RUN, environment=dying_at("type_committed"))
    root.table = root.open()
    root.table.finish_pending([ZERO])
    root.write(ZERO, 14, 18, {("order", WEDNESDAY): [14, 15], ("click", WEDNESDAY): [16, 17]})
    assert finish_runs(root) == 3
    root.expected += Counter((name, 0, offset) for (name, _), offsets in RUN.items() for offset in offsets)
    assert rows_of(root) == root.expected
    assert in_quarantine(root) == []


# several processes


def test_a_replay_whose_run_number_is_taken_is_refused(root: ExportRoot) -> None:
    slow, staged = root.open(), staged_run(root, RUN)
    slow.logs.state()
    replay(root, RUN)
    with pytest.raises(OvertakenError):
        commit_run(root, staged, slow)
    assert rows_of(root) == root.expected


@pytest.mark.parametrize("step", ["replay_begun", "type_committed"])
def test_a_run_that_was_finished_by_another_process_while_it_slept_lands_nothing_more(
    root: ExportRoot, step: str
) -> None:
    """Other records are quarantined and replayed meanwhile."""

    def overtake() -> None:
        assert finish_runs(root) == 3
        write_with_bad(root, ZERO, (14, 16), {}, (14, 15))
        replay(root, {("order", WEDNESDAY): [14, 15]}, 2)

    replay(root, RUN, environment=acting_at(step, overtake))
    assert rows_of(root) == root.expected
    assert in_quarantine(root) == []


def test_a_type_that_cannot_be_written_has_its_rows_of_a_run_once_it_can(root: ExportRoot) -> None:
    table = root.open()
    with locked(root, "order"):
        with pytest.raises(TransientError, match="replay run 1 cannot be finished: type order"):
            commit_run(root, staged_run(root, RUN), table)
        assert in_quarantine(root) == [3, 4, 8]
    assert finish_runs(root) == 3
    check_each_once(root)


@pytest.mark.parametrize("step", ["replay_begun", "type_committed"])
def test_compaction_and_vacuum_in_the_middle_of_a_run_neither_lose_nor_double(root: ExportRoot, step: str) -> None:
    rows: Rows = {("order", MONDAY): [3, 8], ("click", MONDAY): [4]}

    def maintain() -> None:
        vacuum(root.open())
        assert compacted(root.open(), all_days=True).failed == ()

    replay(root, rows, environment=acting_at(step, maintain))
    assert rows_of(root) == root.expected
    maintain()
    assert rows_of(root) == root.expected
    assert in_quarantine(root) == []


# types that cannot be opened


def test_a_type_whose_log_cannot_be_opened_is_not_treated_as_empty_in_a_replay(root: ExportRoot) -> None:
    """Its rows would stay in quarantine for ever and be replayed a second time."""
    with pytest.raises(CrashError):
        replay(root, RUN, environment=dying_at("type_committed", 2))
    quarantine = open_quarantine(root.job, export_quarantine(root.job))
    table = root.open()
    with locked(root, "order"):
        table.logs.type_logs(refresh=True)
        with pytest.raises(PenstockError, match="order"):
            finish_replay(ExportRuns(table), quarantine)
        assert in_quarantine(root) == [3, 4, 8]
    assert finish_runs(root) == 3
    check_each_once(root)


# days


def test_a_replayed_row_opens_its_day_again_as_a_late_one_does(root: ExportRoot) -> None:
    marker = root.lake / "_penstock/shop/complete/order" / f"{MONDAY}.json"
    assert marker.exists()
    replay(root, {("order", MONDAY): [3]})
    assert not marker.exists()
    table = root.open()
    table.logs.state()
    complete = {name: table.markers.is_complete(name, MONDAY) for name in ("order", "click")}
    assert complete == {"order": False, "click": True}
    finish_runs(root)
    assert not marker.exists()


# files


def test_replayed_files_are_compacted_with_the_others(root: ExportRoot) -> None:
    replay(root, {("order", MONDAY): [3], ("click", MONDAY): [4]})
    replay(root, {("order", MONDAY): [8]}, 2)
    assert compacted(root.open(), all_days=True).files_removed == 5
    assert rows_of(root) == root.expected


def test_a_type_whose_first_rows_are_replayed_has_them_and_those_that_follow(root: ExportRoot) -> None:
    later = with_later_type(root)
    replay(later, {("view", MONDAY): [3]})
    later.write(ZERO, 14, 16, {("view", WEDNESDAY): [14, 15]})
    assert rows_of(later) == later.expected
    assert later.state.of(ZERO).totals.replayed == 1


# the quarantine


def test_a_deleted_quarantine_has_no_runs_and_nothing_pending(root: ExportRoot) -> None:
    for number, offset in enumerate(BAD, 1):
        replay(root, {("order", MONDAY): [offset]}, number)
    shutil.rmtree(export_quarantine(root.job))
    root.table = root.open(quiet())
    write_with_bad(root, ZERO, (14, 16), {}, (14, 15))
    assert finish_runs(root) == 0
    assert in_quarantine(root) == [14, 15]


def test_replay_skips_records_that_a_lagging_type_will_read(tmp_path: Path) -> None:
    root = with_bad(tmp_path)
    root.write(ZERO, 14, 20, {("order", WEDNESDAY): [14]}, deferred={"click": [16, 17]})
    left = replayed_slice(root.logs, Slice(ZERO, 0, 20, 0)).left
    assert left == {"order": 20, "click": 16}
