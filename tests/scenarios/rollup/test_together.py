"""Rollups with other inputs, settings and maintenance: each point still counts once, and `verify` agrees."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from penstock.engine.replay import replay
from penstock.errors import UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.registry import LOGS
from penstock.tables.rollup import close_task
from penstock.tables.rollup.closing import WindowsRewrittenError
from tests.scenarios.local_spark import local_session
from tests.scenarios.rollup.rollups import START, Rollup, expected, partition, point
from tests.support.pipes import CrashError, crash_at, once_at
from tests.support.quarantine_url import quarantine_folders

SERIES = 'cpu.load{"host":"a"}'
UPDATE = "late: update\nupdate_grace: 30d\n"
BOTH = ("1m", "10m")


def minutes(rollup: Rollup, first: int, end: int, host: str = "a") -> list[tuple[str, float, float]]:
    """A point every ten seconds of these minutes into both partitions; the points."""
    times = range(START + 60 * first, START + 60 * end, 10)
    for number in (0, 1):
        rollup.send(number, *(point(item, item % 9, host) for item in times))
    rollup.clock = max(rollup.clock, START + 60 * end)
    series = f'cpu.load{{"host":"{host}"}}'
    return [(series, float(at), float(at % 9)) for at in times] * 2


def ended(rollup: Rollup) -> Rollup:
    """Stop the stream, and close all its windows."""
    rollup.run()
    rollup.clock += 7200
    rollup.run()
    return rollup


def violated(rollup: Rollup) -> list[str]:
    return [check.detail for check in rollup.verify(values=True).checks if check.verdict.value == "violated"]


# input


def test_no_records_at_all_close_nothing(tmp_path: Path) -> None:
    rollup = ended(Rollup(tmp_path))
    assert rollup.windows() == {}
    assert set(rollup.verdicts(values=True).values()) == {"proven"}


def test_one_record_is_one_window_of_each_interval(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path)
    rollup.send(1, point(START + 61, 5.0))
    ended(rollup)
    assert rollup.windows() == expected([(SERIES, START + 61, 5.0)], BOTH)
    assert violated(rollup) == []


def test_a_second_topic_counts_in_the_same_windows(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path)
    points = minutes(rollup, 0, 3)
    rollup.run()
    rollup.topics = "metrics, more"
    rollup.log.values[partition(0, "more")] = {}
    rollup.send(0, point(START + 170, 4.0), topic="more")
    ended(rollup)
    windows = expected([*points, (SERIES, START + 170, 4.0)], BOTH)
    assert rollup.windows() == windows
    assert violated(rollup) == []


def test_a_partition_that_comes_later_holds_the_watermark_until_it_is_read(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path)
    points = minutes(rollup, 0, 3)
    rollup.run()
    before = rollup.windows()
    rollup.log.values[partition(2)] = {}
    points += minutes(rollup, 3, 5)
    rollup.run()
    assert rollup.windows() == before, "partition 2 has seen nothing"
    rollup.send(2, point(START + 299, 4.0))
    ended(rollup)
    assert rollup.windows() == expected([*points, (SERIES, START + 299, 4.0)], BOTH)
    assert rollup.late() == {"1m": 0, "10m": 0}
    assert violated(rollup) == []


def test_a_recreated_topic_adds_to_the_windows_that_are_open(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path, on=", recreated: restart")
    points = minutes(rollup, 0, 3)
    rollup.run()
    rollup.log.recreate("metrics", "id-2")
    rollup.log.append(rollup.log.partitions()[0], point(START + 185, 8.0))
    rollup.clock += 10
    ended(rollup)
    assert rollup.windows() == expected([*points, (SERIES, START + 185, 8.0)], BOTH)
    assert violated(rollup) == []


def test_records_that_the_log_lost_are_in_no_window(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path, on=", gap: record")
    points = minutes(rollup, 0, 3)
    rollup.run()
    rollup.send(0, *(point(START + 181, number) for number in range(5)))
    rollup.log.expire(partition(0), 21)
    ended(rollup)
    points += [(SERIES, START + 181, item) for item in (3, 4)]
    assert rollup.windows() == expected(points, BOTH)
    assert violated(rollup) == []


@pytest.mark.parametrize("policy", ["late: drop\nupdate_grace: 30d\n", UPDATE], ids=["drop", "update"])
def test_replayed_records_count_in_windows_open_and_closed(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollup = Rollup(tmp_path, policy + "not_before: '2026-02-03'\n")
    monkeypatch.setitem(LOGS, KafkaLogSpec, rollup.log.view)
    day = 86_400
    rollup.clock = START + day
    rollup.send(0, point(START + 5, 50.0))
    for number in (0, 1):
        rollup.send(number, *(point(START + day + item, 1.0) for item in range(0, 100, 10)))
    rollup.clock += 100
    rollup.run()
    assert rollup.counts("1m") == {START + day: 12}
    rollup.more = policy
    replay(rollup.job, environment=rollup.environment(), spark=local_session())
    ended(rollup)
    points = [(SERIES, START + day + second, 1.0) for second in (*range(0, 100, 10), *range(0, 100, 10))]
    replayed = [(SERIES, START + 5, 50.0)] if policy == UPDATE else []
    assert rollup.windows() == expected([*points, *replayed], BOTH)
    assert rollup.late() == dict.fromkeys(BOTH, 0 if replayed else 1)
    assert violated(rollup) == []


def test_a_replayed_record_counts_in_its_window_that_is_still_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollup = Rollup(tmp_path, "future_cutoff: 1m\n")
    monkeypatch.setitem(LOGS, KafkaLogSpec, rollup.log.view)
    points = minutes(rollup, 0, 3)
    rollup.send(0, point(START + 500, 50.0))
    rollup.run()
    rollup.clock = START + 450
    replay(rollup.job, environment=rollup.environment(), spark=local_session())
    ended(rollup)
    assert rollup.windows() == expected([*points, (SERIES, START + 500, 50.0)], BOTH)
    assert violated(rollup) == []


# changes of the job file


@pytest.mark.parametrize("windows", ["1m", "1m, 10m, 1h", "1m, 20m", "2m, 10m"])
def test_another_list_of_windows_is_an_error_and_the_old_list_still_works(windows: str, tmp_path: Path) -> None:
    rollup = Rollup(tmp_path)
    points = minutes(rollup, 0, 13)
    rollup.run()
    rollup.windows_asked = windows
    with pytest.raises(UserError, match="windows"):
        rollup.run()
    rollup.windows_asked = "1m, 10m"
    points += minutes(rollup, 13, 25)
    ended(rollup)
    assert rollup.windows() == expected(points, BOTH)
    assert violated(rollup) == []


@pytest.mark.parametrize(("before", "after"), [("10s", "3m"), ("3m", "10s"), ("3m", "0s")])
def test_lateness_may_change_and_no_window_opens_or_closes_again(before: str, after: str, tmp_path: Path) -> None:
    rollup = Rollup(tmp_path, lateness=before)
    points = minutes(rollup, 0, 5)
    rollup.run()
    closed = rollup.windows()
    rollup.lateness = after
    rollup.run()
    assert closed.items() <= rollup.windows().items()
    points += minutes(rollup, 5, 12)
    ended(rollup)
    assert rollup.windows() == expected(points, BOTH)
    assert violated(rollup) == []


def test_added_aggregates_are_null_in_earlier_rows(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path, "update_grace: 30d\n")
    minutes(rollup, 0, 3)
    rollup.run()
    rollup.more += "aggregates: [first, last, mean]\n"
    minutes(rollup, 3, 6)
    ended(rollup)
    rows = rollup.rows()
    assert rows[SERIES, "1m", START]["first"] is None
    assert rows[SERIES, "10m", START]["first"] is None, "its first points are of before"
    assert rows[SERIES, "10m", START]["mean"] is not None
    assert rows[SERIES, "1m", START + 240]["first"] == (START + 240) % 9
    assert violated(rollup) == []


@pytest.mark.parametrize("gone", ["windows", "windows_partials"])
def test_one_of_both_tables_deleted_is_an_error(gone: str, tmp_path: Path) -> None:
    rollup = Rollup(tmp_path)
    minutes(rollup, 0, 5)
    rollup.run()
    (tmp_path / gone).rename(tmp_path / "elsewhere")
    with pytest.raises(UserError):
        rollup.run()


def test_recreated_tables_have_a_quarantine_of_their_own(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path)
    minutes(rollup, 0, 2)
    rollup.send(0, b"no json")
    rollup.run()
    for name in ("windows", "windows_partials"):
        (tmp_path / name).rename(tmp_path / f"{name}_old")
    rollup.run()
    for folder in (tmp_path / "windows_partials_old", tmp_path / "windows_partials"):
        [quarantine] = quarantine_folders(folder)
        assert pl.read_delta(str(quarantine))["value"].to_list() == [b"no json"]
    assert violated(rollup) == []


def test_points_that_were_dropped_count_again_once_late_points_update(tmp_path: Path) -> None:
    """The window is computed from all committed points, so points that were late before are in it."""
    rollup = Rollup(tmp_path, "late: drop\nupdate_grace: 30d\n")
    points = minutes(rollup, 0, 3)
    rollup.run()
    rollup.send(0, point(START + 5, 50.0))
    rollup.send(1, point(START + 170, 50.0))
    rollup.run()
    assert rollup.late()["1m"] == 1
    rollup.more = UPDATE
    rollup.send(0, point(START + 6, 70.0))
    ended(rollup)
    points += [(SERIES, START + at, value) for at, value in ((5, 50.0), (170, 50.0), (6, 70.0))]
    assert rollup.windows() == expected(points, BOTH)
    assert violated(rollup) == []


# maintenance


@pytest.mark.parametrize("step", ["close_begun", "close_staged", "close_landed"])
@pytest.mark.parametrize("policy", ["late: drop\n", UPDATE], ids=["drop", "update"])
def test_maintenance_inside_a_close_changes_nothing(
    policy: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(close_task, "MERGED_ROWS_MAX", 2)
    rollup = Rollup(tmp_path, policy)
    points = [item for host in "abc" for item in minutes(rollup, 0, 3, host)]
    rollup.run()
    rollup.compact()
    rollup.vacuum()
    late = [(SERIES, START + 7, 30.0), ('cpu.load{"host":"c"}', START + 8, 40.0)]
    rollup.send(0, point(START + 7, 30.0), point(START + 8, 40.0, "c"))
    points += [item for host in "abc" for item in minutes(rollup, 3, 6, host)]
    with pytest.raises(CrashError):
        rollup.run(at_step=crash_at(step))
    rollup.compact()
    rollup.vacuum()
    ended(rollup)
    corrected = expected([*points, *late], BOTH)
    if policy != UPDATE:
        corrected.update({key: item for key, item in expected(points, ["1m"]).items() if key[2] == START})
    assert rollup.windows() == corrected
    assert violated(rollup) == []


def test_a_compaction_during_an_update_makes_the_update_start_again(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path, UPDATE)
    points = minutes(rollup, 0, 3)
    rollup.run()
    points += minutes(rollup, 3, 5)
    rollup.run()
    rollup.send(0, point(START + 7, 30.0))
    points += [(SERIES, START + 7, 30.0), *minutes(rollup, 5, 7)]
    with pytest.raises(WindowsRewrittenError):
        rollup.run(at_step=once_at("close_staged", rollup.compact))
    ended(rollup)
    assert rollup.windows() == expected(points, BOTH)
    assert violated(rollup) == []
