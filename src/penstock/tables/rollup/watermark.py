"""The watermark of a rollup: how far event time has come, and what holds it back (RULES W1, W4). Pure.

A partition is idle if no point came for `idle_after` while all its records were read. This needs no state in memory.
The end of a log never decreases, so a partition whose position is the end now has been read to its end since its
position last moved. Where records arrive all the time, the last commit states until when it has read all records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from penstock.logs.log import Partition

READ_LATELY_MS = 60_000
"""How long after its last commit a partition with unread records counts as read up to that commit's plan."""


@dataclass(frozen=True, slots=True)
class PartitionTime:
    """The state of a partition in table and log; read the table first."""

    position: int | None
    log_end: int
    event_ms: int | None
    """The greatest event time; None: no point yet."""
    moved_ms: int | None
    """The clock when the position last moved."""
    last_point_ms: int | None
    """The clock when a point was last committed, or the partition started."""
    read_to_end_ms: int | None = None
    """The last commit read all records that had arrived at this clock; None: it left some unread."""

    @classmethod
    def of(cls, position: int | None, log_end: int, numbers: Mapping[str, int]) -> PartitionTime:
        event_ms, moved_ms, last_point_ms = map(numbers.get, ("event_ms", "moved_ms", "last_point_ms"))
        return cls(position, log_end, event_ms, moved_ms, last_point_ms, numbers.get("read_to_end_ms") or None)

    @property
    def unread(self) -> bool:
        return self.position is None or self.position < self.log_end

    def all_read_ms(self, now_ms: int) -> int | None:
        """The time until which all arrived records are read; None if unknown or too long ago."""
        if not self.unread:
            return now_ms
        return self.read_to_end_ms if self._moved_lately(now_ms) else None

    def idle(self, now_ms: int, idle_after_ms: int) -> bool:
        all_read_ms = self.all_read_ms(now_ms)
        if all_read_ms is None or self.last_point_ms is None:
            return False
        return all_read_ms - self.last_point_ms >= idle_after_ms

    def without_points(self, now_ms: int, idle_after_ms: int) -> bool:
        """Whether it is idle although records arrive."""
        moved = self._moved_lately(now_ms) and (self.moved_ms or 0) > (self.last_point_ms or 0)
        return moved and self.idle(now_ms, idle_after_ms)

    def _moved_lately(self, now_ms: int) -> bool:
        return self.moved_ms is not None and now_ms - self.moved_ms < READ_LATELY_MS


class HeldBy(StrEnum):
    """Why a partition holds the watermark."""

    UNSTARTED = "it has no position yet"
    UNREAD = "it has unread records"
    SILENT = "it is read to its end, and not idle yet"
    WITHOUT_POINTS = "its records hold no points, and are read up to this time"


@dataclass(frozen=True, slots=True)
class Watermark:
    """`at_ms` is None before the first point."""

    at_ms: int | None
    held_by: Partition | None = None
    """None: the watermark advances with the clock."""
    reason: HeldBy | None = None


def watermark(
    partitions: Mapping[Partition, PartitionTime], committed_ms: int | None, idle_after_ms: int, now_ms: int
) -> Watermark:
    """The least event time over the partitions of the log that are not idle; it never falls below `committed_ms`.

    A partition without points holds the watermark where it is. An idle partition with unread records holds it at the
    time until which its records are read: a point in the unread ones is not older, unless it came late to the log. If
    all partitions are idle, the watermark advances with the clock.
    """
    times: dict[Partition, tuple[int, HeldBy]] = {}
    all_idle = True
    for partition, time in sorted(partitions.items()):
        if time.idle(now_ms, idle_after_ms):
            if time.unread and time.read_to_end_ms is not None:
                times[partition] = time.read_to_end_ms, HeldBy.WITHOUT_POINTS
            continue
        all_idle = False
        if time.event_ms is None:
            return Watermark(committed_ms, partition, _reason(time))
        times[partition] = time.event_ms, _reason(time)
    if all_idle:
        return Watermark(_highest(_by_clock(partitions, now_ms), committed_ms))
    slowest = min(times, key=lambda partition: times[partition][0])
    at_ms, reason = times[slowest]
    return Watermark(_highest(at_ms, committed_ms), slowest, reason)


def _by_clock(partitions: Mapping[Partition, PartitionTime], now_ms: int) -> int | None:
    """The greatest event time plus the time since the last point; all partitions must be idle."""
    points = [
        (time.event_ms, time.last_point_ms)
        for time in partitions.values()
        if time.event_ms is not None and time.last_point_ms is not None
    ]
    all_read_ms = min((time.all_read_ms(now_ms) or 0 for time in partitions.values()), default=0)
    if not points:
        return None
    return max(event for event, _ in points) + max(0, all_read_ms - max(last for _, last in points))


def _reason(time: PartitionTime) -> HeldBy:
    if time.position is None:
        return HeldBy.UNSTARTED
    return HeldBy.UNREAD if time.unread else HeldBy.SILENT


def _highest(*times: int | None) -> int | None:
    return max((time for time in times if time is not None), default=None)
