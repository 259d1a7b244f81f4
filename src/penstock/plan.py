"""The planner: a pure function from positions, log bounds, flush policy and the time to a batch or a wait."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.errors import UserError
from penstock.job.spec import FlushPolicy, GapPolicy
from penstock.logs.log import Batch, Bounds, EpochMark, Partition, Slice


class GapError(UserError):
    """The log no longer has offsets that the table needs, and the job has `on.gap: fail`."""

    def __init__(self, partition: Partition, position: int, first: int) -> None:
        super().__init__(
            f"{partition} lost offsets {position} to {first - 1} before they were read",
            detail=f"the position is {position}, the log now begins at {first}",
            hint="set `on.gap: record` to record them as a gap and continue, or restore the log",
        )
        self.partition = partition
        self.position = position
        self.first = first


class LogCutError(UserError):
    """The log lost records that were already read, and not to retention: continuing would mix two histories."""


class BeyondEndError(LogCutError):
    """The table's position is beyond what the log holds: the log was truncated."""

    def __init__(self, partition: Partition, position: int, end: int) -> None:
        super().__init__(
            f"{partition} ends at {end}, before the table's position {position}",
            detail="the log was truncated or restored from an older backup; continuing would mix two histories",
            hint="restore the log, or write to a new table",
        )
        self.partition = partition
        self.position = position
        self.end = end


class LostTailError(LogCutError):
    """The log was truncated below the table's position and has grown past it again, as its leader epochs show."""

    def __init__(self, partition: Partition, mark: EpochMark, end: int | None) -> None:
        if end is None:
            primary = f"{partition} is not the log that was read up to offset {mark.end}"
            detail = f"its leader does not know leader epoch {mark.epoch}: the topic or its cluster was recreated"
        else:
            primary = f"{partition} lost its records from offset {end} on, and the job had read up to {mark.end}"
            detail = f"leader epoch {mark.epoch} ends at {end}; the records beyond it are new and are not read"
        super().__init__(
            primary,
            detail=f"{detail}; continuing would mix two histories",
            hint="restore the log, or write to a new table; see `unclean.leader.election.enable` of the topic",
        )
        self.partition = partition
        self.mark = mark
        self.end = end


@dataclass(frozen=True, slots=True)
class PartitionInput:
    """One claimed partition, as the planner sees it.

    `waiting_since` is when this process first saw records beyond the position; None means that they may be
    older than the process, so they are due at once.
    """

    partition: Partition
    position: int
    bounds: Bounds
    waiting_since: float | None

    @property
    def read_from(self) -> int:
        return max(self.position, self.bounds.first)

    @property
    def unread(self) -> int:
        return self.bounds.end - self.position


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is due before `until`, in the clock that was passed in; None means that no record waits."""

    until: float | None


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """What a plan depends on, apart from the lanes: policy, record size of earlier commits, and the time."""

    flush: FlushPolicy
    gap: GapPolicy
    record_bytes: float
    now: float
    flush_now: bool = False
    """Take all unread records, as `run --once` and a shutdown do."""


def plan(lanes: tuple[PartitionInput, ...], terms: PlanTerms, batch_id: str) -> Batch | Wait:
    """Return the next batch, or how long to wait for one.

    A batch is due when a lane waited for `allowed_latency`, or when the unread records fill a file of
    `min_bytes_per_file`; it then takes every lane that has records, up to `max_bytes_per_batch` in all.
    """
    for lane in lanes:
        _check(lane, terms.gap)
    ready = tuple(lane for lane in lanes if lane.unread > 0)
    if not ready:
        return Wait(None)
    unread = sum(lane.unread for lane in ready)
    if not terms.flush_now and unread < records_per_flush(terms.flush, terms.record_bytes):
        due_at = min(_due_at(lane, terms) for lane in ready)
        if due_at > terms.now:
            return Wait(due_at)
    slices = _slices(ready, records_per_batch_max(terms.flush, terms.record_bytes))
    return Batch(batch_id, slices, flush=terms.flush_now)


def records_per_flush(flush: FlushPolicy, record_bytes: float) -> int:
    """The records that fill a file: a whole number of `max_messages_per_batch`, as seed 004 counts them."""
    needed = flush.min_bytes_per_file / max(record_bytes, 1e-3)
    return max(1, math.ceil(needed / flush.max_messages_per_batch)) * flush.max_messages_per_batch


def records_per_batch_max(flush: FlushPolicy, record_bytes: float) -> int:
    """The most records of one batch: never less than one flush, so that a small bound cannot stop the job."""
    return max(records_per_flush(flush, record_bytes), int(flush.max_bytes_per_batch / max(record_bytes, 1e-3)))


def _check(lane: PartitionInput, gap: GapPolicy) -> None:
    if lane.position > lane.bounds.end:
        raise BeyondEndError(lane.partition, lane.position, lane.bounds.end)
    if lane.position < lane.bounds.first and gap == "fail":
        raise GapError(lane.partition, lane.position, lane.bounds.first)


def _due_at(lane: PartitionInput, terms: PlanTerms) -> float:
    if lane.waiting_since is None:
        return terms.now
    return lane.waiting_since + terms.flush.allowed_latency_seconds


def _slices(ready: tuple[PartitionInput, ...], records_max: int) -> tuple[Slice, ...]:
    """Share the batch's records among the lanes: the small ones whole, the large ones evenly."""
    slices = []
    records_left = records_max
    by_size = sorted(ready, key=lambda lane: (lane.bounds.end - lane.read_from, lane.partition))
    for index, lane in enumerate(by_size):
        share = max(1, records_left // (len(by_size) - index))
        end = min(lane.bounds.end, lane.read_from + share)
        records_left = max(0, records_left - (end - lane.read_from))
        slices.append(Slice(lane.partition, lane.position, end, lane.read_from))
    return tuple(sorted(slices, key=lambda item: item.partition))
