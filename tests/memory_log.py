"""A log in memory, as `verify` reads one: the twin of a Kafka topic that needs no broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from penstock.logs.kafka.epochs import LostTail
from penstock.logs.kafka.reader import SCHEMA
from penstock.logs.log import Bounds, EpochMark, Partition, SliceShrankError
from penstock.verify.log_port import Told

BATCH_RECORDS = 4


@dataclass(slots=True)
class MemoryLog:
    """The values of records by partition; what is below `firsts` retention has taken."""

    values: Mapping[Partition, Mapping[int, bytes | None]]
    firsts: Mapping[Partition, int] = field(default_factory=dict)
    is_compacted: bool = False
    epochs: Mapping[Partition, Mapping[int, int]] = field(default_factory=dict)
    """Where each epoch of a partition's leaders ends, in their order; without any the log keeps none."""

    def partitions(self) -> tuple[Partition, ...]:
        return tuple(sorted(self.values))

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        ids = {each.topic: each.topic_id for each in self.values}
        return {topic: ids[topic] for topic in topics if topic in ids}

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        return {each: Bounds(self._first(each), max(self.values[each], default=-1) + 1) for each in partitions}

    def leader_epochs(self, partitions: Iterable[Partition]) -> Mapping[Partition, int | None]:
        return {each: max(self.epochs.get(each, ()), default=None) for each in partitions}

    def lost_tails(self, marks: Mapping[Partition, EpochMark]) -> Sequence[LostTail]:
        ends = {each: self.epochs[each].get(mark.epoch) for each, mark in marks.items()}
        return [
            LostTail(each, mark, end) for each, mark in marks.items() if (end := ends[each]) is None or end < mark.end
        ]

    def compacted(self, topic: str) -> bool | None:
        return self.is_compacted

    def offsets(self, partition: Partition, start: int, end: int, told: Told) -> pl.Series:
        told(end - start)
        return pl.Series(self._held(partition, start, end), dtype=pl.Int64)

    def records(self, partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        if start < self._first(partition):
            raise SliceShrankError(f"offset {start} of {partition} is no longer in the log")
        held = self._held(partition, start, end)
        for first in range(0, len(held), BATCH_RECORDS):
            rows = [
                {
                    "topic": partition.topic,
                    "partition": partition.number,
                    "offset": offset,
                    "value": self.values[partition][offset],
                }
                for offset in held[first : first + BATCH_RECORDS]
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)

    def close(self) -> None:
        pass

    def _first(self, partition: Partition) -> int:
        return self.firsts.get(partition, 0)

    def _held(self, partition: Partition, start: int, end: int) -> list[int]:
        first = max(start, self._first(partition))
        return [offset for offset in sorted(self.values[partition]) if first <= offset < end]
