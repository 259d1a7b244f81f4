"""Open windows without Spark, against plain Python."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.tables.kind import WindowsRequest
from penstock.tables.rollup import open_windows as module
from penstock.tables.rollup.open_windows import open_windows
from penstock.tables.rollup.spec import Aggregates
from tests.unit.tables.rollup.rollup_lake import HOUR, MINUTE, TEN_MINUTES, Point, RollupLake, rollup_job

ALL = WindowsRequest(limit=10_000)
HOSTS = ("a", "b", "c", "d")
Key = tuple[str, str, int]
"""Host, interval and start in milliseconds."""


def shown(lake: RollupLake, request: WindowsRequest = ALL) -> dict[Key, dict[str, float | None]]:
    windows = open_windows(lake.job, request)
    values = {
        (window.tags["host"], window.interval, round(window.start.timestamp() * 1000)): dict(window.values)
        for window in windows.windows
    }
    assert len(values) == len(windows.windows), "each is there once"
    return values


def filled(folder: Path) -> RollupLake:
    """Windows of a minute are closed up to minute 12, those of ten minutes up to minute 10."""
    lake = RollupLake(folder, (MINUTE, TEN_MINUTES, HOUR), aggregates=Aggregates(ends=True, mean=True))
    for minute in range(15):
        points = [
            Point(host, minute * 60_000 + second * 1000, minute + second) for host in HOSTS for second in (0, 30, 45)
        ]
        lake.land(points)
        if minute in (5, 12):
            lake.work()
    lake.land([Point("a", 60_000, 1000.0)])
    return lake


def expected(lake: RollupLake) -> dict[Key, dict[str, float]]:
    groups: dict[Key, list[Point]] = defaultdict(list)
    for _, point in lake.landed:
        for window, open_from_ms in ((MINUTE, 12 * 60_000), (TEN_MINUTES, 600_000), (HOUR, 0)):
            start = point.at_ms - point.at_ms % window.millis
            if start >= open_from_ms:
                groups[point.host, window.name, start].append(point)
    return {
        key: {
            "count": len(points),
            "sum": sum(point.value for point in points),
            "min": min(point.value for point in points),
            "max": max(point.value for point in points),
            "first": min(points, key=lambda point: point.at_ms).value,
            "last": max(points, key=lambda point: point.at_ms).value,
            "mean": sum(point.value for point in points) / len(points),
        }
        for key, points in groups.items()
    }


@pytest.mark.parametrize("pass_rows_max", [1_000_000, 7])
def test_open_windows_have_the_values_of_their_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pass_rows_max: int
) -> None:
    monkeypatch.setattr(module, "PASS_ROWS_MAX", pass_rows_max)
    lake = filled(tmp_path)
    assert lake.number("closed_until") == 12 * 60_000 + 45_000
    assert shown(lake) == expected(lake)


@pytest.mark.parametrize("pass_rows_max", [1_000_000, 7])
def test_the_first_windows_by_series_interval_and_start_are_shown_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pass_rows_max: int
) -> None:
    monkeypatch.setattr(module, "PASS_ROWS_MAX", pass_rows_max)
    lake = filled(tmp_path)
    windows = open_windows(lake.job, WindowsRequest(limit=4))
    assert windows.total == len(expected(lake)) == 4 * (3 + 1 + 1)
    assert [(window.tags["host"], window.interval, round(window.start.timestamp())) for window in windows.windows] == [
        ("a", "1m", 12 * 60),
        ("a", "1m", 13 * 60),
        ("a", "1m", 14 * 60),
        ("a", "10m", 600),
    ]
    assert open_windows(lake.job, WindowsRequest(limit=0)).windows == ()


def test_an_interval_or_a_metric_can_be_chosen(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    hours = {key: values for key, values in expected(lake).items() if key[1] == "1h"}
    assert shown(lake, WindowsRequest(("load",), "1h")) == hours
    assert open_windows(lake.job, WindowsRequest(("memory",))).total == 0
    with pytest.raises(UserError, match="no windows of 2h"):
        open_windows(lake.job, WindowsRequest(interval="2h"))


def test_before_the_first_close_all_windows_are_open_and_without_a_table_the_error_says_so(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path / "lake")
    assert open_windows(lake.job, ALL).total == 0
    lake.land([Point("a", 0, 1.0)])
    assert [window.values["sum"] for window in open_windows(lake.job, ALL).windows] == [1.0]
    with pytest.raises(UserError) as raised:
        open_windows(rollup_job(tmp_path / "nowhere", (MINUTE,)), ALL)
    assert raised.value.hint == "`penstock run` creates it"
