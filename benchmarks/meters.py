"""What a piece of work costs the whole process tree, Java and workers included, and what every benchmark prints."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

Report = Callable[[str], None]
_CHECK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Spent:
    wall_s: float
    cpu_s: float


class Meter:
    """Measures from its creation to `spent()`. Children that ended meanwhile count through their parents."""

    def __init__(self) -> None:
        self._cpu = _tree_sum(_cpu_seconds)
        self._wall = time.perf_counter()

    def spent(self) -> Spent:
        wall = time.perf_counter() - self._wall
        return Spent(round(wall, 3), round(_tree_sum(_cpu_seconds) - self._cpu, 3))


class PeakMemory:
    """The most resident bytes while the block runs, looked at many times a second."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, resident_bytes())
            if self._over.wait(_CHECK_SECONDS):
                return


def resident_bytes() -> int:
    return int(_tree_sum(lambda process: process.memory_info().rss))


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _tree_sum(measure: Callable[[psutil.Process], float]) -> float:
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            total += measure(process)
        except psutil.NoSuchProcess:
            continue
    return total


@dataclass(frozen=True, slots=True)
class BenchResult:
    bench: str
    records: int
    penstock: Spent
    baseline_name: str
    baseline: Spent
    extra: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "records": self.records,
            "penstock": {"wall_s": self.penstock.wall_s, "cpu_s": self.penstock.cpu_s},
            "baseline": {"name": self.baseline_name, "wall_s": self.baseline.wall_s, "cpu_s": self.baseline.cpu_s},
            "ratio_wall": round(self.baseline.wall_s / self.penstock.wall_s, 2),
            "ratio_cpu": round(self.baseline.cpu_s / self.penstock.cpu_s, 2),
            **self.extra,
        }


def median(rounds: Sequence[Spent]) -> Spent:
    return Spent(
        round(statistics.median(item.wall_s for item in rounds), 3),
        round(statistics.median(spent.cpu_s for spent in rounds), 3),
    )
