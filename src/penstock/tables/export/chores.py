"""The chores of an export, and what a running one remembers of types that wait or fail, of idle partitions and of days.

Chores are slices below the positions for types that wait, and marks of partitions that are idle. What is remembered is
a cache: losing it costs a repetition, a wait or one more try. Time is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.environment import new_batch_id
from penstock.errors import PenstockError
from penstock.events import Listener
from penstock.job.spec import DaysSpec, GapPolicy, JobSpec
from penstock.logs.log import Batch, Bounds, Log, Partition
from penstock.plan import GapError, records_per_batch_max
from penstock.tables.export import events
from penstock.tables.export.catch_up import CatchUpTerms, catch_up, lost_lanes
from penstock.tables.export.ledger.days import MILLIS_PER_SECOND, next_boundary_ms
from penstock.tables.export.ledger.state import LedgerState
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.status.alerts import measured_rules
from penstock.tables.export.table import ExportTable
from penstock.tables.kind import View

LOOK_SECONDS = 60.0
"""How often the log is asked which records have grown old."""


@dataclass(frozen=True, slots=True)
class CatchUpBatch(Batch):
    """Slices below the positions, for types that wait."""

    takes: Mapping[Partition, Mapping[str, int]] = field(default_factory=dict)
    routing: str = ""
    """The id of the routing under which their records were counted."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Types that wait are due."""

    name: ClassVar[str] = "catch-up"
    batch: CatchUpBatch


@dataclass(frozen=True, slots=True)
class IdleMarks:
    """An entry without rows: event times that idle partitions have passed, and days that close by them."""

    name: ClassVar[str] = "idle marks"
    batch: ClassVar[None] = None
    idle: Mapping[Partition, int]


def next_catch_up(
    job: JobSpec[ExportSpec], state: LedgerState, view: View, resting: frozenset[str]
) -> CatchUpBatch | None:
    """The next slices of types that wait and are due; None if there are none."""
    waiting = [each for each in view.tokens if state.of(each).lanes]
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
    planned = [
        found for each in waiting if (found := catch_up(each, state.of(each), view.bounds[each], terms)) is not None
    ]
    if not planned:
        return None
    # A Spark job routes in one way; what was counted under another comes next.
    planned = [each for each in planned if each.routing == planned[0].routing]
    takes = {each.piece.partition: each.takes for each in planned}
    slices = tuple(each.piece for each in planned)
    return CatchUpBatch(new_batch_id(), slices, takes=takes, routing=planned[0].routing)


@dataclass(slots=True)
class IdlePartitions:
    """Since when partitions are read to their end."""

    days: DaysSpec
    since: dict[Partition, float] = field(default_factory=dict)

    def marks(self, state: LedgerState, view: View) -> dict[Partition, int]:
        """The event times, in milliseconds, that partitions have passed which have been idle for long enough."""
        idle: dict[Partition, int] = {}
        for partition in view.tokens:
            here = state.of(partition)
            if here.position != view.bounds[partition].end:
                self.since.pop(partition, None)
                continue
            since = self.since.setdefault(partition, view.now)
            seen_ms = int((view.now - self.days.idle_seconds) * MILLIS_PER_SECOND)
            after = self.days.complete_after_seconds
            boundary_ms = next_boundary_ms(here.watermark_ms, seen_ms, after, state.reopened.values())
            if view.now - since >= self.days.idle_seconds and boundary_ms is not None:
                idle[partition] = seen_ms
        return idle


