"""Chores of an export: lagging types catch up with the others, and idle partitions close days.

Pure plans, and since when a running process knows partitions to be idle; time is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.environment import new_batch_id
from penstock.job.spec import DaysSpec
from penstock.logs.log import Batch, Bounds, Partition, Slice
from penstock.tables.export.spec import Rotation
from penstock.tables.export.state import MILLIS_PER_DAY, MILLIS_PER_SECOND, ExportState, Lag


@dataclass(frozen=True, slots=True)
class CatchUpBatch(Batch):
    """Slices below the positions, for types that lag and are due: a chore."""

    name: ClassVar[str] = "catch-up"
    takes: Mapping[Partition, Mapping[str, int]] = field(default_factory=dict)

    @property
    def batch(self) -> CatchUpBatch:
        return self


def next_catch_up(
    state: ExportState, bounds: Mapping[Partition, Bounds], is_due: Callable[[str, Lag], bool], records_max: int
) -> CatchUpBatch | None:
    """The next slices below the positions of these partitions, with the types that are due; None if no type is due.

    Each type takes part from its own position on.
    """
    slices: list[Slice] = []
    takes: dict[Partition, Mapping[str, int]] = {}
    records_per_partition = max(1, records_max // max(1, sum(bool(state.of(partition).lags) for partition in bounds)))
    for partition, held in bounds.items():
        counted = state.of(partition)
        due = {name: lag.position for name, lag in counted.lags.items() if is_due(name, lag)}
        if not due or counted.position is None:
            continue
        start = min(due.values())
        read_from = min(max(start, held.first), counted.position)
        end = min(counted.position, read_from + records_per_partition)
        slices.append(Slice(partition, start, end, read_from))
        takes[partition] = {name: position for name, position in due.items() if position < end}
    return CatchUpBatch(new_batch_id(), tuple(slices), takes=takes) if slices else None


def is_rotation_due(rotation: Rotation | None, lag: Lag, now: float) -> bool:
    """Whether the rotation of a lagging type is due; a type without a rotation is always due."""
    if rotation is None or (rotation.events is not None and lag.deferred >= rotation.events):
        return True
    return now - lag.since_ms / MILLIS_PER_SECOND >= rotation.seconds


@dataclass(slots=True)
class IdlePartitions:
    """Since when partitions are read to their end."""

    days: DaysSpec
    since: dict[Partition, float] = field(default_factory=dict)

    def event_times(
        self, state: ExportState, ends: Mapping[Partition, int], now: float, late: Sequence[int]
    ) -> dict[Partition, int]:
        """The event times, in milliseconds, up to which partitions that were idle for long enough are complete.

        `late` are the watermarks at which late rows arrived: their days become complete some time after these.
        """
        idle: dict[Partition, int] = {}
        passed_ms = int((now - self.days.idle_seconds) * MILLIS_PER_SECOND)
        boundary_ms = last_boundary_ms(passed_ms, self.days.complete_after_seconds, late)
        for partition, end in ends.items():
            counted = state.of(partition)
            if counted.position != end:
                self.since.pop(partition, None)
                continue
            idle_seconds, mark_ms = now - self.since.setdefault(partition, now), counted.watermark_ms
            if idle_seconds >= self.days.idle_seconds and (mark_ms is None or mark_ms < boundary_ms):
                idle[partition] = passed_ms
        return idle


def last_boundary_ms(now_ms: int, after_seconds: float, late: Sequence[int]) -> int:
    """The last instant up to now at which a day became complete: some time after a midnight, or after late rows."""
    margin_ms = int(after_seconds * MILLIS_PER_SECOND)
    midnight_ms = (now_ms - margin_ms) // MILLIS_PER_DAY * MILLIS_PER_DAY
    return max(instant_ms + margin_ms for instant_ms in (midnight_ms, *late) if instant_ms + margin_ms <= now_ms)
