"""The values that every step passes on: partitions, slices and batches of a log. Ranges are half-open."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import TransientError


class SliceShrankError(TransientError):
    """Retention took offsets of a slice between plan and read: plan again (RULES P2)."""


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One partition of one life of a topic: a recreated topic has another `topic_id`."""

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

    @property
    def offsets(self) -> int:
        return sum(each.offsets for each in self.slices)
