"""Closed windows against a second way to compute them: every point by itself, in plain Python."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest

from penstock.lake.delta.files import active_files
from penstock.tables.rollup.spec import Aggregates, LatePolicy, Window
from tests.support.tries import tries
from tests.unit.tables.rollup.rollup_lake import HOUR, MINUTE, TEN_MINUTES, Point, RollupLake, plain_values

SEVEN_MINUTES = Window("7m", 420_000)
HOSTS = ("a", "b", 'with "quotes", and \\', "é{}")
END_MS = 4 * HOUR.millis
MEAN_BY_A_CONSTANT = 8
"""A seed that divides by counts that Polars knows to be equal, for which it would multiply by their reciprocal."""
COLUMNS = ("count", "sum", "min", "max", "first", "last", "mean")


def expected_emissions(lake: RollupLake) -> tuple[dict[Any, list[Point]], dict[str, int]]:
    """The points of each window by interval, host and start, and the late ones by interval.

    A point that was committed after close n began is late where its window ended at or before that close's end.
    """
    windows: dict[Any, list[Point]] = {}
    late: dict[str, int] = {}
    update = lake.job.table.late == "update"
    for epoch, point in lake.landed:
        if point.host == "clock":
            continue
        for window in lake.job.table.windows:
            end = window.start_of(point.at_ms) + window.millis
            if epoch and end <= lake.untils[epoch - 1] and not update:
                late[window.name] = late.get(window.name, 0) + 1
            elif end <= lake.untils[-1]:
                windows.setdefault((window.name, point.host, end - window.millis), []).append(point)
    return windows, late


def plain_row(points: list[Point]) -> tuple[Any, ...]:
    result = plain_values(points)
    return tuple({**result, "mean": result["sum"] / result["count"]}[name] for name in COLUMNS)


@pytest.mark.parametrize("late", get_args(LatePolicy))
@pytest.mark.parametrize("seed", sorted({*range(tries(3)), MEAN_BY_A_CONSTANT}))
def test_every_closed_window_has_the_values_of_its_points(tmp_path: Path, seed: int, late: LatePolicy) -> None:
    """Streams with late, early, equal and unordered times, cut into batches and closes at random."""
    rng = random.Random(seed)
    lake = RollupLake(
        tmp_path,
        (MINUTE, SEVEN_MINUTES, TEN_MINUTES, HOUR),
        partitions=2,
        late=late,
        lateness_ms=rng.choice([0, 90_000]),
        update_grace_ms=24 * HOUR.millis,
        aggregates=Aggregates(ends=True, mean=True),
    )
    now_ms = 0
    for _ in range(rng.randint(8, 16)):
        now_ms += rng.choice([0, 20_000, 120_000, 900_000])
        spread = rng.choice([30_000, 600_000, 2 * HOUR.millis])
        points = [
            Point(
                rng.choice(HOSTS), max(0, rng.randint(now_ms - spread, now_ms) // 500 * 500), rng.randint(-64, 64) / 64
            )
            for _ in range(rng.randint(1, 12))
        ]
        lake.land(points, rng.randrange(2))
        for _ in range(rng.randint(0, 4)):
            if (chore := lake.due(idle=rng.random() < 0.3)) is not None:
                lake.perform(chore)
    for number in range(2):
        lake.land([Point("clock", END_MS, 0.0)], number)
    lake.work(idle=True)
    windows, counted_late = expected_emissions(lake)
    assert lake.values(*COLUMNS) == {key: plain_row(points) for key, points in windows.items()}
    assert {window.name: lake.number(f"late/{window.name}") for window in lake.job.table.windows} == {
        item.name: counted_late.get(item.name, 0) for item in lake.job.table.windows
    }


def test_a_window_that_late_points_change_has_the_next_revision_and_is_there_once(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path, (MINUTE,), late="update", update_grace_ms=HOUR.millis)
    lake.land([Point("a", 0, 1.0), Point("b", 0, 1.0)])
    lake.close_all(60_000)
    lake.land([Point("a", 1_000, 2.0), Point("c", 2_000, 3.0)])
    lake.close_all(120_000)
    lake.land([Point("a", 2_000, 4.0)])
    lake.close_all(180_000)
    assert lake.values("sum", "revision", "close") == {
        ("1m", "a", 0): (7.0, 2, 3),
        ("1m", "b", 0): (1.0, 0, 1),
        ("1m", "c", 0): (3.0, 1, 2),
    }
    assert lake.number("updated") == 3


def test_a_late_point_counts_in_the_longer_window_that_is_still_open(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path, (MINUTE, TEN_MINUTES))
    lake.land([Point("a", 0, 1.0)])
    lake.close_all(60_000)
    lake.land([Point("a", 1_000, 2.0)])
    lake.close_all(600_000)
    assert lake.values("sum") == {("1m", "a", 0): (1.0,), ("10m", "a", 0): (3.0,)}
    assert (lake.number("late/1m"), lake.number("late/10m")) == (1, 0)


def test_rows_of_a_file_are_sorted_by_metric_and_carry_their_statistics(tmp_path: Path) -> None:
    lake = RollupLake(tmp_path)
    lake.land([Point(host, at, 1.0) for host in ("b", "c", "a") for at in (0, 60_000)])
    lake.close_all(120_000)
    lake.windows.refresh()
    (file,) = active_files(lake.windows.handle, ("series",))
    assert file.spans["series"] == ('load{"host":"a"}', 'load{"host":"c"}')
    rows = pq.ParquetFile(tmp_path / "rollups" / file.path).read(["series", "window_start"]).to_pylist()
    assert rows == sorted(rows, key=lambda row: (row["series"], row["window_start"]))
    assert len(rows) == 6
