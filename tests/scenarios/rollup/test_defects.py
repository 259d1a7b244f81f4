"""The eleven defects of the program in the source document, and the correct behaviour."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from penstock.errors import PenstockError
from tests.scenarios.rollup.damage import PARTIALS
from tests.scenarios.rollup.rollups import START, Rollup, expected, partition, point
from tests.scenarios.rollup.walk import Ownership, Sharing
from tests.support.quarantine_url import quarantine_folders

SERIES = 'cpu.load{"host":"a"}'


@pytest.fixture
def rollup(tmp_path: Path) -> Rollup:
    return Rollup(tmp_path)


def fill(rollup: Rollup, seconds: range, number: int = 0, host: str = "a") -> None:
    rollup.send(number, *(point(START + second, second, host) for second in seconds))
    rollup.clock = max(rollup.clock, START + seconds.stop)


def silence(rollup: Rollup, seconds: float = 3600) -> None:
    """Read all records, then receive nothing for so long."""
    rollup.run()
    rollup.clock += seconds


def test_1_a_restart_counts_no_record_again(rollup: Rollup) -> None:
    fill(rollup, range(90))
    fill(rollup, range(90), 1, "b")
    rollup.run()
    fill(rollup, range(90, 200))
    fill(rollup, range(90, 200), 1, "b")
    rollup.run()
    silence(rollup)
    rollup.run()
    points = [(f'cpu.load{{"host":"{host}"}}', START + second, second) for host in "ab" for second in range(200)]
    assert rollup.windows() == expected(points, ("1m", "10m"))


def test_2_a_new_partition_does_not_move_event_time_back(rollup: Rollup) -> None:
    fill(rollup, range(300))
    rounds = rollup.run()
    assert rollup.counts("1m") == {}, "partition 1 has no points and is not idle"
    fill(rollup, range(100), 1)
    rollup.run(rounds)
    assert rollup.counts("1m") == {START: 120}
    assert rollup.status()["held_by"] == "metrics/1"
    fill(rollup, range(100, 300), 1)
    silence(rollup)
    rollup.run(rounds)
    assert sum(rollup.counts("1m").values()) == 600
    assert rollup.late() == {"1m": 0, "10m": 0}


def test_3_an_idle_partition_does_not_hold_windows_open(rollup: Rollup) -> None:
    fill(rollup, range(10), 1)
    rollup.run()
    silence(rollup, 31)
    fill(rollup, range(10, 200))
    rollup.run()
    assert rollup.counts("1m") == {START: 60, START + 60: 60, START + 120: 60}


WITHOUT_POINTS = {
    "bad": b"no json",
    "tombstone": None,
    "text only": b'{"name": "cpu", "tags": {}, "fields": {"state": "on"}, "timestamp": %d}' % START,
    "blacklisted": point(START, field_name="secret"),
    "too old": point(0),
}


@pytest.mark.parametrize("record", WITHOUT_POINTS.values(), ids=WITHOUT_POINTS.keys())
def test_3_a_partition_without_points_does_not_hold_windows_open(tmp_path: Path, record: bytes | None) -> None:
    """Whenever tables and log are checked, the partition has an unread record."""
    rollup = Rollup(tmp_path, decode="{format: telegraf, blacklist: [{name: 'cpu\\.secret'}]}")
    rounds = rollup.open()
    for second in range(0, 200, 5):
        fill(rollup, range(second, second + 5))
        rollup.send(1, record)
        rounds.round(flush_now=True)
        rollup.send(1, record)
    assert rollup.counts("1m") == {START: 60, START + 60: 60}
    assert rollup.late() == {"1m": 0, "10m": 0}
    report = rollup.status()
    assert (report["without_points"], report["held_by"]) == (["metrics/1"], "metrics/0")


def test_3_a_bounded_run_closes_windows_although_one_partition_has_no_points(rollup: Rollup) -> None:
    fill(rollup, range(200))
    rollup.send(1, b"no json")
    rollup.run()
    rollup.clock += 31
    fill(rollup, range(231, 300))
    rollup.send(1, b"no json")
    rounds = rollup.open()
    ends = rounds.present_ends()
    rollup.send(1, b"came after the run began")
    while not rounds.round(flush_now=True, ends=ends).done:
        pass
    assert rollup.status()["held_because"] == "it is read to its end, and not idle yet"
    assert rollup.counts("1m") == {START: 60, START + 60: 60, START + 120: 60, START + 180: 29}


def test_3_unread_records_hold_windows_open_although_all_before_them_held_no_points(rollup: Rollup) -> None:
    """The process of partition 1 is stopped while partition 0 is read."""
    ownership = Ownership({0: (0, 1), 1: (1, 1)})
    one, other = (rollup.open(Sharing(ownership, process)) for process in (0, 1))
    for second in range(0, 40, 10):
        fill(rollup, range(second, second + 10))
        rollup.send(1, b"no json")
        one.round(flush_now=True)
        other.round(flush_now=True)
    rollup.send(1, *(point(START + number) for number in range(40, 100)))
    fill(rollup, range(40, 200))
    rollup.run(one)
    report = rollup.status()
    assert (report["held_by"], report["held_because"]) == ("metrics/1", "it has unread records")
    assert rollup.counts("1m") == {}
    rollup.run(other)
    rollup.run(one)
    assert rollup.counts("1m") == {START: 60 + 20}
    assert rollup.late() == {"1m": 0, "10m": 0}


def test_3_a_removed_topic_does_not_hold_windows_open(rollup: Rollup) -> None:
    fill(rollup, range(200))
    fill(rollup, range(30), 1)
    rollup.run()
    assert rollup.counts("1m") == {}
    del rollup.log.values[partition(1)]
    rollup.run()
    assert rollup.counts("1m") == {START: 90, START + 60: 60, START + 120: 60}


def test_4_a_point_of_the_far_future_does_not_move_the_watermark(rollup: Rollup) -> None:
    fill(rollup, range(30))
    rollup.send(0, point(START + 365 * 86400, 1.0))
    fill(rollup, range(30, 200))
    fill(rollup, range(200), 1)
    rollup.run()
    assert rollup.counts("1m") == {START: 120, START + 60: 120, START + 120: 120}
    assert rollup.status()["points"] == 400
    assert rollup.late() == {"1m": 0, "10m": 0}
    [quarantine] = quarantine_folders(rollup.folder / PARTIALS)
    [error] = pl.read_delta(str(quarantine))["error"]
    assert "too far in the future" in error


def test_4_an_accepted_point_ahead_of_the_clock_makes_no_present_point_late(rollup: Rollup) -> None:
    for number in (0, 1):
        fill(rollup, range(30), number)
        rollup.send(number, point(START + 50 * 60, 1.0))
    rollup.run()
    for number in (0, 1):
        fill(rollup, range(30, 200), number)
    rollup.run()
    assert rollup.counts("1m") == {START: 120, START + 60: 120, START + 120: 120}
    assert rollup.late() == {"1m": 0, "10m": 0}


def test_5_a_full_disk_loses_nothing(rollup: Rollup) -> None:
    fill(rollup, range(100))
    fill(rollup, range(100), 1)
    rollup.run()
    before = rollup.windows()
    fill(rollup, range(100, 200))
    with no_space(), pytest.raises((PenstockError, OSError)):
        rollup.run()
    assert rollup.windows() == before
    assert rollup.status()["points"] == 200
    fill(rollup, range(100, 200), 1)
    silence(rollup)
    rollup.run()
    assert sum(rollup.counts("10m").values()) == 400


@contextmanager
def no_space() -> Iterator[None]:
    """No process can write more than a few bytes to a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_6_a_job_whose_tables_were_deleted_starts_at_the_beginning_regardless_of_group_offsets(rollup: Rollup) -> None:
    fill(rollup, range(100))
    fill(rollup, range(100), 1)
    rollup.run()
    view = rollup.log.view(rollup.job.log)
    assert view.shown([partition(0)]) == {partition(0): 100}
    for name in ("windows", "windows_partials"):
        (rollup.folder / name).rename(rollup.folder / f"{name}_lost")
    silence(rollup)
    rollup.run()
    assert sum(rollup.counts("10m").values()) == 200


