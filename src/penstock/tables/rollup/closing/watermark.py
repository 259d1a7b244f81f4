"""The watermark of a rollup: how far event time has come, and what holds it back (RULES W1, W4). Pure.

Idleness needs no memory: the end of a log never falls, so a partition whose position is the end now has been read to
its end since its position last moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from penstock.logs.log import Partition


@dataclass(frozen=True, slots=True)
class PartitionTime:
    """What table and log say of a partition; read the table first."""

    position: int | None
    log_end: int
    event_ms: int | None
    """The greatest event time seen; None: no point yet."""
    moved_ms: int | None
    """The clock when the position last moved."""

    def idle(self, now_ms: int, idle_after_ms: int) -> bool:
        if self.position is None or self.moved_ms is None or self.position < self.log_end:
            return False
        return now_ms - self.moved_ms >= idle_after_ms


class HeldBy(StrEnum):
    """Why a partition holds the watermark."""

    UNSTARTED = "it has no position yet"
    UNREAD = "it has unread records"
    SILENT = "it is read to its end, and not idle yet"


@dataclass(frozen=True, slots=True)
class Holder:
    """The partition that holds the watermark, and why."""

    partition: Partition
    reason: HeldBy


@dataclass(frozen=True, slots=True)
class Watermark:
    """`at_ms` is None while nothing is known of the stream; `holder` while time goes on by the clock."""

    at_ms: int | None
    holder: Holder | None


def watermark(
    partitions: Mapping[Partition, PartitionTime], committed_ms: int | None, idle_after_ms: int, now_ms: int
) -> Watermark:
    """The least event time over the partitions of the log that are not idle; it never falls below `committed_ms`.

    One that has seen nothing holds the watermark where it is. Where all are idle, time goes on by the clock.
    """
    awake = {each: time for each, time in sorted(partitions.items()) if not time.idle(now_ms, idle_after_ms)}
    if not awake:
        return Watermark(_highest(_by_clock(partitions, now_ms), committed_ms), None)
    unseen = next((each for each, time in awake.items() if time.event_ms is None), None)
    if unseen is not None:
        return Watermark(committed_ms, Holder(unseen, _reason(awake[unseen])))
    times = {each: time.event_ms for each, time in awake.items() if time.event_ms is not None}
    slowest = min(times, key=lambda each: times[each])
    return Watermark(_highest(times[slowest], committed_ms), Holder(slowest, _reason(awake[slowest])))


def _by_clock(partitions: Mapping[Partition, PartitionTime], now_ms: int) -> int | None:
    """The greatest event time, and as much on as the clock since something last moved."""
    seen = [each.event_ms for each in partitions.values() if each.event_ms is not None]
    moved = [each.moved_ms for each in partitions.values() if each.moved_ms is not None]
    return max(seen) + max(0, now_ms - max(moved)) if seen and moved else None


def _reason(time: PartitionTime) -> HeldBy:
    if time.position is None:
        return HeldBy.UNSTARTED
    return HeldBy.UNREAD if time.position < time.log_end else HeldBy.SILENT


def _highest(*times: int | None) -> int | None:
    return max((each for each in times if each is not None), default=None)
