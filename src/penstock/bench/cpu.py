"""Wall and CPU seconds of a piece of work, the CPU of the whole process tree: Python, the JVM and its workers."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Spent:
    wall_s: float
    cpu_s: float


class Meter:
    """Measures from its creation to `spent()`. Children that ended meanwhile count through their parents."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cpu = self._tree_seconds()
        self._wall = time.perf_counter()

    def spent(self) -> Spent:
        wall = time.perf_counter() - self._wall
        return Spent(round(wall, 3), round(self._tree_seconds() - self._cpu, 3))

    def _tree_seconds(self) -> float:
        total = 0.0
        for process in [self._process, *self._process.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system + times.children_user + times.children_system
        return total
