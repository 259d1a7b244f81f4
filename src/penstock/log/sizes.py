"""How large records are: a look at a few of them, so that Arrow batches can be cut by rows and still hold few bytes.

Spark can bound the bytes of an Arrow batch itself, but then it measures the batch after every row: several times the
cost of the read (measured: 1.4 against 5.0 CPU seconds for 100,000 records with headers).
"""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.job.spec import KafkaLogSpec
from penstock.log.offsets import Slice
from penstock.log.security import librdkafka_settings

SAMPLE_RECORDS_MAX = 300
SAMPLE_SECONDS_MAX = 2.0
ROWS_MAX = 100_000
_SKEW = 16
"""A batch whose records are all as large as the largest one seen may be so many times too large, no more."""


@dataclass(frozen=True, slots=True)
class RecordSizes:
    mean_bytes: float
    largest_bytes: int

    def rows_for(self, batch_bytes: int) -> int:
        """The rows of an Arrow batch that shall hold about `batch_bytes`."""
        by_mean = batch_bytes / max(self.mean_bytes, 1.0)
        by_largest = _SKEW * batch_bytes / max(self.largest_bytes, 1)
        return max(1, min(ROWS_MAX, int(by_mean), int(by_largest)))


def sample_sizes(spec: KafkaLogSpec, slices: list[Slice]) -> RecordSizes | None:
    """Look at the first records of the largest slice; None if there is none to be seen in time."""
    piece = max(slices, key=lambda each: each.end - each.read_from)
    wanted = min(SAMPLE_RECORDS_MAX, piece.end - piece.read_from)
    if not wanted:
        return None
    consumer = Consumer(
        {
            **librdkafka_settings(spec),
            "group.id": spec.group or "penstock",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": "10",
        }
    )
    try:
        consumer.assign([TopicPartition(piece.partition.topic, piece.partition.number, piece.read_from)])
        messages = [each for each in consumer.consume(wanted, SAMPLE_SECONDS_MAX) if each.error() is None]
    except KafkaException:
        # The read itself tells what is wrong.
        return None
    finally:
        consumer.close()
    sizes = [len(each.value() or b"") + len(each.key() or b"") for each in messages]
    return RecordSizes(sum(sizes) / len(sizes), max(sizes)) if sizes else None
