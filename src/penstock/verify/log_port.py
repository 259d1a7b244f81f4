"""What `verify` asks of a log: its bounds, the offsets of its records, and the records themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import polars as pl
import pyarrow as pa
from confluent_kafka import Consumer

from penstock.job.spec import JobSpec
from penstock.logs.kafka.epochs import LostTail, lost_tails
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.reader import PieceReader
from penstock.logs.log import Bounds, EpochMark, Partition, Slice
from penstock.verify.offsets.log import open_consumer, record_offsets

LOST_TAIL_ASKED_AGAIN = 2
LOST_TAIL_PAUSE_SECONDS = 0.5

Told = Callable[[int], None]
"""Hears how many more offsets of a range are done."""


class LogAnswers(Protocol):
    """What a log says of itself."""

    def partitions(self) -> tuple[Partition, ...]: ...

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]: ...

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]: ...


class ReadableLog(LogAnswers, Protocol):
    """A log whose records can be read again."""

    def leader_epochs(self, partitions: Iterable[Partition]) -> Mapping[Partition, int | None]:
        """The epochs of the partitions' present leaders; None where the log keeps none."""

    def lost_tails(self, marks: Mapping[Partition, EpochMark]) -> Sequence[LostTail]:
        """The marks whose records the log has lost otherwise than by retention or compaction."""

    def compacted(self, topic: str) -> bool | None:
        """Whether compaction may leave holes in the topic; None if that is not known."""

    def offsets(self, partition: Partition, start: int, end: int, told: Told) -> pl.Series:
        """The offsets of all records in `[start, end)`, ascending; what retention takes meanwhile may be absent."""

    def records(self, partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The records of `[start, end)` as tasks get them; raises `SliceShrankError` if the log lost some of them."""

    def close(self) -> None: ...


OpenLog = Callable[[JobSpec], ReadableLog]


class KafkaRecords:
    """The topics of a job; joins no group and commits nothing."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._log = KafkaLog(job.log)
        self._consumer: Consumer | None = None

    def partitions(self) -> tuple[Partition, ...]:
        return self._log.partitions()

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        return self._log.topic_ids(topics)

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        return self._log.bounds(partitions)

    def leader_epochs(self, partitions: Iterable[Partition]) -> Mapping[Partition, int | None]:
        return self._log.leader_epochs(partitions)

    def lost_tails(self, marks: Mapping[Partition, EpochMark]) -> Sequence[LostTail]:
        lost = lost_tails(self._log, {partition: [mark] for partition, mark in marks.items()})
        for _ in range(LOST_TAIL_ASKED_AGAIN):
            if not lost:
                break
            # A new leader may tell an older end for a moment, and an old one not know a newer epoch.
            time.sleep(LOST_TAIL_PAUSE_SECONDS)
            lost = lost_tails(self._log, {each.partition: [each.mark] for each in lost})
        return lost

    def compacted(self, topic: str) -> bool | None:
        return self._log.compacted(topic)

    def offsets(self, partition: Partition, start: int, end: int, told: Told) -> pl.Series:
        if self._consumer is None:
            self._consumer = open_consumer(self._job.log)
        return record_offsets(self._consumer, self._job.log.bootstrap, partition, start, end, told)

    def records(self, partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        piece = Slice(partition, start, end, start)
        reader = PieceReader.of(self._job.log, [piece], 1, self._job.limits.arrow_batch_bytes_max)
        numbers = pa.RecordBatch.from_arrays([pa.array(range(len(reader.pieces)), pa.int64())], names=["number"])
        # What comes without rows are marks for a commit.
        return (batch for batch in reader([numbers]) if batch.num_rows)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._log.close()
