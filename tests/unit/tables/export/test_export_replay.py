"""Replay runs of an export at the level of its ledger: each record once, whatever step was the last (Q2, L1, L6)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import InvariantError
from penstock.logs.log import Bounds
from penstock.tables.export.compact import compact
from penstock.tables.export.ledger.entry import Entry, EntryKind, ReplayRecord
from penstock.tables.export.ledger.fold import apply
from penstock.tables.export.rebuild.rebuild import RebuildReport, rebuild
from penstock.tables.export.replays import LedgerRuns, left_to_log
from penstock.tables.export.vacuum import vacuum
from penstock.tables.quarantine.replay import finish_replay
from penstock.tables.quarantine.rows import repeated_places
from penstock.tables.quarantine.table import open_quarantine
from tests.export_root import MONDAY, TUESDAY, WEDNESDAY, ZERO, ExportRoot, job_file, rows_in
from tests.pipes import CrashError
from tests.quarantine_url import export_quarantine
from tests.unit.tables.export.proof.damaged import append_bad, checked, failed, write_with_bad
from tests.unit.tables.export.replayed_root import BAD, in_quarantine, replay, restart, with_bad, with_later_type
from tests.unit.tables.export.test_export_rebuild import lose_ledger


def rebuilt(root: ExportRoot) -> RebuildReport:
    lose_ledger(root)
    report = rebuild(root.open(), {ZERO: Bounds(0, 100)})
    root.table = root.open()
    return report


def test_a_run_brings_rows_and_moves_nothing_but_its_counts(tmp_path: Path) -> None:
    root = with_bad(tmp_path)
    before = root.state.of(ZERO)
    assert replay(root, {("order", MONDAY): [3, 8], ("click", TUESDAY): [4]})
    here = root.state.of(ZERO)
    assert (here.position, here.token, here.lanes) == (before.position, before.token, {})
    assert (here.totals.quarantined, here.totals.replayed, here.totals.written) == (3, 3, before.totals.written)
    assert rows_in(root.lake) == root.expected
    assert in_quarantine(root) == 0
    assert failed(checked(root.job)) == []
    newest = root.table.ledger.last(1)[0]
    assert (newest.kind, root.state.replay_run, root.state.replay_entry) == (EntryKind.REPLAY, 1, newest.number)


@pytest.mark.parametrize("step", ["entry_written", "renaming", "renamed"])
def test_a_run_that_dies_behind_its_entry_is_finished_by_the_next_start(tmp_path: Path, step: str) -> None:
    root = with_bad(tmp_path)
    with pytest.raises(CrashError):
        replay(root, {("order", MONDAY): [3, 8], ("click", MONDAY): [4]}, step=step)
    root.expected.update([("order", 0, 3), ("order", 0, 8), ("click", 0, 4)])
    assert failed(checked(root.job)) == []
    assert restart(root) == 3
    assert (restart(root), in_quarantine(root)) == (0, 0)
    assert rows_in(root.lake) == root.expected
    assert failed(checked(root.job)) == []


def test_a_run_that_dies_before_its_removal_is_taken_out_by_whoever_comes_next(tmp_path: Path) -> None:
    root = with_bad(tmp_path)
    assert replay(root, {("order", MONDAY): [3]}, removes=False)
    assert in_quarantine(root) == 3
    found = checked(root.job)
    assert failed(found) == []
    assert any("unfinished" in each for each in found["rows"].warnings)
    quarantine = open_quarantine(root.job, export_quarantine(root.job))
    assert quarantine is not None
    assert finish_replay(LedgerRuns(root.open()), quarantine) == 1
    assert replay(root, {("order", MONDAY): [4]}, 2)
    assert in_quarantine(root) == 1
    assert failed(checked(root.job)) == []


def test_a_run_that_died_before_its_entry_leaves_only_what_vacuum_takes(tmp_path: Path) -> None:
    root = with_bad(tmp_path)
    root.stage_replay(ZERO, 1, {("order", MONDAY): [3]})
    assert vacuum(root.open()).deleted == ()
    assert replay(root, {("order", MONDAY): [3]})
    assert len(vacuum(root.open()).deleted) == 1
    assert rows_in(root.lake) == root.expected


def test_a_quarantine_that_was_made_anew_knows_no_run_and_nothing_is_owed_to_it(tmp_path: Path) -> None:
    root = with_bad(tmp_path)
    for run, offset in enumerate(BAD, 1):
        assert replay(root, {("order", MONDAY): [offset]}, run)
    shutil.rmtree(export_quarantine(root.job))
    assert restart(root) == 0
    write_with_bad(root, ZERO, (14, 16), {}, (14, 15))
    append_bad(root)
    assert restart(root) == 0
    assert in_quarantine(root) == 2
    assert failed(checked(root.job)) == []


def test_of_two_replays_at_once_one_begins_anew(tmp_path: Path) -> None:
    root = with_bad(tmp_path)
    slow = root.open()
    slow.state()
    assert replay(root, {("order", MONDAY): [3]})
    assert not replay(root, {("order", MONDAY): [3]}, table=slow)
    assert rows_in(root.lake) == root.expected
    with pytest.raises(InvariantError):
        record = ReplayRecord(1, ((ZERO, ((4, 5),)),))
        apply(root.state, Entry(root.state.number + 1, EntryKind.REPLAY, "shop", "b", 0.0, replay=record))


@pytest.mark.parametrize("offsets", [((14, 15),), ((0, 4),)], ids=["beyond the position", "more than were bad"])
def test_what_was_never_bad_cannot_be_replayed(tmp_path: Path, offsets: tuple[tuple[int, int], ...]) -> None:
    root = with_bad(tmp_path)
    record = ReplayRecord(1, ((ZERO, offsets),))
    with pytest.raises(InvariantError, match="never bad"):
        apply(root.state, Entry(root.state.number + 1, EntryKind.REPLAY, "shop", "b", 0.0, replay=record))


def test_a_replayed_row_opens_its_day_again_as_a_late_one_does(tmp_path: Path) -> None:
    root = with_bad(tmp_path)
    assert ("order", MONDAY) not in root.state.open_days
    replay(root, {("order", MONDAY): [3]})
    assert ("order", MONDAY) in root.state.reopened
    assert ("order", MONDAY) in root.state.open_days
    assert ("click", MONDAY) not in root.state.open_days


def test_replayed_files_are_compacted_with_the_others(tmp_path: Path) -> None:
    root = with_bad(tmp_path)
    replay(root, {("order", MONDAY): [3], ("click", MONDAY): [4]})
    replay(root, {("order", MONDAY): [8]}, 2)
    assert [each for each in root.files() if "replayed" in each]
    assert compact(root.open(), all_days=True).files_removed == 5
    assert not [each for each in root.files() if "replayed" in each]
    assert rows_in(root.lake) == root.expected
    assert failed(checked(root.job)) == []


@pytest.mark.parametrize("compacted", [False, True], ids=["as they were written", "compacted"])
def test_a_rebuild_counts_replayed_rows_and_reads_none_of_them_again(tmp_path: Path, compacted: bool) -> None:
    root = with_bad(tmp_path)
    replay(root, {("order", MONDAY): [8], ("click", MONDAY): [3]})
    if compacted:
        compact(root.open(), all_days=True)
    report = rebuilt(root)
    assert report.ok, report.ambiguities
    here = root.state.of(ZERO)
    assert (here.position, here.totals.quarantined, here.totals.replayed) == (14, 3, 2)
    assert (root.state.replay_run, root.state.types["order"].rows) == (1, 7)
    assert restart(root) == 0
    assert in_quarantine(root) == 1
    assert failed(checked(root.job)) == []


def test_a_type_whose_only_rows_were_replayed_is_beyond_them_after_a_rebuild(tmp_path: Path) -> None:
    """Read again from the beginning, the log would give the records a second time, and now they fit."""
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    write_with_bad(root, ZERO, (0, 10), {("order", MONDAY): [each for each in range(10) if each not in BAD]}, BAD)
    append_bad(root)
    replay(root, {("click", MONDAY): BAD})
    assert rebuilt(root).ok
    assert root.state.position_of(ZERO, "click") == 9


def test_a_rebuild_finishes_the_removal_that_the_lost_ledger_owed(tmp_path: Path) -> None:
    root = with_bad(tmp_path)
    replay(root, {("order", MONDAY): [3, 8]}, removes=False)
    assert rebuilt(root).ok
    assert failed(checked(root.job)) == []
    assert restart(root) == 2
    assert in_quarantine(root) == 1
    assert replay(root, {("order", MONDAY): [4]}, 2)
    assert failed(checked(root.job)) == []


def test_replayed_rows_that_no_slice_is_proved_to_have_passed_are_an_ambiguity(tmp_path: Path) -> None:
    root = with_bad(tmp_path)
    write_with_bad(root, ZERO, (14, 16), {}, (14, 15))
    append_bad(root)
    replay(root, {("order", MONDAY): [15]})
    report = rebuilt(root)
    (ambiguity,) = report.ambiguities
    assert (ambiguity.partition, ambiguity.offsets) == ("shop/0", (15, 16))
    assert "beyond the last slice" in ambiguity.reason


def test_a_type_that_reads_the_log_again_takes_nothing_of_that_out_of_quarantine(tmp_path: Path) -> None:
    """An unknown type that is named with `start: beginning` gets its earlier records from the log."""
    later = with_later_type(with_bad(tmp_path))
    state = later.state
    assert left_to_log(state, ZERO, "order") == ()
    (reread, lane) = left_to_log(state, ZERO, "view")
    assert (reread, lane[0]) == ((0, 14), 0)
    later.catch_up(ZERO, {"view": 0}, 14, {("view", MONDAY): [3, 4]})
    assert left_to_log(later.state, ZERO, "view") == ((0, 14),)
    later.write(ZERO, 14, 16, {("view", MONDAY): [14, 15]})
    assert left_to_log(later.state, ZERO, "view") == ((0, 14),)


def test_an_unfinished_run_is_no_fault_where_a_later_type_read_the_log_again(tmp_path: Path) -> None:
    later = with_later_type(with_bad(tmp_path))
    later.catch_up(ZERO, {"view": 0}, 14, {("view", MONDAY): [3, 4]})
    assert failed(checked(later.job)) == []
    replay(later, {("order", MONDAY): [8]}, removes=False)
    assert failed(checked(later.job)) == []
    assert restart(later) == 1
    assert failed(checked(later.job)) == []


def test_where_a_backfill_wrote_nothing_nothing_can_come_twice(tmp_path: Path) -> None:
    later = with_later_type(with_bad(tmp_path))
    later.catch_up(ZERO, {"view": 0}, 8, {})
    later.catch_up(ZERO, {"view": 8}, 14, {("view", MONDAY): [8]})
    assert left_to_log(later.state, ZERO, "view") == ((8, 14),)


def test_a_type_that_is_behind_takes_nothing_that_it_has_still_to_read(tmp_path: Path) -> None:
    root = with_bad(tmp_path)
    root.write(ZERO, 14, 20, {("order", WEDNESDAY): [14]}, left={"click": [16, 17]})
    ((start, _),) = left_to_log(root.state, ZERO, "click")
    assert start == 16
    assert left_to_log(root.state, ZERO, "order") == ()


@pytest.mark.parametrize("again", [(), (4,)])
def test_records_that_are_in_quarantine_twice_are_found(tmp_path: Path, again: Sequence[int]) -> None:
    root = with_bad(tmp_path)
    write_with_bad(root, ZERO, (14, 16), {}, (14, 15, *again))
    append_bad(root)
    quarantine = open_quarantine(root.job, export_quarantine(root.job))
    assert quarantine is not None
    places = [f"{ZERO.topic_id}/{ZERO.number}/{offset}" for offset in again]
    assert sorted(repeated_places(quarantine).to_pylist()) == sorted(places)
