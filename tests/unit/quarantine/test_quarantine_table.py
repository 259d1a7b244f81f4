"""The quarantine of a job: one for each job and incarnation of its table, and never a file that is not there (Q1)."""

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
from penstock.lake.delta.keys import position_key, quarantine_key, replay_key
from penstock.lake.delta.table import DeltaLog
from penstock.lake.delta.vacuum import Dead, KeptReason, ListedTable, by_end
from penstock.lake.proposal import Proposal, SlicePart, StartPart
from penstock.quarantine.replay import ReplayRun, TableRuns, finish_replay, remove_run, run_change
from penstock.quarantine.rows import count_rows, find_rows, list_rows
from penstock.quarantine.table import (
    DiscardReport,
    Listings,
    Quarantine,
    QuarantineGoneError,
    discard,
    listed_marks,
    open_quarantine,
    quarantine_rules,
)
from penstock.tables.registry import kind_of
from penstock.tables.single.table import vacuum
from tests.support.lake import JOB, ONE, ZERO, Lake, commit
from tests.support.pipes import CrashError, crash_at

OTHER = "other-job"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "t"))


def job_of(lake: Lake, name: str = JOB) -> JobSpec:
    return replace(lake.job, name=name)


def table_of(lake: Lake, job: str) -> DeltaLog:
    """A handle on the lake's table for one of several jobs that write to it."""
    opened = lake.open()
    return DeltaLog(opened.spec, job, opened.handle, opened.environment)


def start(lake: Lake, job: str = JOB) -> tuple[DeltaLog, Quarantine]:
    table = table_of(lake, job)
    table.commit(Proposal(job, new_batch_id(), (StartPart(ZERO, 0, 1),)))
    return table, Quarantine(job_of(lake, job), table, table.environment)


def commit_bad(lake: Lake, table: DeltaLog, start: int, end: int) -> SlicePart:
    """A data commit that lists quarantine files; no process has appended them yet."""
    part = lake.stage_bad(ZERO, start, end, table.job)
    assert not table.commit(Proposal(table.job, new_batch_id(), (part,))).refused
    return part


def rows_of(lake: Lake, job: str = JOB) -> list[int]:
    return sorted(pl.read_delta(lake.quarantine(job))["offset"].to_list())


def opened(lake: Lake, job: str = JOB) -> DeltaLog:
    table = open_quarantine(job_of(lake, job), lake.quarantine(job))
    assert table is not None
    return table


def listings(lake: Lake) -> Listings | None:
    return kind_of(lake.job).listings(lake.job, Environment())


def replayed(table: DeltaLog, quarantine: DeltaLog) -> None:
    """Run 1 of a replay writes offset 0, and is finished."""
    run = ReplayRun(1, "b", {ZERO: ((0, 1),)})
    table.swap(lambda: None if table.transaction(replay_key(table.job)) else run_change(table, run, ()))
    assert finish_replay(TableRuns(table), quarantine) == 1


