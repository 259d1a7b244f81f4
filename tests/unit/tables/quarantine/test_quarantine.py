"""The quarantine of a job: its own records only, of the present table only, and never a file that is not there (Q1)."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from penstock.cli.quarantine import app
from penstock.environment import Environment, new_batch_id
from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import position_key, replay_key, table_key
from penstock.lake.delta.table import Change, Table
from penstock.lake.delta.vacuum import Kept
from penstock.lake.proposal import Proposal, SlicePart, StartPart
from penstock.logs.log import Partition
from penstock.tables.quarantine.discard import DiscardReport, discard
from penstock.tables.quarantine.replayed import ReplayRun, TableRuns, finish_replay, remove_run, run_record
from penstock.tables.quarantine.rows import count_rows, find_rows, list_rows
from penstock.tables.quarantine.table import (
    EarlierLifeError,
    Quarantine,
    QuarantineGoneError,
    open_quarantine,
    refuse_earlier_life,
    refuse_earlier_table,
)
from penstock.tables.registry import kind_of
from penstock.tables.single.vacuum import vacuum
from tests.export_root import MONDAY, ExportRoot, job_file
from tests.export_root import ZERO as EXPORTED
from tests.lake import JOB, ZERO, Lake, commit
from tests.pipes import CrashError, crash_at
from tests.unit.tables.export.proof.damaged import append_bad, checked, failed, write_with_bad

OTHER = "other-job"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "t"))


def job_of(lake: Lake, name: str = JOB) -> JobSpec:
    return replace(lake.job, name=name)


def table_of(lake: Lake, job: str) -> Table:
    """A handle on the lake's table for one of several jobs that write to it."""
    opened = lake.open()
    return Table(opened.spec, job, opened.handle, opened.environment)


def start(lake: Lake, job: str = JOB) -> tuple[Table, Quarantine]:
    table = table_of(lake, job)
    table.commit(Proposal(job, new_batch_id(), (StartPart(ZERO, 0, 1),)))
    return table, Quarantine(job_of(lake, job), table, table.environment)


def commit_bad(lake: Lake, table: Table, start: int, end: int) -> SlicePart:
    """A data commit that lists quarantine files; nobody has appended them yet."""
    part = lake.stage_bad(ZERO, start, end, table.job)
    assert not table.commit(Proposal(table.job, new_batch_id(), (part,))).refused
    return part


def rows_of(lake: Lake, job: str = JOB) -> list[int]:
    frame = pl.read_delta(lake.spec.quarantine_path).filter(pl.col("job") == job)
    return sorted(frame["offset"].to_list())


def opened(lake: Lake, job: str = JOB) -> Table:
    table = open_quarantine(job_of(lake, job))
    assert table is not None
    return table


def mark(table: Table, partition: Partition = ZERO) -> int | None:
    return table.state([partition]).of(partition).quarantine_mark


# several jobs, one quarantine


def test_a_crash_before_the_append_costs_no_other_job_its_records(lake: Lake) -> None:
    mine, my_quarantine = start(lake)
    theirs, their_quarantine = start(lake, OTHER)
    commit_bad(lake, mine, 0, 3)
    listed = commit_bad(lake, theirs, 0, 5)
    # Both died there. Whoever comes first takes its own files and leaves the other's alone.
    my_quarantine.append_missing({ZERO: mark(mine)})
    assert (rows_of(lake), rows_of(lake, OTHER)) == ([0, 1, 2], [])
    report = vacuum(table_of(lake, JOB), opened(lake))
    assert report.deleted == ()
    assert report.kept[Kept.PENDING] == 1
    their_quarantine.append_missing({ZERO: mark(theirs)})
    assert (rows_of(lake), rows_of(lake, OTHER)) == ([0, 1, 2], [0, 1, 2, 3, 4])
    assert (Path(lake.spec.quarantine_path) / listed.quarantine_files[0].path).exists()


def test_vacuum_leaves_what_a_job_of_another_table_staged_in_a_shared_quarantine(tmp_path: Path) -> None:
    ours, theirs = Lake(str(tmp_path / "t")), Lake(str(tmp_path / "u"))
    table, quarantine = start(ours)
    quarantine.append([commit_bad(ours, table, 0, 9)])
    # Their batch of the same topic is far behind ours, and may still be committed.
    staged = replace_quarantine(theirs, ours).stage_bad(ZERO, 2, 4, OTHER)
    report = vacuum(table_of(ours, JOB), opened(ours))
    assert report.deleted == ()
    assert report.kept[Kept.OTHERS] == 1
    assert (Path(ours.spec.quarantine_path) / staged.quarantine_files[0].path).exists()


def replace_quarantine(lake: Lake, other: Lake) -> Lake:
    """Stages bad records in the other lake's quarantine."""
    return Lake(other.path, lake.options)


