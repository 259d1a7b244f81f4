"""A log in memory: the twin of a Kafka cluster that needs no broker, for tests of everything that reads a log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import TransientError, UserError
from penstock.job.kafka_types import RECORD_SCHEMA
from penstock.job.spec import LogSpec, StartAt
from penstock.logs.batches import mark_batch
from penstock.logs.log import (
    Bounds,
    EpochMark,
    LostTail,
    Offsets,
    Partition,
    Piece,
    ShowReport,
    Slice,
    SliceShrankError,
    Told,
    start_offset,
)

BATCH_RECORDS = 4
TOPIC_SETTINGS = {"retention.ms": str(7 * 86_400_000), "max.message.bytes": str(1024 * 1024 + 12)}
"""What Kafka's topics have if they state nothing."""


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A record with more than a value."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    at: float = 0.0
    """When it was made, in seconds since 1970."""


Values = Mapping[int, bytes | MemoryRecord | None]


@dataclass(slots=True)
class MemoryLog:
    """The values of records by partition and offset; what is below `firsts` retention has taken."""

    values: dict[Partition, Values] = field(default_factory=dict)
    firsts: dict[Partition, int] = field(default_factory=dict)
    is_compacted: bool = False
    epochs: Mapping[Partition, Mapping[int, int]] = field(default_factory=dict)
    """Where each epoch of a partition's leaders ends, in their order; without any the log keeps none."""
    ends: dict[Partition, int] = field(default_factory=dict)
    """Where partitions end whose last offsets have no record."""
    settings: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Of topics, where they differ from `TOPIC_SETTINGS`."""
    start: StartAt | Mapping[str, Mapping[int, int]] = StartAt.EARLIEST
    topics: tuple[str, ...] = ()
    """Those that are seen; none stated: all of them."""
    topic_pattern: str | None = None
    positions_shown: dict[Partition, int] = field(default_factory=dict)
    groups: dict[str, dict[Partition, int]] = field(default_factory=dict)
    """The positions that each job shows."""

    # what a test does to it

    def view(self, spec: LogSpec) -> MemoryLog:
        """The same log as a job sees it: its topics, where it begins, and the positions of its group."""
        shown = self.groups.setdefault(spec.group, {})
        return replace(
            self, start=spec.start, topics=spec.topics, topic_pattern=spec.topic_pattern, positions_shown=shown
        )

    def append(self, partition: Partition, *values: bytes | MemoryRecord | None) -> None:
        """Add records at the end of a partition, which begins with the first of them."""
        end = self._end(partition)
        self.values[partition] = {**self.values.get(partition, {}), **dict(zip(count(end), values, strict=False))}
        self.ends[partition] = end + len(values)

    def expire(self, partition: Partition, first: int) -> None:
        """Let retention take the records below an offset."""
        self.firsts[partition] = first

    def recreate(self, topic: str, topic_id: str) -> None:
        """Delete a topic and create it again, empty and with as many partitions."""
        for number in self.delete(topic):
            self.values[Partition(topic, topic_id, number)] = {}

    def delete(self, topic: str) -> list[int]:
        """Delete a topic; returns the numbers of its partitions."""
        gone = [value for value in self.values if value.topic == topic]
        for item in gone:
            del self.values[item]
            for kept in (self.firsts, self.ends, self.positions_shown, *self.groups.values()):
                kept.pop(item, None)
        self.settings.pop(topic, None)
        return [each.number for each in gone]

    # what a log answers

    def partitions(self) -> tuple[Partition, ...]:
        names = {value.topic for value in self.values}
        for topic in self.topics:
            if topic not in names:
                raise UserError(f"there is no topic {topic}", hint=f"the log has {', '.join(sorted(names)) or 'none'}")
        return tuple(sorted(item for item in self.values if self._sees(item.topic)))

    def _sees(self, topic: str) -> bool:
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return not self.topics or topic in self.topics

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        ids = {value.topic: value.topic_id for value in self.values}
        return {topic: ids[topic] for topic in topics if topic in ids}

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        wanted = tuple(partitions)
        for item in wanted:
            if item not in self.values:
                raise TransientError(f"partition {item} is gone")
        return {each: Bounds(self._first(each), max(self._first(each), self._end(each))) for each in wanted}

    def start_offsets(
        self, partitions: Iterable[Partition], bounds: Mapping[Partition, Bounds]
    ) -> Mapping[Partition, int]:
        return {partition: start_offset(self.start, partition, bounds[partition]) for partition in partitions}

    def compacted(self, topic: str) -> bool | None:
        return self.is_compacted

    def record_bytes_max(self, topic: str) -> int:
        return int(self._setting(topic, "max.message.bytes"))

    def _setting(self, topic: str, name: str) -> str:
        return self.settings.get(topic, {}).get(name, TOPIC_SETTINGS[name])

    def leader_epochs(self, partitions: Iterable[Partition]) -> Mapping[Partition, int | None]:
        return {partition: max(self.epochs.get(partition, ()), default=None) for partition in partitions}

    def lost_tails(self, marks: Mapping[Partition, Iterable[EpochMark]]) -> Sequence[LostTail]:
        asked = [
            (partition, mark, self.epochs.get(partition, {}).get(mark.epoch))
            for partition in marks
            for mark in marks[partition]
        ]
        return [LostTail(each, mark, end) for each, mark, end in asked if end is None or end < mark.end]

    def _times(self, partition: Partition, first: int) -> Iterator[tuple[int, float]]:
        """When the records at or after an offset were made."""
        there = sorted(self.values[partition].items())
        return ((at, each.at) for at, each in there if at >= first and isinstance(each, MemoryRecord))

    def source(self, slices: Sequence[Slice], tasks_min: int, batch_bytes: int) -> MemorySource:
        for item in slices:
            if item.read_from < min(self._first(item.partition), item.end):
                raise SliceShrankError(f"offset {item.read_from} of {item.partition} is no longer in the log")
        pieces = tuple(Piece(each.partition.topic, each.partition.number, each.read_from, each.end) for each in slices)
        held = {(each.partition.topic, each.partition.number): self.values[each.partition] for each in slices}
        marks = {
            (each.topic, each.partition): EpochMark(each.end, epoch)
            for each, piece in zip(pieces, slices, strict=True)
            if (epoch := self._epoch_at(piece.partition, each.end)) is not None
        }
        return MemorySource(pieces, held, marks)

    def records(self, partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        source = self.source([Slice(partition, start, end, start)], 1, 0)
        return source.read(source.pieces[0])

    def offsets(self, partition: Partition, start: int, end: int, told: Told) -> Offsets:
        told(end - start)
        first = max(start, self._first(partition))
        return np.array([value for value in sorted(self.values[partition]) if first <= value < end], np.int64)

    def record_times(self, offsets: Mapping[Partition, int], seconds_max: float) -> Mapping[Partition, float]:
        result = {partition: next(self._times(partition, offset), None) for partition, offset in offsets.items()}
        return {key: first[1] for key, first in result.items() if first is not None}

    def show(self, positions: Mapping[Partition, int]) -> ShowReport:
        ahead = {partition: self.positions_shown.get(partition, -1) for partition in positions}
        refused = {item: f"already at {ahead[item]}" for item, to in positions.items() if ahead[item] > to}
        moved = {each: to for each, to in positions.items() if to > ahead[each]}
        self.positions_shown |= moved
        return ShowReport(moved, refused)

    def shown(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        return {
            partition: self.positions_shown[partition] for partition in partitions if partition in self.positions_shown
        }

    def close(self) -> None:
        """There is nothing to let go of."""

    def _first(self, partition: Partition) -> int:
        return self.firsts.get(partition, 0)

    def _end(self, partition: Partition) -> int:
        return max(self.ends.get(partition, 0), max(self.values.get(partition, ()), default=-1) + 1)

    def _epoch_at(self, partition: Partition, end: int) -> int | None:
        """The epoch of the last record below an offset."""
        ends = self.epochs.get(partition, {})
        return next((epoch for epoch, epoch_end in sorted(ends.items()) if end <= epoch_end), None)


@dataclass(frozen=True, slots=True)
class MemorySource:
    """The records of slices, sent to the tasks with them."""

    pieces: tuple[Piece, ...]
    values: Mapping[tuple[str, int], Values]
    marks: Mapping[tuple[str, int], EpochMark] = field(default_factory=dict)

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                piece = self.pieces[number]
                yield from self.read(piece)
                mark = self.marks.get((piece.topic, piece.partition))
                if mark is not None:
                    yield mark_batch(RECORD_SCHEMA, piece.topic, piece.partition, mark)

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """The records of one piece."""
        values = self.values[piece.topic, piece.partition]
        held = [value for value in sorted(values) if piece.start <= value < piece.end]
        for first in range(0, len(held), BATCH_RECORDS):
            rows = [_row(piece, offset, values[offset]) for offset in held[first : first + BATCH_RECORDS]]
            yield pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)


def _row(piece: Piece, offset: int, record: bytes | MemoryRecord | None) -> dict[str, Any]:
    result = record if isinstance(record, MemoryRecord) else MemoryRecord(record)
    return {
        "topic": piece.topic,
        "partition": piece.partition,
        "offset": offset,
        "timestamp": datetime.fromtimestamp(result.at, UTC) if result is record else None,
        "key": result.key,
        "value": result.value,
        "headers": [{"key": key, "value": value} for key, value in result.headers] or None,
    }
