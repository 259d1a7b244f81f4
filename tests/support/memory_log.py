"""A log in memory, which behaves as a Kafka cluster does: for tests of everything that reads a log."""

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
    OffsetProgress,
    Offsets,
    Partition,
    Piece,
    Slice,
    SliceShrankError,
    start_offset,
)

BATCH_RECORDS = 4
RECORD_BYTES_MAX = 1024 * 1024 + 12
"""Of Kafka's topics, unless their `max.message.bytes` differs."""
RETENTION_MS = 7 * 86_400_000


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
    """The values of records by partition and offset; retention has deleted what is below `firsts`."""

    values: dict[Partition, Values] = field(default_factory=dict)
    firsts: dict[Partition, int] = field(default_factory=dict)
    is_compacted: bool = False
    epochs: Mapping[Partition, Mapping[int, int]] = field(default_factory=dict)
    """Where each epoch of a partition's leaders ends, in their order; without any the log keeps none."""
    ends: dict[Partition, int] = field(default_factory=dict)
    """Where partitions end whose last offsets have no record."""
    settings: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings of topics that differ from Kafka's defaults."""
    start: StartAt | Mapping[str, Mapping[int, int]] = "earliest"
    topics: tuple[str, ...] = ()
    """Without any, all topics of the log."""
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
        """Delete the records below an offset, as retention does."""
        self.firsts[partition] = first

    def recreate(self, topic: str, topic_id: str) -> None:
        """Delete a topic and create it again, empty and with as many partitions."""
        for number in self.delete(topic):
            self.values[Partition(topic, topic_id, number)] = {}

    def delete(self, topic: str) -> list[int]:
        """Delete a topic; returns the numbers of its partitions."""
        partitions = [partition for partition in self.values if partition.topic == topic]
        for partition in partitions:
            del self.values[partition]
            for offsets in (self.firsts, self.ends, self.positions_shown, *self.groups.values()):
                offsets.pop(partition, None)
        self.settings.pop(topic, None)
        return [partition.number for partition in partitions]

    # what a log answers

    def partitions(self) -> tuple[Partition, ...]:
        names = {partition.topic for partition in self.values}
        for topic in self.topics:
            if topic not in names:
                raise UserError(f"there is no topic {topic}", hint=f"the log has {', '.join(sorted(names)) or 'none'}")
        return tuple(sorted(partition for partition in self.values if self._sees(partition.topic)))

    def _sees(self, topic: str) -> bool:
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return not self.topics or topic in self.topics

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        ids = {partition.topic: partition.topic_id for partition in self.values}
        return {topic: ids[topic] for topic in topics if topic in ids}

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        bounds = {}
        for partition in partitions:
            if partition not in self.values:
                raise TransientError(f"partition {partition} was deleted")
            first = self._first(partition)
            bounds[partition] = Bounds(first, max(first, self._end(partition)))
        return bounds

    def start_offsets(
        self, partitions: Iterable[Partition], bounds: Mapping[Partition, Bounds]
    ) -> Mapping[Partition, int]:
        return {partition: start_offset(self.start, partition, bounds[partition]) for partition in partitions}

    def compacted(self, topic: str) -> bool | None:
        return self.is_compacted

    def retention_seconds(self, topic: str) -> float | None:
        kept_ms = int(self.settings.get(topic, {}).get("retention.ms", RETENTION_MS))
        return kept_ms / 1000 if kept_ms >= 0 else None

    def record_bytes_max(self, topic: str) -> int:
        return int(self.settings.get(topic, {}).get("max.message.bytes", RECORD_BYTES_MAX))

    def leader_epochs(self, partitions: Iterable[Partition]) -> Mapping[Partition, int | None]:
        return {partition: max(self.epochs.get(partition, ()), default=None) for partition in partitions}

    def lost_tails(self, marks: Mapping[Partition, Iterable[EpochMark]]) -> Sequence[LostTail]:
        tails = [
            LostTail(partition, mark, self.epochs.get(partition, {}).get(mark.epoch))
            for partition in marks
            for mark in marks[partition]
        ]
        return [tail for tail in tails if tail.end is None or tail.end < tail.mark.end]

    def source(self, slices: Sequence[Slice], tasks_min: int, batch_bytes: int) -> MemorySource:
        pieces: list[Piece] = []
        values: dict[tuple[str, int], Values] = {}
        marks: dict[tuple[str, int], EpochMark] = {}
        for slice_ in slices:
            partition, place = slice_.partition, (slice_.partition.topic, slice_.partition.number)
            if slice_.read_from < min(self._first(partition), slice_.end):
                raise SliceShrankError(f"offset {slice_.read_from} of {partition} is no longer in the log")
            pieces.append(Piece(*place, slice_.read_from, slice_.end))
            values[place] = self.values[partition]
            if (epoch := self._epoch_at(partition, slice_.end)) is not None:
                marks[place] = EpochMark(slice_.end, epoch)
        return MemorySource(tuple(pieces), values, marks)

    def records(self, partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        source = self.source([Slice(partition, start, end, start)], 1, 0)
        return source.read(source.pieces[0])

    def offsets(self, partition: Partition, start: int, end: int, progress: OffsetProgress) -> Offsets:
        progress(end - start)
        first = max(start, self._first(partition))
        return np.array([offset for offset in sorted(self.values[partition]) if first <= offset < end], np.int64)

    def record_times(self, offsets: Mapping[Partition, int], seconds_max: float) -> Mapping[Partition, float]:
        times: dict[Partition, float] = {}
        for partition, first in offsets.items():
            records = (record for offset, record in sorted(self.values[partition].items()) if offset >= first)
            if (record := next((record for record in records if isinstance(record, MemoryRecord)), None)) is not None:
                times[partition] = record.at
        return times

    def offset_at(self, partition: Partition, at: float, bounds: Bounds) -> int:
        times = {offset: self.record_times({partition: offset}, 1.0)[partition] for offset in self.values[partition]}
        return min((offset for offset, made_at in times.items() if made_at >= at), default=bounds.end)

    def show(self, positions: Mapping[Partition, int]) -> Mapping[Partition, str]:
        before = {partition: self.positions_shown.get(partition, -1) for partition in positions}
        refused = {key: f"already at {before[key]}" for key, to in positions.items() if before[key] > to}
        self.positions_shown |= {partition: to for partition, to in positions.items() if to > before[partition]}
        return refused

    def shown(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        return {
            partition: self.positions_shown[partition] for partition in partitions if partition in self.positions_shown
        }

    def close(self) -> None:
        """There is nothing to close."""

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
        offsets = [offset for offset in sorted(values) if piece.start <= offset < piece.end]
        for first in range(0, len(offsets), BATCH_RECORDS):
            rows = [_row(piece, offset, values[offset]) for offset in offsets[first : first + BATCH_RECORDS]]
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
