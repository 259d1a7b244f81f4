"""What every benchmark prints: us and what a user would pick instead, medians of one run, and the ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.bench.meters import Spent

Say = Callable[[str], None]


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
        round(statistics.median(each.wall_s for each in rounds), 3),
        round(statistics.median(each.cpu_s for each in rounds), 3),
    )
