"""The model of `table.rollup` in a job file, and the two Delta tables that a rollup has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias, cast

from penstock.job.faults import RefusedError, Secret, kind_of, shown
from penstock.job.spec import JobSpec, TableSpec
from penstock.job.values import Date, Key, Otherwise, Parsed, Part, Read, any_duration, items, one_of, text
from penstock.lake.delta.schema import TablePlace
from penstock.publish.spec import PublishSpec

WINDOW_SECONDS_MIN, WINDOW_SECONDS_MAX = 1.0, 366 * 86400.0
Computed: TypeAlias = Literal["count", "sum", "min", "max", "mean", "first", "last"]
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


def window(value: object) -> Window:
    """Read `10m` from a job file."""
    seconds = any_duration(value)
    name = text(value).strip()
    if not WINDOW_SECONDS_MIN <= seconds <= WINDOW_SECONDS_MAX:
        raise RefusedError(f"{shown(name)} is no window", "from 1s to 366d")
    return Window(name, round(seconds * 1000))


def _rank(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError(f"expected a number, found {kind_of(value)}", "write 0.99")
    if not 0 < value < 1:
        raise RefusedError("expected a number between 0 and 1", "write 0.99")
    return float(value)


def _computes(*names: Computed) -> Read:
    """Whether one of these is among the stated aggregates."""
    return items(one_of(Computed).read, lambda stated: not set(stated).isdisjoint(names))


Millis = Annotated[int, Parsed(lambda value: round(any_duration(value) * 1000))]


@dataclass(frozen=True, slots=True)
class Aggregates:
    """What is computed beside count, sum, min and max."""

    ends: Annotated[bool, Key("aggregates"), _computes("first", "last")] = False
    """First and last."""
    mean: Annotated[bool, Key("aggregates"), _computes("mean")] = False
    quantiles: Annotated[tuple[float, ...], items(_rank, lambda ranks: tuple(sorted(ranks)))] = ()


WINDOWS_DEFAULT = tuple(map(window, ("1m", "10m", "1h", "24h")))


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupSpec(TableSpec):
    """`path` is the table of closed windows."""

    kind = "rollup"
    many_jobs = False
    windows: Annotated[tuple[Window, ...], items(window), Otherwise(WINDOWS_DEFAULT)]
    """The finest first; each is a multiple of it."""
    lateness_ms: Annotated[Millis, Key("lateness")] = 120_000
    idle_after_ms: Annotated[Millis, Key("idle_after")] = 60_000
    future_cutoff_ms: Annotated[Millis, Key("future_cutoff")] = 3_600_000
    not_before: Date = date(2000, 1, 1)
    late: LatePolicy = LatePolicy.DROP
    update_grace_ms: Annotated[Millis, Key("update_grace")] = 0
    """How long partials are kept after the coarsest window over them is closed."""
    aggregates: Annotated[Aggregates, Part.INLINE] = Aggregates()
    publish: Annotated[PublishSpec | None, Part.SECTION] = None

    @property
    def partials_path(self) -> str:
        """The table of partials, which also has the positions."""
        path = f"{self.path}_partials"
        return Secret(path) if isinstance(self.path, Secret) else path

    @property
    def finest(self) -> Window:
        return self.windows[0]

    @property
    def windows_place(self) -> TablePlace:
        return TablePlace(self.path, storage_options=self.storage_options, partition_by=("interval", "day"))

    @property
    def folders(self) -> tuple[str, ...]:
        return (self.path, self.partials_path)


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
        partition_by=("day", "epoch"),
        numbers=(*PARTITION_TIMES, *PARTITION_SUMS),
    )
    whole: JobSpec = job
    return cast("JobSpec[PartialsSpec]", replace(whole, table=place))
