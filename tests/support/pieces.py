"""Pieces of a real topic, read as tasks do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from penstock.job.spec import KafkaLogSpec
from penstock.logs.batches import mark_of
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.reader import PieceReader
from penstock.logs.log import Partition, Slice

BATCH_BYTES = 16 * 1024 * 1024


def partition_of(bootstrap: str, topic: str, number: int = 0) -> Partition:
    with closing(KafkaLog(KafkaLogSpec(bootstrap, topics=(topic,)))) as log:
        return log.partitions()[number]


def reader(bootstrap: str, topic: str, end: int) -> PieceReader:
    whole = Slice(partition_of(bootstrap, topic), 0, end, 0)
    return PieceReader.of(KafkaLogSpec(bootstrap, topics=(topic,)), [whole], 1, BATCH_BYTES)


def read(reader: PieceReader) -> Iterator[pa.RecordBatch]:
    """The batches of records, without the marks after each piece."""
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(reader.pieces)))})
    return (batch for batch in reader([numbers]) if mark_of(batch) is None)
