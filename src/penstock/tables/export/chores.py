"""What a running export remembers of types that fail, of idle partitions and of records that wait; time is passed in.

It is a cache: losing it costs a repetition, a wait or one more try.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.environment import new_batch_id
from penstock.errors import PenstockError
from penstock.events import Listener
from penstock.job.spec import DaysSpec, GapPolicy, JobSpec
from penstock.logs.log import Bounds, Log, Partition
from penstock.plan import GapError, records_per_batch_max
from penstock.tables.export import events
from penstock.tables.export.catch_up import CatchUpBatch, CatchUpTerms, catch_up, lost_lags
from penstock.tables.export.days import next_boundary_ms
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.state import MILLIS_PER_SECOND, ExportState
from penstock.tables.kind import View

EXPIRY_SECONDS = 60.0
"""How often the log is asked which records have grown old."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Types that lag are due."""

    name: ClassVar[str] = "catch-up"
    batch: CatchUpBatch


@dataclass(frozen=True, slots=True)
class RaiseEventTimes:
    """A commit without rows: event times that idle partitions have passed."""

    name: ClassVar[str] = "idle partitions"
    batch: ClassVar[None] = None
    idle: Mapping[Partition, int]


def next_catch_up(
    job: JobSpec[ExportSpec], state: ExportState, view: View, resting: frozenset[str]
) -> CatchUpBatch | None:
    """The next slices of types that lag and are due; None if there are none."""
    waiting = [partition for partition in view.tokens if state.of(partition).lags]
    if not waiting:
        return None
    terms = CatchUpTerms(
        rotations={name: spec.rotation for name, spec in job.table.types.items()},
        now=view.now,
        gap=job.on.gap,
        flush_now=view.flush_now,
        resting=resting,
        records_max=max(1, records_per_batch_max(job.flush, view.record_bytes) // len(waiting)),
    )
    plans = (catch_up(partition, state.of(partition), view.bounds[partition], terms) for partition in waiting)
    planned = [plan for plan in plans if plan is not None]
    if not planned:
        return None
    takes = {piece.partition: types for piece, types in planned}
    return CatchUpBatch(new_batch_id(), tuple(piece for piece, _ in planned), takes=takes)


@dataclass(slots=True)
class IdlePartitions:
    """Since when partitions are read to their end."""

    days: DaysSpec
    since: dict[Partition, float] = field(default_factory=dict)

    def event_times(self, state: ExportState, view: View, late: Iterable[int]) -> dict[Partition, int]:
        """The event times, in milliseconds, that partitions have passed which have been idle for long enough.

        `late` are the watermarks at which late rows came: days may become complete that long after them.
        """
        idle: dict[Partition, int] = {}
        late = tuple(late)
        for partition in view.tokens:
            here = state.of(partition)
            if here.position != view.bounds[partition].end:
                self.since.pop(partition, None)
                continue
            since = self.since.setdefault(partition, view.now)
            passed_ms = int((view.now - self.days.idle_seconds) * MILLIS_PER_SECOND)
            after = self.days.complete_after_seconds
            boundary_ms = next_boundary_ms(here.watermark_ms, passed_ms, after, late)
            if view.now - since >= self.days.idle_seconds and boundary_ms is not None:
                idle[partition] = passed_ms
        return idle


class WaitingRecords:
    """Records that wait for their types: those that the log has lost, and those that it will lose soon (I7)."""

    def __init__(self, log: Log, gap: GapPolicy, retention_percent: float, listener: Listener) -> None:
        self._log = log
        self._gap = gap
        self._retention_percent = retention_percent
        self._listener = listener
        self._stopped: set[tuple[Partition, str]] = set()
        self._ask_at = 0.0
        self._expiring: Mapping[Partition, int] = {}

    def gaps(self, state: ExportState, bounds: Mapping[Partition, Bounds]) -> list[GapError]:
        """Where the log lost records that wait for a type, unless the job says to go on."""
        if self._gap is not GapPolicy.FAIL:
            return []
        return [
            GapError(partition, lag.position, held.first, name)
            for partition, held in bounds.items()
            for name, lag in sorted(lost_lags(state.of(partition), held).items())
        ]

    def report_gaps(self, state: ExportState, bounds: Mapping[Partition, Bounds]) -> None:
        """Report once which types stand still; the others go on."""
        for error in self.gaps(state, bounds):
            if (error.partition, error.type) not in self._stopped:
                self._stopped.add((error.partition, error.type))
                place = str(error.partition)
                self._listener.event(
                    events.TypeStoppedByAGap(type=error.type, partition=place, reason=error.primary, hint=error.hint)
                )

    def expiring(self, state: ExportState, bounds: Mapping[Partition, Bounds], now: float) -> Mapping[Partition, int]:
        """Below which offsets waiting records are near their end; the log's answer may be a minute old."""
        waiting = {partition: held for partition, held in bounds.items() if state.of(partition).lags}
        if waiting and now >= self._ask_at:
            self._ask_at = now + EXPIRY_SECONDS
            try:
                self._expiring = self._log.expiring(waiting, self._retention_percent, now)
            except PenstockError as error:
                # Monitoring never stops the job.
                self._listener.event(events.RetentionNotKnown(reason=error.primary, detail=error.detail))
        return self._expiring if waiting else {}


class FailingTypes:
    """Types that could not be written, and until when they are left alone."""

    def __init__(self, retry_seconds: float) -> None:
        self._retry_seconds = retry_seconds
        self._retry_at: dict[str, float] = {}
        self._costly: set[str] = set()
        self.reasons: dict[str, str] = {}

    def note(self, name: str, reason: str, now: float, costly: bool = False) -> bool:
        """Leave a type alone for a while; returns whether the reason is new.

        `costly`: only reading its records again shows whether it can be written; a probe of its folder does not.
        """
        (self._costly.add if costly else self._costly.discard)(name)
        is_new = self.reasons.get(name) != reason
        self.reasons[name] = reason
        self._retry_at[name] = now + self._retry_seconds
        return is_new

    def forgive(self, name: str) -> None:
        self._retry_at.pop(name, None)

    def may_probe(self, name: str, now: float, in_haste: bool) -> bool:
        """Whether to probe a type now: after its rest, or before in a run that wants to end, if a probe tells."""
        return name not in self.resting(now) or (in_haste and name not in self._costly)

    def resting(self, now: float) -> frozenset[str]:
        return frozenset(name for name, at in self._retry_at.items() if now < at)

    def recovered(self, name: str) -> bool:
        """A type was written: forget that it failed; returns whether it had."""
        self._retry_at.pop(name, None)
        return self.reasons.pop(name, None) is not None
