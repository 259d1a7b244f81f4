"""Staged files, counts and offset ranges: the values in a task's report and in a commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import pyarrow as pa

from penstock.logs.log import EpochMark

PartitionKey = tuple[str, int]
"""(topic, partition number): inside a batch a topic has one id, so only the driver needs the topic id."""
EpochMarks = Mapping[PartitionKey, tuple[EpochMark, ...]]
"""Per partition the last records of the pieces that were read."""
Ranges = tuple[tuple[int, int], ...]
"""A set of offsets: ascending `[start, end)` pairs that neither overlap nor touch."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the records that were read: `read = written + quarantined + filtered + skipped` (I3)."""

    read: int = 0
    written: int = 0
    quarantined: int = 0
    filtered: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.read + other.read,
            self.written + other.written,
            self.quarantined + other.quarantined,
            self.filtered + other.filtered,
            self.skipped + other.skipped,
        )

    @property
    def conserved(self) -> bool:
        return self.read == self.written + self.quarantined + self.filtered + self.skipped


class Vector(msgspec.Struct, frozen=True):
    """A deletion vector: which rows of a file are deleted. It is a part of a file next to the data."""

    path: str
    """Relative to the root of its table."""
    offset: int
    size_bytes: int
    rows: int
    """How many rows are deleted."""


class StagedFile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A Parquet file that is written and not yet committed. It belongs to one partition (RULES C4)."""

    topic: str
    partition: int
    path: str
    """Relative to the root of its table."""
    rows: int
    size_bytes: int
    partition_values: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    stats: str = ""
    """Delta statistics as JSON text."""
    last_offset: int | None = None
    """Of an export: the offset of its last record, which its final name shows."""
    vector: Vector | None = None
    """Of a file that is in the table already: the rows that are deleted from now on. Then `rows` is 0."""

    @property
    def written_bytes(self) -> int:
        return self.size_bytes if self.vector is None else 0


class RowWriter(Protocol):
    """Takes the rows of one partition."""

    def write(self, rows: pa.RecordBatch) -> None: ...

    def finish(self) -> tuple[StagedFile, ...]: ...

    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Reason:
    """One kind of error: how often, and the first record that has it."""

    kind: str
    count: int
    example: str
    """`<topic>/<partition> offset <offset>: <error>`"""

    def __add__(self, other: Reason) -> Reason:
        return Reason(self.kind, self.count + other.count, self.example)


def merged_epoch_marks(several: Iterable[EpochMarks]) -> dict[PartitionKey, tuple[EpochMark, ...]]:
    """The marks of several pieces or tasks by partition."""
    gathered: dict[PartitionKey, tuple[EpochMark, ...]] = {}
    for marks in several:
        for key, of_partition in marks.items():
            gathered[key] = (*gathered.get(key, ()), *of_partition)
    return gathered


def ranges_of(offsets: Iterable[int]) -> Ranges:
    """The ranges that hold exactly these offsets; their order and repetitions do not matter."""
    result: list[tuple[int, int]] = []
    for offset in sorted(set(offsets)):
        if result and result[-1][1] == offset:
            result[-1] = (result[-1][0], offset + 1)
        else:
            result.append((offset, offset + 1))
    return tuple(result)


def offsets_of(ranges: Ranges) -> list[int]:
    return [offset for start, end in ranges for offset in range(start, end)]


def count_of(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges)
