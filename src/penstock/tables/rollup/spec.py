"""The section `table.rollup` of a job file, its checks, and the two Delta tables of a rollup."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise
from typing import Annotated, Literal, Self, TypeAlias, cast

from penstock.job.faults import InvalidValueError, KeyPath, Secret, shown
from penstock.job.reader import SpecReader
from penstock.job.spec import POINT_FORMATS, JobSpec, TableSpec
from penstock.job.values import Date, Key, Parsed, Part, Read, any_duration, items, one_of, text
from penstock.lake.delta.schema import TablePlace
from penstock.publish.spec import PublishSpec, check_publish

WINDOW_SECONDS_MIN, WINDOW_SECONDS_MAX = 1.0, 366 * 86400.0
WINDOWS_MAX = 16
AT: KeyPath = ("table", "rollup")
LatePolicy: TypeAlias = Literal["drop", "update"]
AggregateName: TypeAlias = Literal["count", "sum", "min", "max", "mean", "first", "last"]
PARTITION_TIMES = ("event_ms", "moved_ms", "last_point_ms", "read_to_end_ms")
"""Of a partition: the greatest event time, capped at the clock, and three clock times (`watermark.py`)."""
PARTITION_SUMS = ("points", "blacklisted", "non_numeric", "non_finite")
"""Of a partition: points that were aggregated or left out."""


@dataclass(frozen=True, slots=True)
class Window:
    """An interval of event time, aligned to the epoch; `name` as the job file writes it."""

    name: str
    millis: int

    def start_of(self, at_ms: int) -> int:
        """The start of the window that holds an instant."""
        return at_ms - at_ms % self.millis


def window(value: object) -> Window:
    """Read `10m` from a job file."""
    seconds = any_duration(value)
    name = text(value).strip()
    if not WINDOW_SECONDS_MIN <= seconds <= WINDOW_SECONDS_MAX:
        raise InvalidValueError(f"invalid window {shown(name)}", "from 1s to 366d")
    return Window(name, round(seconds * 1000))


def _computes(*names: AggregateName) -> Read:
    """Whether one of these is among the stated aggregates."""
    return items(one_of(AggregateName).read, lambda stated: not set(stated).isdisjoint(names))


Millis = Annotated[int, Parsed(lambda value: round(any_duration(value) * 1000))]


@dataclass(frozen=True, slots=True)
class Aggregates:
    """What is computed in addition to count, sum, min and max."""

    ends: Annotated[bool, Key("aggregates"), _computes("first", "last")] = False
    """First and last."""
    mean: Annotated[bool, Key("aggregates"), _computes("mean")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupSpec(TableSpec):
    """`path` is the table of closed windows."""

    kind = "rollup"
    decoders = POINT_FORMATS
    unused = ("schema", "columns", "place", "drop", "sql")
    many_jobs = False
    windows: Annotated[tuple[Window, ...], items(window)] = tuple(map(window, ("1m", "10m", "1h", "24h")))
    """The finest first; each is a multiple of it."""
    lateness_ms: Annotated[Millis, Key("lateness")] = 120_000
    idle_after_ms: Annotated[Millis, Key("idle_after")] = 60_000
    future_cutoff_ms: Annotated[Millis, Key("future_cutoff")] = 3_600_000
    not_before: Date = date(2000, 1, 1)
    late: LatePolicy = "drop"
    """What happens to points whose window is closed."""
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

    @property
    def summary(self) -> str:
        return f"{self.kind} ({', '.join(window.name for window in self.windows)})"

    def complete(self, job: JobSpec[Self], reader: SpecReader) -> JobSpec[Self]:
        if job.on.tombstone == "row":
            reader.note(
                ("on", "tombstone"), "row has no meaning: a tombstone has no points", "use filter or quarantine"
            )
        if reader.states(*AT, "windows"):
            _check_windows(self.windows, reader)
        if self.publish is not None:
            check_publish(self.publish, job, (*AT, "publish"), reader)
        return job


def _check_windows(windows: tuple[Window, ...], reader: SpecReader) -> None:
    at: KeyPath = (*AT, "windows")
    if not windows:
        reader.note(at, "names no window")
    elif len(windows) > WINDOWS_MAX:
        reader.note(at, f"more than {WINDOWS_MAX} windows")
    for index, (before, window) in enumerate(pairwise(windows), 1):
        if window.millis <= before.millis:
            reader.note((*at, index), f"{window.name} is not longer than {before.name}", "the shortest comes first")
        elif window.millis % windows[0].millis:
            hint = "every window is computed from the shortest"
            reader.note((*at, index), f"{window.name} is not a multiple of {windows[0].name}", hint)


def partials_job(job: JobSpec[RollupSpec]) -> JobSpec:
    """The job with its partials as the table, which stores the positions."""
    spec, whole = job.table, cast("JobSpec", job)
    numbers = (*PARTITION_TIMES, *PARTITION_SUMS)
    place = TablePlace(spec.partials_path, spec.storage_options, partition_by=("day", "epoch"), numbers=numbers)
    return replace(whole, table=place)
