"""What the job file of a rollup states, frozen, and the two Delta tables that it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from typing import cast

from penstock.job.spec import JobSpec, TableSpec
from penstock.lake.delta.schema import TablePlace
from penstock.publish.spec import PublishSpec

PARTITION_TIMES = ("event_ms", "moved_ms", "last_point_ms", "read_to_end_ms")
"""Of a partition: the greatest event time seen, up to the clock, and three clocks (`watermark.py`)."""
PARTITION_SUMS = ("points", "blacklisted", "non_numeric", "non_finite", "future")
"""Of a partition: points that were aggregated or left out, and records that were too far ahead."""


class LatePolicy(StrEnum):
    """What becomes of points whose window is closed."""

    DROP = "drop"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Window:
    """An interval of event time, aligned to the epoch; `name` as the job file writes it."""

    name: str
    millis: int

    def start_of(self, at_ms: int) -> int:
        """Where the window of an instant starts."""
        return at_ms - at_ms % self.millis


@dataclass(frozen=True, slots=True)
class Aggregates:
    """What is computed beside count, sum, min and max."""

    ends: bool = False
    """First and last."""
    mean: bool = False
    quantiles: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupSpec(TableSpec):
    """`path` is the table of closed windows."""

    kind = "rollup"
    partials_path: str
    windows: tuple[Window, ...]
    """The finest first; each is a multiple of it."""
    lateness_ms: int = 120_000
    idle_after_ms: int = 60_000
    future_cutoff_ms: int = 3_600_000
    not_before: date = date(2000, 1, 1)
    late: LatePolicy = LatePolicy.DROP
    update_grace_ms: int = 0
    """How long partials are kept after the coarsest window over them is closed."""
    aggregates: Aggregates = Aggregates()
    publish: PublishSpec | None = None

    @property
    def finest(self) -> Window:
        return self.windows[0]

    @property
    def coarsest(self) -> Window:
        return self.windows[-1]

    @property
    def windows_place(self) -> TablePlace:
        return TablePlace(
            self.path, storage_options=self.storage_options, shared=self.shared, partition_by=("interval", "day")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialsSpec(TablePlace):
    """The table of partials, which keeps the positions."""

    kind = RollupSpec.kind


def partials_job(job: JobSpec[RollupSpec]) -> JobSpec[PartialsSpec]:
    """The job as its partials see it: they are the table that carries its positions."""
    spec = job.table
    place = PartialsSpec(
        path=spec.partials_path,
        storage_options=spec.storage_options,
        shared=spec.shared,
        partition_by=("day", "epoch"),
        numbers=(*PARTITION_TIMES, *PARTITION_SUMS),
    )
    whole: JobSpec = job
    return cast("JobSpec[PartialsSpec]", replace(whole, table=place))