def test_each_job_sees_counts_and_replays_its_own_records(lake: Lake) -> None:
    for job in (JOB, OTHER):
        table, quarantine = start(lake, job)
        quarantine.append([commit_bad(lake, table, 0, 3 if job == JOB else 5)])
    mine, theirs = opened(lake), opened(lake, OTHER)
    assert (count_rows(mine), count_rows(theirs)) == (3, 5)
    assert (list_rows(mine, 9).rows, list_rows(theirs, 9).rows) == (3, 5)
    assert [row["job"] for row in find_rows(mine, ZERO.topic, 0, 1)] == [JOB]
    run = ReplayRun(1, "b", {ZERO: ((0, 2),)})
    assert remove_run(mine, run) == 2
    assert (rows_of(lake), rows_of(lake, OTHER)) == ([2], [0, 1, 2, 3, 4])


# a table that was deleted and made again


def start_over(lake: Lake) -> None:
    shutil.rmtree(lake.path)


def test_the_quarantine_of_an_earlier_table_is_refused_before_a_new_one_is_made(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    start_over(lake)
    with pytest.raises(EarlierLifeError) as refused:
        refuse_earlier_table(lake.job, Environment())
    assert "penstock quarantine discard" in refused.value.hint and "table.delta.quarantine" in refused.value.hint
    assert not Path(lake.path).exists()
    start(lake)
    with pytest.raises(EarlierLifeError):
        refuse_earlier_table(lake.job, Environment())


def test_a_process_that_never_looked_appends_nothing_to_the_quarantine_of_an_earlier_table(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    start_over(lake)
    table, quarantine = start(lake)
    part = commit_bad(lake, table, 0, 2)
    with pytest.raises(EarlierLifeError):
        quarantine.append([part])
    assert rows_of(lake) == [0, 1, 2]
    assert vacuum(table_of(lake, JOB), opened(lake)).kept[Kept.PENDING] == 1


def test_after_a_discard_the_new_table_quarantines_from_the_beginning(lake: Lake) -> None:
    other, others_quarantine = start(lake, OTHER)
    others_quarantine.append([commit_bad(lake, other, 0, 4)])
    other_lake = Lake(lake.path + "2")
    shutil.move(lake.path, other_lake.path)
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    replayed(table, opened(lake))
    start_over(lake)
    assert discard(lake.job, kind_of(lake.job).listings, Environment()) == DiscardReport(rows=2, earlier_table=True)
    assert (rows_of(lake), rows_of(lake, OTHER)) == ([], [0, 1, 2, 3])
    refuse_earlier_table(lake.job, Environment())
    table, quarantine = start(lake)
    # The first two offsets only: an old position of 3 would make them look appended.
    commit_bad(lake, table, 0, 2)
    quarantine.append_missing({ZERO: mark(table)})
    assert rows_of(lake) == [0, 1]
    # An old run of the same number would keep replayed records in quarantine.
    replayed(table, opened(lake))
    assert rows_of(lake) == [1]


def replayed(table: Table, quarantine: Table) -> None:
    """Run 1 of a replay writes offset 0, and is finished."""
    run = ReplayRun(1, "b", {ZERO: ((0, 1),)})
    table.swap(
        lambda: (
            Change([], {replay_key(table.job): 1}, run_record(table.job, run, ()))
            if not table.transaction(replay_key(table.job))
            else None
        )
    )
    assert finish_replay(TableRuns(table), quarantine) == 1


def test_an_emptied_quarantine_of_an_earlier_table_becomes_the_new_ones(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 1)])
    replayed(table, opened(lake))
    start_over(lake)
    refuse_earlier_table(lake.job, Environment())
    table, quarantine = start(lake)
    commit_bad(lake, table, 0, 1)
    assert vacuum(table_of(lake, JOB), opened(lake)).kept[Kept.PENDING] == 1
    quarantine.append_missing({ZERO: mark(table)})
    assert rows_of(lake) == [0]
    replayed(table, opened(lake))
    assert rows_of(lake) == []


def test_a_quarantine_that_does_not_say_which_table_it_is_of_is_refused_only_with_something_in_it(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 1)])
    refuse_earlier_table(job_of(lake, OTHER), Environment())
    unmarked = opened(lake)
    unmarked.commit_actions([], {table_key(JOB): 0}, {})
    with pytest.raises(EarlierLifeError):
        refuse_earlier_table(lake.job, Environment())


# a quarantine that was deleted


