"""The windows of Telegraf records by plain Python: one record, one field, one window at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SECONDS = {"1m": 60, "10m": 600, "1h": 3600, "24h": 86_400}


@dataclass(frozen=True, slots=True)
class Window:
    metric: str
    tags: tuple[tuple[str, str], ...]
    """Sorted."""
    interval: str
    start: int
    """In seconds since 1970."""


@dataclass(slots=True)
class Aggregate:
    count: int
    sum: float
    min: float
    max: float

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)


def expected_windows(values: Iterable[bytes], seconds: Mapping[str, int] = SECONDS) -> dict[Window, Aggregate]:
    """The windows of all records, whenever they came: nothing is late. Sums are exact only if the values allow it."""
    windows: dict[Window, Aggregate] = {}
    for text in values:
        record = json.loads(text)
        tags = tuple(sorted(record["tags"].items()))
        for field, value in record["fields"].items():
            for interval, length in seconds.items():
                start = record["timestamp"] // length * length
                window = Window(f"{record['name']}.{field}", tags, interval, start)
                if window in windows:
                    windows[window].add(float(value))
                else:
                    windows[window] = Aggregate(1, float(value), float(value), float(value))
    return windows
