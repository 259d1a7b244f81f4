"""Chores of an export: lagging types catch up with the others, and idle partitions close days.

Pure plans, and since when a running process knows partitions to be idle; time is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.environment import new_batch_id
from penstock.logs.log import Batch, Bounds, Partition, Slice
from penstock.tables.export.spec import Rotation
from penstock.tables.export.state import MILLIS_PER_SECOND, ExportState, Lag


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


def idle_event_times(
    state: ExportState, ends: Mapping[Partition, int], now: float, idle_seconds: float, since: dict[Partition, float]
) -> dict[Partition, int]:
    """The event times, in milliseconds, of partitions that are idle for long enough: they follow the clock.

    They do so in steps of that time, all at once, so that commits without rows are rare. `since` holds since when
    partitions are known to be read to their end.
    """
    idle: dict[Partition, int] = {}
    idle_ms = max(1, int(idle_seconds * MILLIS_PER_SECOND))
    passed_ms = int(now * MILLIS_PER_SECOND) - idle_ms
    step_ms = passed_ms // idle_ms * idle_ms
    for partition, end in ends.items():
        position, mark_ms = state.of(partition).position, state.of(partition).watermark_ms
        if position != end:
            since.pop(partition, None)
        elif now - since.setdefault(partition, now) >= idle_seconds and (mark_ms is None or mark_ms < step_ms):
            idle[partition] = passed_ms
    return idle
