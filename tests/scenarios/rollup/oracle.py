"""The expected windows of a rollup, by plain Python over all points and the log of the partials, read as JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.publish.output import OutputRecord
from tests.scenarios.rollup.rollups import LENGTHS, Window

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A point that was sent in a good record."""

    place: Place
    series: str
    at: int
    value: float


@dataclass(slots=True)
class Order:
    """The order of commits in the partials: the position of each partition when each close began."""

    untils_ms: list[int] = field(default_factory=list)
    positions: list[dict[int, int]] = field(default_factory=list)
    """At the beginning of each close."""
    now: dict[int, int] = field(default_factory=dict)

    def epoch(self, place: Place) -> int | None:
        """The number of closes that began before the record was committed; None: it is not committed."""
        number, offset = place
        if self.now.get(number, 0) <= offset:
            return None
        return sum(position.get(number, 0) <= offset for position in self.positions)

    def close_of(self, end: int) -> int | None:
        """The close that closed the windows that end here, None if they are open."""
        reached = (number for number, until in enumerate(self.untils_ms, 1) if end * 1000 <= until)
        return next(reached, None)


def order_of(partials: Path) -> Order:
    """Read the commits one after the other, without code of the program."""
    order = Order()
    for commit in sorted((partials / "_delta_log").glob("*.json")):
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        numbers = {item["txn"]["appId"]: item["txn"]["version"] for item in lines if "txn" in item}
        if "rollups#close" in numbers:
            assert numbers["rollups#close"] == len(order.untils_ms) + 1
            order.untils_ms.append(numbers["rollups#until"])
            order.positions.append(dict(order.now))
        for name, number in numbers.items():
            if name.startswith("rollups/id-1/") and "#" not in name:
                order.now[int(name.rsplit("/", 1)[1])] = number
    return order


@dataclass(slots=True)
class Expected:
    """The windows that are closed, and how many points of each interval are not in them."""

    windows: dict[Window, dict[str, float]]
    late: dict[str, int]
    open: dict[str, int]


def expected_windows(points: Iterable[Sent], order: Order, intervals: Sequence[str], *, update: bool) -> Expected:
    """With `update` a closed window has all points that were committed before the last close began."""
    grouped: dict[Window, list[Sent]] = defaultdict(list)
    late, still_open = dict.fromkeys(intervals, 0), dict.fromkeys(intervals, 0)
    for point in points:
        epoch = order.epoch(point.place)
        if epoch is None:
            continue
        for interval in intervals:
            start = point.at - point.at % LENGTHS[interval]
            close = order.close_of(start + LENGTHS[interval])
            taken_until = len(order.untils_ms) if update else close
            if close is None or (update and epoch >= len(order.untils_ms)):
                still_open[interval] += 1
            elif taken_until is not None and epoch < taken_until:
                grouped[point.series, interval, start].append(point)
            else:
                late[interval] += 1
    return Expected({key: values_of(group) for key, group in grouped.items()}, late, still_open)


def values_of(points: Sequence[Sent]) -> dict[str, float]:
    values = sorted(point.value for point in points)
    first, last = min(point.at for point in points), max(point.at for point in points)
    return {
        "count": len(values),
        "sum": sum(values),
        "min": values[0],
        "max": values[-1],
        "first": min(point.value for point in points if point.at == first),
        "last": max(point.value for point in points if point.at == last),
        "mean": sum(values) / len(values),
    }


def compared(rows: Mapping[Window, Mapping[str, Any]], names: Iterable[str]) -> dict[Window, dict[str, float]]:
    """The rows of the table, as far as they are compared."""
    chosen = tuple(names)
    return {key: {name: row[name] for name in chosen} for key, row in rows.items()}


def check_published(records: Sequence[OutputRecord], rows: Mapping[Window, Mapping[str, Any]]) -> None:
    """Every row of a close once, in order, and the last one of each window is the row in the table."""
    by_series: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for record in records:
        row = json.loads(record.value)
        assert record.key.decode() == row["series"]
        by_series[row["series"]].append((row["close"], row["interval"], row["window_start"]))
    for series, order in by_series.items():
        assert order == sorted(set(order)), f"{series} is not in order, or has a row twice"
    check_last_published(records, rows)


def check_last_published(records: Sequence[OutputRecord], rows: Mapping[Window, Mapping[str, Any]]) -> None:
    """The last record of each window is the row in the table."""
    names = ("count", "sum", "min", "max", "revision", "close")
    last: dict[tuple[str, str, str], list[Any]] = {}
    for row in (json.loads(record.value) for record in records):
        last[row["series"], row["interval"], row["window_start"]] = [row[name] for name in names]
    assert last == {
        (series, interval, row["window_start"].strftime("%Y-%m-%dT%H:%M:%SZ")): [row[name] for name in names]
        for (series, interval, _), row in rows.items()
    }
