"""Replay runs of an export with `format: delta`: the table of each type takes the files of a run once (Q2, L8)."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from penstock.environment import Environment
from penstock.errors import TransientError
from penstock.lake.delta.compact import compact
from penstock.lake.delta.vacuum import Dead
from penstock.tables.export.delta_types import DeltaTypes
from penstock.tables.export.replays import LedgerRuns, raise_run
from penstock.tables.export.vacuum import drop_lost_files, vacuum
from penstock.tables.quarantine.table import discard
from penstock.tables.registry import kind_of
from tests.export_root import MONDAY, TUESDAY, WEDNESDAY, ZERO, ExportRoot, Place, Rows
from tests.pipes import CrashError, once_at
from tests.unit.tables.export.proof.damaged import append_bad, checked, facts_of, failed, write_with_bad
from tests.unit.tables.export.replayed_root import in_quarantine, replay, restart, with_bad, with_later_type

TARGET_BYTES = 1 << 20
RUN: Rows = {("order", MONDAY): [3, 8], ("click", TUESDAY): [4]}


@pytest.fixture
def root(tmp_path: Path) -> ExportRoot:
    return with_bad(tmp_path, export="format: delta")


def rows_in(root: ExportRoot) -> Counter[Place]:
    """How often each row is in the tables of the types."""
    found: Counter[Place] = Counter()
    for name in root.state.types:
        if (root.lake / name / "_delta_log").exists():
            frame = pl.read_delta(str(root.lake / name)).select("kafka_partition", "kafka_offset")
            found.update((name, partition, offset) for partition, offset in frame.rows())
    return found


def opened(root: ExportRoot, environment: Environment | None = None) -> DeltaTypes:
    table = root.open(environment)
    assert isinstance(table, DeltaTypes)
    return table


@contextmanager
def locked(root: ExportRoot, name: str) -> Iterator[None]:
    """The table of a type can neither be read nor written."""
    log = root.lake / name / "_delta_log"
    log.rename(log.with_name("away"))
    log.write_text("in the way")
    yield
    log.unlink()
    log.with_name("away").rename(log)


def dies(root: ExportRoot, step: str, rows: Rows = RUN, run: int = 1) -> None:
    """A run that gets its entry and dies at a step."""
    with pytest.raises(CrashError):
        replay(root, rows, run, step=step)
    root.expected.update((name, 0, each) for (name, _), offsets in rows.items() for each in offsets)


def test_a_run_brings_rows_into_the_tables_of_their_types_and_moves_no_position(root: ExportRoot) -> None:
    before = [each.state([ZERO]).of(ZERO) for each in opened(root).type_tables()]
    assert replay(root, RUN)
    assert (rows_in(root), in_quarantine(root)) == (root.expected, 0)
    after = [each.state([ZERO]).of(ZERO) for each in opened(root).type_tables()]
    assert [each.position for each in after] == [each.position for each in before]
    assert sorted(each.totals.replayed for each in after) == [1, 2]
    days = pl.read_delta(str(root.lake / "click")).filter(pl.col("kafka_offset") == 4)["day"].to_list()
    assert [str(each) for each in days] == [TUESDAY]
    assert failed(checked(root.job)) == []
    assert not replay(root, RUN), "a second run of the same number"
    assert rows_in(root) == root.expected
    root.write(ZERO, 14, 18, {("order", WEDNESDAY): [14, 15], ("click", WEDNESDAY): [16, 17]})
    assert rows_in(root) == root.expected
    assert failed(checked(root.job)) == []


@pytest.mark.parametrize("step", ["entry_written", "renaming", "type_landed", "renamed"])
def test_a_run_that_dies_behind_its_entry_is_finished_by_the_next_start(root: ExportRoot, step: str) -> None:
    dies(root, step)
    assert failed(checked(root.job)) == []
    assert restart(root) == 3
    assert (restart(root), in_quarantine(root)) == (0, 0)
    assert rows_in(root) == root.expected
    assert failed(checked(root.job)) == []


def test_rows_that_a_table_has_yet_to_take_are_not_seen_and_counted_where_they_are_staged(root: ExportRoot) -> None:
    dies(root, "type_landed")
    table = opened(root)
    assert dict(table.finishing.unseen(table.state())) == {("order", MONDAY): 1}
    assert any("2 rows in 1 files wait" in each for each in checked(root.job)["rows"].warnings)
    table.complete()
    assert not table.finishing.unseen(table.state())


def test_a_table_that_does_not_answer_holds_back_its_type_alone(root: ExportRoot) -> None:
    dies(root, "entry_written")
    table = opened(root)
    with locked(root, "order"):
        table.complete()
        table.carry_leftover()
        assert [(each.type, each.run) for each in table.state().pending] == [("order", 1)]
        assert table.state().position_of(ZERO, "order") == 14, "replayed rows hold no position back"
        reason = table.replay_refusal("order", [MONDAY], 2)
        assert reason is not None and "order" in reason
        assert table.replay_refusal("click", [MONDAY], 2) is None
        root.table = table
        root.write(ZERO, 14, 16, {("click", WEDNESDAY): [14, 15]})
    table.complete()
    assert rows_in(root) == root.expected
    assert restart(root) == 3
    assert failed(checked(root.job)) == []


def test_a_later_run_waits_for_the_one_before_it(root: ExportRoot) -> None:
    """A table that knew run 2 would pass for having run 1."""
    dies(root, "entry_written", {("order", MONDAY): [3]})
    table = opened(root)
    with locked(root, "order"):
        replay(root, {("order", MONDAY): [8], ("click", MONDAY): [4]}, 2, removes=False, table=table)
        assert [each.run for each in table.state().pending] == [1, 2]
    assert restart(root) == 2
    assert rows_in(root) == root.expected


def test_two_that_finish_an_entry_at_once_bring_its_rows_once(root: ExportRoot) -> None:
    dies(root, "entry_written")
    other = opened(root)
    opened(root, Environment(reach=once_at("renaming", other.complete), sleep=lambda _: None)).complete()
    assert rows_in(root) == root.expected


def test_of_two_replays_at_once_one_begins_anew(root: ExportRoot) -> None:
    slow = opened(root)
    slow.state()
    assert replay(root, RUN)
    assert not replay(root, RUN, table=slow)
    assert rows_in(root) == root.expected


def test_an_exporter_goes_on_beside_a_replay_and_finishes_what_it_owes(root: ExportRoot) -> None:
    dies(root, "entry_written")
    root.write(ZERO, 14, 18, {("order", WEDNESDAY): [14, 15], ("click", WEDNESDAY): [16, 17]})
    assert rows_in(root) == root.expected
    assert restart(root) == 3
    assert failed(checked(root.job)) == []


@pytest.mark.parametrize("step", ["entry_written", "type_landed"])
def test_compaction_and_vacuum_between_neither_lose_nor_double(root: ExportRoot, step: str) -> None:
    dies(root, step, {("order", MONDAY): [3, 8], ("click", MONDAY): [4]})
    late = opened(root)
    late.ledger.refresh()
    root.stage_replay(ZERO, 1, {("click", MONDAY): [4]})
    assert vacuum(opened(root)).deleted == () or step == "type_landed"
    opened(root).complete()
    for each in opened(root).type_tables():
        assert compact(each, TARGET_BYTES).files_removed
    assert {dead.reason for dead in vacuum(opened(root)).deleted} <= {Dead.REPLAYED}
    late.complete()
    assert rows_in(root) == root.expected
    assert restart(root) == 3
    assert failed(checked(root.job)) == []


def test_a_type_whose_first_rows_are_replayed_begins_its_table_with_them(root: ExportRoot) -> None:
    later = with_later_type(root)
    later.catch_up(ZERO, {"view": 0}, 14, {})
    assert replay(later, {("view", MONDAY): [3]})
    assert failed(checked(later.job)) == []
    later.write(ZERO, 14, 16, {("view", WEDNESDAY): [14, 15]})
    assert failed(checked(later.job)) == []
    assert rows_in(later)["view", 0, 3] == 1
    (view,) = [each for each in opened(later).type_tables() if "view" in each.spec.path]
    assert view.state([ZERO]).of(ZERO).totals.replayed == 1


def test_a_ledger_that_was_begun_anew_goes_on_from_the_runs_that_the_tables_know(root: ExportRoot) -> None:
    """A table would take a run with a number that it knows for one that it has."""
    assert replay(root, {("order", MONDAY): [3]})
    shutil.rmtree(root.lake / "_penstock")
    anew = ExportRoot(root.job_path)
    anew.start(ZERO, offset=14)
    write_with_bad(anew, ZERO, (14, 16), {}, (14, 15))
    append_bad(anew)
    table = opened(anew)
    reason = table.replay_refusal("order", [MONDAY], 1)
    assert reason is not None and "run 1" in reason
    raise_run(table, table.runs_taken())
    assert (LedgerRuns(table).last(), table.replay_refusal("order", [MONDAY], 2)) == (1, None)
    raise_run(table, table.runs_taken())
    assert replay(anew, {("order", MONDAY): [14]}, 2)
    assert rows_in(anew)["order", 0, 14] == 1
    assert (restart(anew), in_quarantine(anew)) == (0, 1)


def test_a_verification_does_not_mind_what_is_replayed_meanwhile(root: ExportRoot) -> None:
    facts = facts_of(root.job)
    quarantined = facts.quarantine.taken
    replay(root, {("order", MONDAY): [3]}, removes=False)
    assert quarantined.rows == 3
    assert failed(checked(root.job, facts)) == []
    for each in opened(root).type_tables():
        compact(each, TARGET_BYTES)
    with pytest.raises(TransientError, match="meanwhile"):
        checked(root.job, facts)
    assert failed(checked(root.job)) == []


def test_what_a_run_took_is_not_discarded_and_the_rest_is(root: ExportRoot) -> None:
    dies(root, "entry_written", {("order", MONDAY): [3, 8]})
    discard(root.job, kind_of(root.job).listings(root.job, Environment()), Environment())
    assert in_quarantine(root) == 0
    assert restart(root) == 0
    assert rows_in(root) == root.expected
    assert DeltaTable(str(root.lake / "order")).to_pyarrow_table().num_rows == 8


@pytest.mark.parametrize("export", ["format: delta", "format: parquet"])
def test_a_replayed_file_that_is_lost_before_it_is_seen_is_given_up(tmp_path: Path, export: str) -> None:
    root = with_bad(tmp_path, export=export)
    with pytest.raises(CrashError):
        replay(root, RUN, step="entry_written")
    (lost,) = [each for each in root.state.unfinished.renames if each.type == "order"]
    (root.lake / lost.source).unlink()
    table = root.open()
    table.complete()
    assert "--drop-lost" in table.failing_types()["order"]
    assert [each.rows for each in drop_lost_files(table)] == [2]
    assert table.failing_types() == {}
    assert restart(root) == 3
    totals = root.state.of(ZERO).totals
    assert (totals.quarantined, totals.replayed, totals.vanished) == (1, 1, 2)
    assert failed(checked(root.job)) == []
