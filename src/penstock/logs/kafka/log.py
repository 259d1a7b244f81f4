"""Kafka as a log: the topics of one job with everything that jobs and `verify` ask of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from confluent_kafka import Consumer

from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.admin import CALL_SECONDS_MAX
from penstock.logs.kafka.mirror import mirror, mirrored
from penstock.logs.kafka.probes import lost_tails, open_consumer, record_offsets, record_times
from penstock.logs.kafka.reader import PieceReader
from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import EpochMark, LostTail, Offsets, Partition, ShowReport, Slice, Told

RECORDS_BATCH_BYTES = 16 * 1024 * 1024
LOST_TAIL_ASKED_AGAIN = 2
LOST_TAIL_PAUSE_SECONDS = 0.5


class KafkaLog(KafkaTopics):
    """The topics of one job. Joins no group; only `show` commits offsets to one."""

    def __init__(self, spec: KafkaLogSpec, call_seconds_max: float = CALL_SECONDS_MAX) -> None:
        super().__init__(spec, call_seconds_max)
        self._consumer: Consumer | None = None

    def lost_tails(self, marks: Mapping[Partition, Iterable[EpochMark]]) -> Sequence[LostTail]:
        lost = lost_tails(self, marks)
        for _ in range(LOST_TAIL_ASKED_AGAIN):
            if not lost:
                break
            # A new leader may tell an older end for a moment, and an old one not know a newer epoch.
            time.sleep(LOST_TAIL_PAUSE_SECONDS)
            lost = lost_tails(self, {each.partition: [each.mark] for each in lost})
        return lost

    def source(self, slices: Sequence[Slice], tasks_min: int, batch_bytes: int) -> PieceReader:
        return PieceReader.of(self.spec, slices, tasks_min, batch_bytes)

    def records(self, partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        reader = self.source([Slice(partition, start, end, start)], 1, RECORDS_BATCH_BYTES)
        numbers = pa.RecordBatch.from_arrays([pa.array(range(len(reader.pieces)), pa.int64())], names=["number"])
        # What comes without rows are marks for a commit.
        return (batch for batch in reader([numbers]) if batch.num_rows)

    def offsets(self, partition: Partition, start: int, end: int, told: Told) -> Offsets:
        if self._consumer is None:
            self._consumer = open_consumer(self.spec)
        return record_offsets(self._consumer, self.spec.bootstrap, partition, start, end, told)

    def record_times(self, offsets: Mapping[Partition, int], seconds_max: float) -> Mapping[Partition, float]:
        return record_times(self.spec, offsets, seconds_max)

    def show(self, positions: Mapping[Partition, int]) -> ShowReport:
        return mirror(self, self.spec.group, positions)

    def shown(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        return mirrored(self, self.spec.group, partitions) if self.spec.group else {}

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        super().close()
