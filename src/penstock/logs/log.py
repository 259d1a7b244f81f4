"""The interface of a log, with its partitions, slices and batches. Ranges are half-open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import TransientError, UserError
from penstock.job.spec import StartAt

Offsets = npt.NDArray[np.int64]
OffsetProgress = Callable[[int], None]
"""Called with the number of further offsets of a range that were read."""

PIECE_RECORDS_MIN = 10_000
"""Fewer are not worth a task and a file of their own."""

HALVING_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One partition of one incarnation of a topic: a recreated topic has another `topic_id`."""

    topic: str
    topic_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the log holds of a partition now: `[first, end)`; `end` is the last stable offset."""

    first: int
    end: int


@dataclass(frozen=True, slots=True, order=True)
class EpochMark:
    """A record that was read: the offset after it, and the epoch of the leader that appended it."""

    end: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Slice:
    """The offsets `[start, end)` of a partition; those below `read_from` are a gap that the log no longer has."""

    partition: Partition
    start: int
    end: int
    read_from: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.read_from <= self.end:
            raise ValueError(f"not a slice: {self}")

    @property
    def gap(self) -> int:
        return self.read_from - self.start

    @property
    def offsets(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """The slices that one Spark job writes and one commit makes visible; at most one slice per partition."""

    id: str
    slices: tuple[Slice, ...]
    flush: bool = False
    """Whether it takes all unread records: a bounded run, or a shutdown."""
    read_to_end_at: Mapping[Partition, float] = field(default_factory=dict, compare=False)
    """The partitions whose slice ends where the log ended, with the clock just before the log was asked for its end."""
    log_ends: Mapping[Partition, int] = field(default_factory=dict, compare=False)
    """Where the log ended when the batch was planned."""
    steps: Mapping[str, float] = field(default_factory=dict, compare=False)
    """The seconds of its steps up to the commit."""

    @property
    def offsets(self) -> int:
        return sum(slice_.offsets for slice_ in self.slices)


@dataclass(frozen=True, slots=True)
class LostTail:
    """A partition whose log no longer has a record that was read.

    `end` is where the record's epoch ends now; None if the leader does not know such an epoch.
    """

    partition: Partition
    mark: EpochMark
    end: int | None


class SliceShrankError(TransientError):
    """Retention deleted offsets of a slice between plan and read: plan again (RULES P2)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a slice that one task reads."""

    topic: str
    partition: int
    start: int
    end: int


class PieceSource(Protocol):
    """Reads in Spark tasks: turns the numbers of pieces into Arrow batches of their records.

    After the records of a piece a batch without rows may show the mark of the last one (`logs.batches.mark_batch`).
    """

    @property
    def pieces(self) -> tuple[Piece, ...]: ...

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...


class Log(Protocol):
    """What jobs and `verify` ask of a log, of one or several topics; used by one thread."""

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition as it is now, sorted; a pattern may match none."""

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The ids of those topics that exist (RULES P3)."""

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        """What the log holds of each partition, up to its last stable offset (RULES P2)."""

    def start_offsets(
        self, partitions: Iterable[Partition], bounds: Mapping[Partition, Bounds]
    ) -> Mapping[Partition, int]:
        """Where a job without positions begins (RULES P1)."""

    def compacted(self, topic: str) -> bool | None:
        """Whether compaction may leave holes in the topic; None if that is not known."""
        return False

    def retention_seconds(self, topic: str) -> float | None:
        """How long the topic keeps a record; None if that is unlimited or not known."""
        return None

    def record_bytes_max(self, topic: str) -> int:
        """How large a record of the topic may be."""

    def leader_epochs(self, partitions: Iterable[Partition]) -> Mapping[Partition, int | None]:
        """The epochs of the partitions' present leaders; None where the log keeps none."""
        return dict.fromkeys(partitions)

    def lost_tails(self, marks: Mapping[Partition, Iterable[EpochMark]]) -> Sequence[LostTail]:
        """The marks whose records the log has lost otherwise than by retention or compaction."""
        return ()

    def source(self, slices: Sequence[Slice], tasks_min: int, batch_bytes: int) -> PieceSource:
        """The slices cut into pieces, enough for so many tasks if that is worth it."""

    def records(self, partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The records of `[start, end)` as tasks get them; raises `SliceShrankError` if the log lost some of them."""

    def offsets(self, partition: Partition, start: int, end: int, progress: OffsetProgress) -> Offsets:
        """The offsets of all records in `[start, end)`, ascending; what retention takes meanwhile may be absent."""

    def record_times(self, offsets: Mapping[Partition, int], seconds_max: float) -> Mapping[Partition, float]:
        """When the first record at or after each offset was made, in seconds since 1970.

        A partition without such a record, or whose record did not come in time, is absent.
        """

    def offset_at(self, partition: Partition, at: float, bounds: Bounds) -> int:
        """The offset of the first record that was made at or after a time; the end if there is none.

        By halves, which takes records to be in the order of their times.
        """
        first, end = bounds.first, bounds.end
        while first < end:
            middle = (first + end) // 2
            made_at = self.record_times({partition: middle}, HALVING_SECONDS_MAX).get(partition)
            if made_at is None or made_at >= at:
                end = middle
            else:
                first = middle + 1
        return first

    def show(self, positions: Mapping[Partition, int]) -> Mapping[Partition, str]:
        """Show positions to tools that measure lag; returns why some are not shown.

        Best effort, never read back as truth (RULES P5). A WAL deletes what every job has shown as committed.
        """

    def shown(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """The positions that tools see now; a partition without one is absent."""

    def close(self) -> None:
        """Close connections; the log cannot be used afterwards."""


def start_offset(start: StartAt | Mapping[str, Mapping[int, int]], partition: Partition, bounds: Bounds) -> int:
    """Resolve a job's `start` for one partition; one that explicit offsets leave out begins at its beginning."""
    match start:
        case "earliest":
            return bounds.first
        case "latest":
            return bounds.end
    offset = start.get(partition.topic, {}).get(partition.number)
    if offset is None:
        return bounds.first
    if not bounds.first <= offset <= bounds.end:
        raise UserError(
            f"start offset {offset} of {partition} is outside the log, which holds [{bounds.first}, {bounds.end})",
            hint="name an offset that the log still has, or use start: earliest",
        )
    return offset


def pieces_of(slices: Sequence[Slice], tasks_min: int) -> tuple[Piece, ...]:
    """Cut the slices so that even few of them keep every core busy; a small slice stays whole."""
    total = sum(slice_.end - slice_.read_from for slice_ in slices)
    pieces = []
    for slice_ in slices:
        size = slice_.end - slice_.read_from
        if not size:
            continue
        count = max(1, min(round(tasks_min * size / total), size // PIECE_RECORDS_MIN))
        cuts = [slice_.read_from + size * number // count for number in range(count + 1)]
        pieces += [Piece(slice_.partition.topic, slice_.partition.number, start, end) for start, end in pairwise(cuts)]
    return tuple(pieces)