def test_the_quarantine_lies_inside_the_table_under_job_and_table_id(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    table_id = DeltaTable(lake.path).metadata().id
    assert quarantine.url == f"{lake.path}/_quarantine/{JOB}/{table_id}"
    assert sorted(pl.read_delta(quarantine.url)["offset"]) == [0, 1, 2]
    assert lake.rows() == []


def test_killed_between_data_commit_and_append_the_next_process_appends(lake: Lake) -> None:
    table, _ = start(lake)
    commit_bad(lake, table, 0, 3)
    commit_bad(lake, table, 3, 5)
    restarted = Quarantine(lake.job, table, table.environment)
    restarted.append_missing(table, [ZERO])
    restarted.append_missing(table, [ZERO])
    assert rows_of(lake) == [0, 1, 2, 3, 4]


# two jobs on one table


def test_two_jobs_on_one_table_have_separate_quarantines(lake: Lake) -> None:
    for job in (JOB, OTHER):
        table, quarantine = start(lake, job)
        quarantine.append([commit_bad(lake, table, 0, 3 if job == JOB else 5)])
    first, second = opened(lake), opened(lake, OTHER)
    assert (count_rows(first), count_rows(second)) == (3, 5)
    assert (list_rows(first, 9).rows, list_rows(second, 9).rows) == (3, 5)
    assert [row["job"] for row in find_rows(first, ZERO.topic, 0, 1)] == [JOB]
    assert remove_run(first, ReplayRun(1, "b", {ZERO: ((0, 2),)})) == 2
    assert (rows_of(lake), rows_of(lake, OTHER)) == ([2], [0, 1, 2, 3, 4])
    assert discard(lake.job, listings(lake), Environment()) == DiscardReport(rows=1)
    assert (rows_of(lake), rows_of(lake, OTHER)) == ([], [0, 1, 2, 3, 4])


def test_a_crash_before_the_append_costs_no_other_job_its_records(lake: Lake) -> None:
    table, quarantine = start(lake)
    other_table, other_quarantine = start(lake, OTHER)
    commit_bad(lake, table, 0, 3)
    listed = commit_bad(lake, other_table, 0, 5)
    quarantine.append_missing(table, [ZERO])
    assert rows_of(lake) == [0, 1, 2]
    assert vacuum(table_of(lake, JOB)).deleted == ()
    assert Path(lake.quarantine(OTHER), listed.quarantine_files[0].path).exists()
    other_quarantine.append_missing(other_table, [ZERO])
    assert (rows_of(lake), rows_of(lake, OTHER)) == ([0, 1, 2], [0, 1, 2, 3, 4])


# a table that was deleted and created again


@pytest.mark.parametrize("deleted", ["", "_delta_log"])
def test_a_recreated_table_has_an_empty_quarantine_and_old_rows_are_not_replayed_into_it(
    deleted: str, lake: Lake
) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    replayed(table, opened(lake))
    old = Path(quarantine.url)
    shutil.rmtree(Path(lake.path, deleted))
    table, quarantine = start(lake)
    assert quarantine.table() is None
    assert listings(lake) == Listings(lake.quarantine(), {}, 0)
    assert discard(lake.job, listings(lake), Environment()) == DiscardReport()
    # The first two offsets only: with the old position, which is 3, they would count as appended.
    commit_bad(lake, table, 0, 2)
    quarantine.append_missing(table, [ZERO])
    assert rows_of(lake) == [0, 1]
    # With the old run number, which is 1, this run would count as finished.
    replayed(table, opened(lake))
    assert rows_of(lake) == [1]
    vacuum(table)
    if deleted:
        assert sorted(pl.read_delta(str(old))["offset"]) == [1, 2]


def test_there_is_nothing_to_discard_without_a_table(lake: Lake) -> None:
    assert listings(lake) is None
    assert discard(lake.job, listings(lake), Environment()) == DiscardReport()


# several logs that list files for one quarantine


def test_each_log_has_its_own_position_of_a_partition(tmp_path: Path, lake: Lake) -> None:
    home, quarantine = start(lake)
    logs = {name: Lake(str(tmp_path / name)) for name in ("login", "logout")}
    tables = {name: log.start(ZERO) for name, log in logs.items()}
    ends = {"": 2, "login": 3, "logout": 9}
    for name, table in {"": home, **tables}.items():
        table.quarantine_url = quarantine.url
        part = lake.stage_bad(ZERO, 0, ends[name])
        assert not commit(table, part).refused
        if name == "logout":
            # This one is killed before the append: the position of the other logs does not cover it.
            continue
        quarantine.append((), {name: [part]})
    assert rows_of(lake) == [0, 0, 1, 1, 2]
    marks = {key: end for name, table in {"": home, **tables}.items() for key, end in listed_marks(table, name).items()}
    assert marks == {
        f"{JOB}/{ZERO.topic_id}/0": 2,
        f"{JOB}/{ZERO.topic_id}/0#type/login": 3,
        f"{JOB}/{ZERO.topic_id}/0#type/logout": 9,
    }
    assert opened(lake).transaction(quarantine_key(JOB, ZERO, "login")) == 3
    assert opened(lake).transaction(quarantine_key(JOB, ZERO, "logout")) is None
    quarantine.append_missing(tables["logout"], [ZERO], "logout")
    quarantine.append_missing(tables["login"], [ZERO], "login")
    assert len(rows_of(lake)) == 2 + 3 + 9
    assert discard(lake.job, Listings(quarantine.url, marks, 0), Environment()).rows == 14


def test_vacuum_keeps_files_until_the_lowest_position_passes_their_end(lake: Lake) -> None:
    home, quarantine = start(lake)
    quarantine.append([commit_bad(lake, home, 0, 1)])
    staged = {end: lake.stage_bad(ZERO, 1, end).quarantine_files[0].path for end in (4, 5, 6)}
    foreign = lake.stage_bad(ONE, 1, 2).quarantine_files[0].path
    positions = {0: 5}
    listed = ListedTable.of(opened(lake))

    def classify(marks: dict[str, int]) -> dict[str, str]:
        result = listed.classify(
            lambda table: quarantine_rules(table, marks, lambda place: positions.get(place.number), by_end)
        )
        return {entry.path: str(reason) for entry, reason in result.dead}

    assert classify({}) == {staged[4]: str(Dead.PASSED_END), staged[5]: str(Dead.PASSED_END)}
    # Whichever log lists files of the partition that are not appended: a name does not show which.
    assert classify({quarantine_key(JOB, ZERO, "login"): 4}) == {}
    assert classify({quarantine_key(JOB, ONE, "login"): 4}).keys() == {staged[4], staged[5]}
    assert foreign not in classify({})


# vacuum


def test_vacuum_of_the_table_does_not_touch_quarantines_inside_it(lake: Lake) -> None:
    table, quarantine = start(lake)
    other_table, other_quarantine = start(lake, OTHER)
    other_quarantine.append([commit_bad(lake, other_table, 0, 2)])
    quarantine.append([commit_bad(lake, table, 0, 9)])
    # The batch of the other job is far behind, and may still be committed.
    staged = lake.stage_bad(ZERO, 2, 4, OTHER).quarantine_files[0].path
    foreign = Path(lake.path, "_quarantine", "notes.txt")
    foreign.write_text("of a person")
    report = vacuum(table_of(lake, JOB))
    assert (report.deleted, report.kept) == ((), {KeptReason.ACTIVE: 1})
    assert foreign.exists() and Path(lake.quarantine(OTHER), staged).exists()
    orphan = lake.stage_bad(ZERO, 2, 4).quarantine_files[0].path
    report = vacuum(table_of(lake, JOB))
    assert [(deleted.table, deleted.path) for deleted in report.deleted] == [(lake.quarantine(), orphan)]
    assert (rows_of(lake), rows_of(lake, OTHER)) == (list(range(9)), [0, 1])


def test_vacuum_keeps_listed_files_until_they_are_appended(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 1)])
    commit_bad(lake, table, 1, 3)
    report = vacuum(table_of(lake, JOB))
    assert (report.deleted, report.kept[KeptReason.PENDING]) == ((), 1)
    quarantine.append_missing(table, [ZERO])
    assert rows_of(lake) == [0, 1, 2]