class WaitingRecords:
    """Records that wait for their types: those that the log has lost, and those that it will lose soon (I7)."""

    def __init__(self, log: Log, gap: GapPolicy, retention_percent: float, listener: Listener) -> None:
        self._log = log
        self._gap = gap
        self._retention_percent = retention_percent
        self._listener = listener
        self._stopped: set[tuple[Partition, str]] = set()
        self._look_at = 0.0
        self._expiring: Mapping[Partition, int] = {}

    def gaps(self, state: LedgerState, bounds: Mapping[Partition, Bounds]) -> list[GapError]:
        """Where the log lost records that wait for a type, unless the job says to go on."""
        if self._gap is not GapPolicy.FAIL:
            return []
        return [
            GapError(partition, lane.position, held.first, name)
            for partition, held in bounds.items()
            for name, lane in sorted(lost_lanes(state.of(partition), held).items())
        ]

    def tell_gaps(self, state: LedgerState, bounds: Mapping[Partition, Bounds]) -> None:
        """Say once which types stand still; the others go on."""
        for error in self.gaps(state, bounds):
            if (error.partition, error.type) not in self._stopped:
                self._stopped.add((error.partition, error.type))
                place = str(error.partition)
                self._listener.event(
                    events.TypeStoppedByAGap(type=error.type, partition=place, reason=error.primary, hint=error.hint)
                )

    def expiring(self, state: LedgerState, bounds: Mapping[Partition, Bounds], now: float) -> Mapping[Partition, int]:
        """Below which offsets waiting records are near their end; the log's answer may be a minute old."""
        waiting = {each: held for each, held in bounds.items() if state.of(each).lanes}
        if waiting and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            try:
                self._expiring = self._log.expiring(waiting, self._retention_percent, now)
            except PenstockError as error:
                # Whoever only watches stops nobody.
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
        """Leave a type alone for a while; returns whether that is news.

        `costly`: only reading its records again can tell whether it is well, a look at its folder cannot.
        """
        (self._costly.add if costly else self._costly.discard)(name)
        news = self.reasons.get(name) != reason
        self.reasons[name] = reason
        self._retry_at[name] = now + self._retry_seconds
        return news

    def forgive(self, name: str) -> None:
        self._retry_at.pop(name, None)

    def may_look(self, name: str, now: float, in_haste: bool) -> bool:
        """Whether to look at a type now: after its rest, or before in a run that wants to end, if a look is cheap."""
        return name not in self.resting(now) or (in_haste and name not in self._costly)

    def resting(self, now: float) -> frozenset[str]:
        return frozenset(name for name, at in self._retry_at.items() if now < at)

    def recovered(self, name: str) -> bool:
        """A type was written: forget that it failed; returns whether it had."""
        self._retry_at.pop(name, None)
        return self.reasons.pop(name, None) is not None


class Telling:
    """What a running export tells beside its batches: days, vanished records and the monitoring rules of seed 000."""

    def __init__(self, table: ExportTable) -> None:
        self._table = table
        self._limits = table.export.alerts
        self._listener = table.environment.listener
        self._ends: Mapping[Partition, int] = {}
        self._expiring: Mapping[Partition, int] = {}
        self._vanished = self._vanished_now()

    def look(self, view: View, expiring: Mapping[Partition, int]) -> None:
        """Take note of the log's ends, and of the offsets below which waiting records are near theirs; tell of both."""
        self._ends = {each: view.bounds[each].end for each in view.tokens}
        self._expiring = expiring
        vanished = self._vanished_now()
        if vanished > self._vanished:
            # Left to a type, and the log no longer had them: lost, and said so (I7).
            self._listener.event(events.RecordsVanished(records=vanished - self._vanished))
        self._vanished = vanished
        self.rules()

    def rules(self) -> None:
        """The monitoring rules over the partitions of this process."""
        known = self._table.ledger.known
        self._listener.event(measured_rules(known, self._ends, self._expiring, self._limits))

    def days(self) -> None:
        """Tell which days the ledger's entries completed and opened again."""
        for marks in self._table.finishing.marked:
            for name, day in marks.opened:
                self._listener.event(events.DayOpenedAgain(type=name, day=day))
            for name, day in marks.completed:
                self._listener.event(events.DayComplete(type=name, day=day))
            for reason in sorted(set(marks.failed.values())):
                self._listener.event(events.DayMarkerFailed(reason=reason))
        self._table.finishing.marked.clear()

    def _vanished_now(self) -> int:
        return sum(here.totals.vanished for here in self._table.ledger.known.partitions.values())