def test_files_that_are_gone_are_never_named(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    shutil.rmtree(lake.spec.quarantine_path)
    quarantine = Quarantine(lake.job, table, table.environment)
    with pytest.raises(QuarantineGoneError) as gone:
        quarantine.append_missing({ZERO: mark(table)})
    assert "3 quarantined records" in gone.value.primary
    assert "offsets 0 to 2 of web/0" in gone.value.detail
    assert "penstock quarantine discard" in gone.value.hint
    assert not Path(lake.spec.quarantine_path, "_delta_log").exists()


def test_a_loss_that_is_accepted_lets_the_job_go_on(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    shutil.rmtree(lake.spec.quarantine_path)
    version = table.version
    assert discard(lake.job, kind_of(lake.job).listings, Environment()) == DiscardReport(unappended=True)
    assert DeltaTable(lake.path).version() == version
    quarantine = Quarantine(lake.job, table, table.environment)
    quarantine.append_missing({ZERO: mark(table)})
    commit_bad(lake, table, 3, 5)
    quarantine.append_missing({ZERO: mark(table)})
    assert rows_of(lake) == [3, 4]


def test_a_quarantine_without_its_log_takes_its_files_again(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    shutil.rmtree(Path(lake.spec.quarantine_path, "_delta_log"))
    Quarantine(lake.job, table, table.environment).append_missing({ZERO: mark(table)})
    assert rows_of(lake) == [0, 1, 2]


# discarding


@pytest.mark.parametrize(("step", "left"), [("discard_checked", [0, 1, 2]), ("discarded", [])])
def test_a_discard_that_crashes_is_all_or_nothing(step: str, left: list[int], lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    with pytest.raises(CrashError):
        discard(lake.job, kind_of(lake.job).listings, Environment(reach=crash_at(step)))
    assert rows_of(lake) == left
    discard(lake.job, kind_of(lake.job).listings, Environment())
    assert rows_of(lake) == []


def test_a_second_discard_writes_nothing(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    discard(lake.job, kind_of(lake.job).listings, Environment())
    version = opened(lake).version
    assert discard(lake.job, kind_of(lake.job).listings, Environment()) == DiscardReport()
    assert opened(lake).version == version
    assert opened(lake).transaction(position_key(JOB, ZERO)) == 3


def test_a_file_that_another_writer_mixed_keeps_the_rows_of_others(lake: Lake) -> None:
    for job in (JOB, OTHER):
        table, quarantine = start(lake, job)
        quarantine.append([commit_bad(lake, table, 0, 2)])
    DeltaTable(lake.spec.quarantine_path).optimize.compact()
    assert count_rows(opened(lake)) == 2
    assert discard(lake.job, kind_of(lake.job).listings, Environment()).rows == 2
    assert (rows_of(lake), rows_of(lake, OTHER)) == ([], [0, 1])


def test_the_command_asks_first_and_tells_what_went(lake: Lake, tmp_path: Path) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    job_file = lake.job_file(tmp_path)
    refused = penstock("discard", job_file)
    assert isinstance(refused.exception, UserError) and "--yes" in refused.exception.hint
    assert rows_of(lake) == [0, 1, 2]
    told = json.loads(penstock("discard", job_file, "--yes", "--json").stdout)
    assert (told["job"], told["rows"], told["earlier_table"]) == (JOB, 3, False)
    assert rows_of(lake) == []
    assert "0 quarantined records" in penstock("discard", job_file).stdout


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_good_rows_are_no_concern_of_the_quarantine(lake: Lake) -> None:
    table, _ = start(lake)
    commit(table, lake.stage(ZERO, 0, 3))
    assert discard(lake.job, kind_of(lake.job).listings, Environment()) == DiscardReport()
    assert not Path(lake.spec.quarantine_path).exists()


# exports


def test_the_quarantine_of_an_earlier_export_is_refused_and_can_be_discarded(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(EXPORTED)
    write_with_bad(root, EXPORTED, (0, 10), {("order", MONDAY): range(6)}, [6, 7], filtered=2)
    append_bad(root)
    refuse_earlier_life(root.job, root.state.life, open_quarantine(root.job))
    shutil.rmtree(root.lake)
    root = ExportRoot(job_file(tmp_path))
    with pytest.raises(EarlierLifeError) as refused:
        refuse_earlier_life(root.job, root.state.life, open_quarantine(root.job))
    assert "table.export.quarantine" in refused.value.hint
    root.start(EXPORTED)
    write_with_bad(root, EXPORTED, (0, 10), {("order", MONDAY): range(9)}, [9])
    checks = checked(root.job)
    assert failed(checks) == ["rows", "offsets"]
    assert "belongs to an earlier table" in checks["rows"].detail
    with pytest.raises(EarlierLifeError):
        append_bad(root)
    assert discard(root.job, kind_of(root.job).listings, Environment()) == DiscardReport(
        rows=2, unappended=True, earlier_table=True
    )
    write_with_bad(root, EXPORTED, (10, 20), {("order", MONDAY): range(10, 19)}, [19])
    append_bad(root)
    assert pl.read_delta(root.job.table.quarantine_path)["offset"].to_list() == [19]
