"""Kafka as a log: the topics of one job with everything that jobs and `verify` ask of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import Consumer
from confluent_kafka.admin import OffsetSpec

from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.admin import CALL_SECONDS_MAX
from penstock.logs.kafka.epochs import lost_tails
from penstock.logs.kafka.first_events import record_times
from penstock.logs.kafka.mirror import mirror, mirrored
from penstock.logs.kafka.offsets import open_consumer, record_offsets
from penstock.logs.kafka.reader import PieceReader
from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import Bounds, EpochMark, LostTail, Offsets, Partition, ShowReport, Slice, Told

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

    def expiring(self, bounds: Mapping[Partition, Bounds], percent: float, now: float) -> Mapping[Partition, int]:
        found: dict[Partition, int] = {}
        for topic in sorted({each.topic for each in bounds}):
            mine = {each: held for each, held in bounds.items() if each.topic == topic}
            settings = self.settings(topic)
            retention = Retention() if settings is None else Retention.of(settings)
            if retention.seconds is not None:
                at = max(0.0, now - retention.seconds * percent / 100)
                since = self._offsets(tuple(mine), OffsetSpec.for_timestamp(int(at * 1000)))
                # Kafka answers a negative offset where all records are older.
                found |= {each: offset if offset >= 0 else mine[each].end for each, offset in since.items()}
            for each, held in mine.items():
                # As much is used up as there are offsets after it, once the log has begun to lose its oldest ones.
                if retention.by_size and held.first > 0:
                    used_up = held.end - int((held.end - held.first) * percent / 100)
                    found[each] = max(used_up, found.get(each, 0))
        return found

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

    def trim(self, positions: Mapping[Partition, int]) -> None:
        """Kafka keeps records as its topics say."""

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        super().close()


@dataclass(frozen=True, slots=True)
class Retention:
    """When a topic lets go of records: after a time, beyond a size, or never."""

    seconds: float | None = None
    by_size: bool = False

    @staticmethod
    def of(settings: Mapping[str, str]) -> Retention:
        """What the settings of a topic say; one that is only compacted loses no key's last record to time or size."""
        if "delete" not in settings["cleanup.policy"]:
            return Retention()
        keeps_ms = int(settings["retention.ms"])
        return Retention(keeps_ms / 1000 if keeps_ms >= 0 else None, int(settings["retention.bytes"]) >= 0)