def test_7_a_batch_that_is_read_again_counts_once(rollup: Rollup) -> None:
    fill(rollup, range(100))
    fill(rollup, range(100), 1)

    def crash(step: str) -> None:
        if step == "committed":
            raise ConnectionError(step)

    with pytest.raises(ConnectionError):
        rollup.run(at_step=crash)
    silence(rollup)
    rollup.run()
    assert sum(rollup.counts("10m").values()) == 200


def test_8_times_near_the_epoch_are_valid(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path, "not_before: '1970-01-01'\n", clock=200.0)
    rollup.send(0, *(point(number, number) for number in range(150)))
    rollup.send(1, *(point(item, item) for item in range(150)))
    rollup.run()
    assert rollup.counts("1m") == {0: 120, 60: 120}


def test_9_an_idle_stream_closes_its_windows(rollup: Rollup) -> None:
    fill(rollup, range(30))
    fill(rollup, range(30), 1)
    rounds = rollup.run()
    assert rollup.counts("1m") == {}
    silence(rollup, 29)
    rollup.run(rounds)
    assert rollup.counts("1m") == {}, "not idle yet"
    silence(rollup, 20)
    rollup.run(rounds)
    assert rollup.counts("1m") == {START: 60}
    assert rollup.counts("10m") == {}, "its end has not come yet"
    silence(rollup, 600)
    rollup.run(rounds)
    assert rollup.counts("10m") == {START: 60}


