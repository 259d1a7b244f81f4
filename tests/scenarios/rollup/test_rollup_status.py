"""The text of `status` for a rollup; the figures are worked out by hand."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NoReturn

import pytest
from rich.console import Console

from penstock.cli.status import page
from penstock.errors import TransientError
from penstock.tables.registry import kind_of
from tests.scenarios.rollup.rollups import START, Rollup, point
from tests.support.memory_log import MemoryLog


def lines_of(rollup: Rollup) -> list[str]:
    status = kind_of(rollup.job).status(rollup.job, lambda job: rollup.log.view(job.log), lambda: rollup.clock)
    printed = io.StringIO()
    Console(file=printed, width=200).print(page([status], verbose=True))
    return [" ".join(line.split()) for line in printed.getvalue().splitlines()]


def test_status_shows_windows_points_and_blocking_partitions(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path, clock=START + 600)
    mixed = b'{"name": "cpu", "tags": {}, "fields": {"load": 1, "state": "on", "up": true}, "timestamp": %d}' % START
    rollup.send(0, mixed, point(START + 30), point(START + 75), point(START + 10**6))
    rollup.send(1, point(START + 80))
    rollup.run()
    lines = lines_of(rollup)
    # Partition 0 is at 75 s: less 10 s of lateness, the first minute is closed.
    assert lines[4:7] == [
        "interval closed until open windows late points",
        "1m 2026-02-02 02:41:00Z 1 0",
        "10m 2026-02-02 02:40:00Z 1 0",
    ]
    assert lines[7:11] == [
        "watermark 2026-02-02 02:41:15Z, held back by metrics/0: it is read to its end, and not idle yet",
        "points 4 counted, left out: 2 not numeric",
        "closes 1 complete",
        "partials 4 rows in 2 files",
    ]


def test_corrections_are_counted_and_an_empty_result_is_stated(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path, "late: update", clock=START + 600)
    for number in (0, 1):
        rollup.send(number, point(START), point(START + 75))
    rollup.run()
    rollup.send(0, point(START + 1))
    rollup.run()
    lines = lines_of(rollup)
    assert "points 5 counted, none left out" in lines
    assert "closes 2 complete, 1 row corrected by late points" in lines


def test_a_partition_whose_records_hold_no_points_is_named(tmp_path: Path) -> None:
    rollup = Rollup(tmp_path)
    rounds = rollup.run()
    rollup.clock += 31
    rollup.send(0, point(START + 20))
    rollup.send(1, b"no json")
    rollup.run(rounds)
    assert "no points metrics/1: records arrive, none of them held a point for idle_after" in lines_of(rollup)


def test_without_the_log_the_watermark_is_that_of_the_last_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollup = Rollup(tmp_path, clock=START + 600)
    for number in (0, 1):
        rollup.send(number, point(START), point(START + 75))
    rollup.run()
    rollup.send(0, point(START + 500))

    def away(*_: object) -> NoReturn:
        raise TransientError("the log does not answer")

    monkeypatch.setattr(MemoryLog, "bounds", away)
    assert "watermark 2026-02-02 02:41:15Z, as of the last close" in lines_of(rollup)
