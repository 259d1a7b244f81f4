"""Work of an export beside new batches: which types are brought up to the others, over which offsets, and when.

Pure plans, and what a running process remembers of idle partitions; time is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from penstock.environment import new_batch_id
from penstock.errors import InvariantError
from penstock.job.spec import DaysSpec
from penstock.logs.log import Batch, Bounds, Partition, Slice
from penstock.tables.export.days import next_boundary_ms
from penstock.tables.export.spec import Rotation
from penstock.tables.export.state import MILLIS_PER_SECOND, Cause, ExportState, JobPartition, Lag


@dataclass(frozen=True, slots=True)
class CatchUpBatch(Batch):
    """Slices below the positions, for types that lag and are due: a chore."""

    name: ClassVar[str] = "catch-up"
    takes: Mapping[Partition, Mapping[str, int]] = field(default_factory=dict)

    @property
    def batch(self) -> CatchUpBatch:
        return self


@dataclass(frozen=True, slots=True)
class RaiseEventTimes:
    """A commit without rows: event times that idle partitions have passed."""

    name: ClassVar[str] = "idle partitions"
    batch: ClassVar[None] = None
    idle: Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class CatchUpTerms:
    """What a plan depends on beside the lags."""

    rotations: Mapping[str, Rotation | None]
    now: float
    flush_now: bool = False
    resting: frozenset[str] = field(default_factory=frozenset)
    """Types that could not be written lately and are left alone for a while."""
    records_max: int = 1_000_000


def next_catch_up(state: ExportState, bounds: Mapping[Partition, Bounds], terms: CatchUpTerms) -> CatchUpBatch | None:
    """The next slices of types that lag and are due, in these partitions; None if there are none."""
    waiting = [partition for partition in bounds if state.of(partition).lags]
    terms = replace(terms, records_max=max(1, terms.records_max // max(1, len(waiting))))
    plans = (catch_up(partition, state.of(partition), bounds[partition], terms) for partition in waiting)
    planned = [plan for plan in plans if plan is not None]
    if not planned:
        return None
    takes = {piece.partition: types for piece, types in planned}
    return CatchUpBatch(new_batch_id(), tuple(piece for piece, _ in planned), takes=takes)


def catch_up(
    partition: Partition, state: JobPartition, bounds: Bounds, terms: CatchUpTerms
) -> tuple[Slice, dict[str, int]] | None:
    """The next slice below a partition's position, with the types that take part, each from its own position.

    None if nothing below it is due.
    """
    due = {name: lag for name, lag in state.lags.items() if _is_due(name, lag, terms)}
    if not due or state.position is None:
        return None
    start = min(lag.position for lag in due.values())
    read_from = min(max(start, bounds.first), state.position)
    end = min(state.position, read_from + terms.records_max)
    takes = {name: lag.position for name, lag in due.items() if lag.position < end}
    return Slice(partition, start, end, read_from), takes


def _is_due(name: str, lag: Lag, terms: CatchUpTerms) -> bool:
    """Whether a type that lags is to be written now."""
    if name in terms.resting:
        return False
    rotation = terms.rotations.get(name)
    if lag.cause is not Cause.ROTATION or rotation is None or terms.flush_now:
        return True
    return (
        rotation.events is not None and lag.deferred >= rotation.events
    ) or terms.now - lag.since_ms / 1000 >= rotation.seconds


def check_residue(piece: Slice, state: JobPartition, taken: Mapping[str, int], may_vanish: bool) -> None:
    """A type that has caught up must have found every record that was left for it, unless the log lost some."""
    if state.position is None or piece.end < state.position or may_vanish:
        return
    for name, count in taken.items():
        lag = state.lags.get(name)
        if lag is None or lag.gap or lag.position < piece.read_from:
            continue
        if lag.deferred != count:
            raise InvariantError(
                f"{piece.partition}: type {name} left {lag.deferred} records and found {count} of them",
                detail=f"offsets {lag.position} to {piece.end - 1}; nothing was written",
                hint="if the topic is transactional or was compacted, say so (log.kafka.transactional); "
                "otherwise report this with the output of `penstock verify`",
            )


@dataclass(slots=True)
class IdlePartitions:
    """Since when partitions are read to their end."""

    days: DaysSpec
    since: dict[Partition, float] = field(default_factory=dict)

    def event_times(
        self, state: ExportState, ends: Mapping[Partition, int], now: float, late: Sequence[int]
    ) -> dict[Partition, int]:
        """The event times, in milliseconds, that partitions have passed which have been idle for long enough.

        `late` are the watermarks at which late rows came: days may become complete that long after them.
        """
        idle: dict[Partition, int] = {}
        passed_ms = int((now - self.days.idle_seconds) * MILLIS_PER_SECOND)
        for partition, end in ends.items():
            known = state.of(partition)
            if known.position != end:
                self.since.pop(partition, None)
                continue
            since = self.since.setdefault(partition, now)
            boundary_ms = next_boundary_ms(known.watermark_ms, passed_ms, self.days.complete_after_seconds, late)
            if now - since >= self.days.idle_seconds and boundary_ms is not None:
                idle[partition] = passed_ms
        return idle