def test_10_late_and_dropped_points_are_counted(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path)
    fill(rollup, range(100))
    fill(rollup, range(100), 1)
    rollup.run()
    text = b'{"name":"cpu","tags":{},"timestamp":1770000100,"fields":{"s":"text","ok":1}}'
    rollup.send(0, point(START + 5, 99.0), text)
    rollup.send(1, point(START + 100, 1.0), b"no json", None)
    silence(rollup, 700)
    rollup.run()
    status = rollup.status()
    assert rollup.late() == {"1m": 1, "10m": 0}
    assert (status["points"], status["non_numeric"]) == (203, 1)
    assert sum(rollup.counts("10m").values()) == 203
    assert sum(rollup.counts("1m").values()) == 202
    report = rollup.verify()
    assert {check.name: check.verdict.value for check in report.checks}["points"] == "proven"


def test_10_fields_of_quarantined_records_are_not_counted(tmp_path: Path) -> None:
    decode = "{format: telegraf, blacklist: [{name: secret}]}"
    rollup = Rollup(tmp_path, decode=decode)
    record = b'{"name":"cpu","tags":{},"timestamp":%d,"fields":{"s":"text","f":1e999,"secret":1,"ok":1}}'
    rollup.send(0, record % (START + 365 * 86400), record % START, record.replace(b'"ok":1', b'"ok":1,"ok":2') % START)
    rollup.run()
    report = rollup.status()
    assert {name: report[name] for name in ("points", "non_numeric", "non_finite", "blacklisted")} == {
        "points": 1,
        "non_numeric": 1,
        "non_finite": 1,
        "blacklisted": 1,
    }


def test_11_an_escaped_name_is_read_like_any_other(rollup: Rollup) -> None:
    rollup.send(0, rb'{"name":"c\u0070u","fields":{"l\u006fad":2},"tags":{"host":"\"a\""},"timestamp":1770000000}')
    rollup.send(1, point(START))
    rollup.run()
    silence(rollup)
    rollup.run()
    assert rollup.counts("1m") == {START: 2}
    assert (SERIES, "1m", START) in rollup.windows()