# a quarantine that was deleted


def test_deleted_files_are_reported_and_never_named(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    shutil.rmtree(quarantine.url)
    quarantine = Quarantine(lake.job, table, table.environment)
    with pytest.raises(QuarantineGoneError) as raised:
        quarantine.append_missing(table, [ZERO])
    assert "3 records of web/0, offsets 0 to 2" in raised.value.detail
    assert "penstock quarantine discard" in raised.value.hint
    assert not Path(quarantine.url, "_delta_log").exists()


def test_the_job_continues_after_a_loss_is_accepted(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    shutil.rmtree(quarantine.url)
    version = table.version
    assert discard(lake.job, listings(lake), Environment()) == DiscardReport(unappended=True)
    assert DeltaTable(lake.path).version() == version
    quarantine = Quarantine(lake.job, table, table.environment)
    quarantine.append_missing(table, [ZERO])
    commit_bad(lake, table, 3, 5)
    quarantine.append_missing(table, [ZERO])
    assert rows_of(lake) == [3, 4]


def test_a_discard_after_the_loss_finishes_replay_runs_that_history_no_longer_has(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    table.commit_actions([], {replay_key(JOB): 7}, {})
    shutil.rmtree(quarantine.url)
    discard(lake.job, listings(lake), Environment())
    table.refresh()
    assert finish_replay(TableRuns(table), opened(lake)) == 0


def test_a_quarantine_without_its_log_takes_its_files_again(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    shutil.rmtree(Path(quarantine.url, "_delta_log"))
    Quarantine(lake.job, table, table.environment).append_missing(table, [ZERO])
    assert rows_of(lake) == [0, 1, 2]


# discarding


@pytest.mark.parametrize(("step", "remaining"), [("discard_checked", [0, 1, 2]), ("discarded", [])])
def test_a_discard_that_crashes_is_all_or_nothing(step: str, remaining: list[int], lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    with pytest.raises(CrashError):
        discard(lake.job, listings(lake), Environment(at_step=crash_at(step)))
    assert rows_of(lake) == remaining
    discard(lake.job, listings(lake), Environment())
    assert rows_of(lake) == []


def test_a_second_discard_writes_nothing(lake: Lake) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    discard(lake.job, listings(lake), Environment())
    version = opened(lake).version
    assert discard(lake.job, listings(lake), Environment()) == DiscardReport()
    assert opened(lake).version == version
    assert opened(lake).transaction(position_key(JOB, ZERO)) == 3


def test_the_command_asks_first_and_reports_what_was_discarded(lake: Lake, tmp_path: Path) -> None:
    table, quarantine = start(lake)
    quarantine.append([commit_bad(lake, table, 0, 3)])
    job_file = lake.job_file(tmp_path)
    refused = penstock("discard", job_file)
    assert isinstance(refused.exception, UserError) and "--yes" in refused.exception.hint
    assert rows_of(lake) == [0, 1, 2]
    report = json.loads(penstock("discard", job_file, "--yes", "--json").stdout)
    assert (report["job"], report["quarantine"], report["rows"]) == (JOB, lake.quarantine(), 3)
    assert rows_of(lake) == []
    assert "0 quarantined records" in penstock("discard", job_file).stdout


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_good_rows_are_not_in_quarantine(lake: Lake) -> None:
    table, quarantine = start(lake)
    commit(table, lake.stage(ZERO, 0, 3))
    assert discard(lake.job, listings(lake), Environment()) == DiscardReport()
    assert not Path(quarantine.url).exists()
