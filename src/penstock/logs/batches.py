"""Arrow batches of an even size: small neighbours as one, none larger than a limit unless one record is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa

from penstock.logs.log import EpochMark

ROWS_MAX = 100_000
RECORDS_BATCH_BYTES = 16 * 1024 * 1024
"""Of the batches that `Log.records` gives."""
RECORD_BYTES_MAX = 1024 * 1024
"""Kafka's own limit, for topics whose configuration may not be read."""
SPARK_ROWS_MIN, SPARK_ROWS_MAX = 16, 10_000
"""Bounds of the rows in a Spark batch: smaller batches would cost more than they save."""
_SKEW = 16
"""How many times too large a batch may be whose records are all as large as the topic allows."""
_MARK = b"penstock.epoch_mark"


def mark_batch(schema: pa.Schema, topic: str, partition: int, mark: EpochMark) -> pa.RecordBatch:
    """A batch without rows that follows the records of a piece and carries the mark of the last one."""
    text = json.dumps([topic, partition, mark.end, mark.epoch])
    return pa.RecordBatch.from_pylist([], schema.with_metadata({_MARK: text}))


def mark_of(batch: pa.RecordBatch) -> tuple[tuple[str, int], EpochMark] | None:
    """The topic and partition of a mark, and the mark; None for a batch of records."""
    metadata = batch.schema.metadata
    if batch.num_rows or metadata is None or _MARK not in metadata:
        return None
    topic, partition, end, epoch = json.loads(metadata[_MARK])
    return (topic, partition), EpochMark(end, epoch)


def gathered(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches of at most so many bytes, or of one row."""
    held: list[pa.RecordBatch] = []
    held_bytes = held_rows = 0
    for batch in batches:
        for part in _parts(batch, bytes_max):
            part_bytes = part.nbytes
            if held and (held_bytes + part_bytes > bytes_max or held_rows + part.num_rows > ROWS_MAX):
                yield as_one(held)
                held, held_bytes, held_rows = [], 0, 0
            held.append(part)
            held_bytes += part_bytes
            held_rows += part.num_rows
    if held:
        yield as_one(held)


def _parts(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch, halved until each part is small enough; parts share its memory."""
    if batch.num_rows < 2 or batch.nbytes <= bytes_max:
        if batch.num_rows:
            yield batch
        return
    middle = batch.num_rows // 2
    yield from _parts(batch.slice(0, middle), bytes_max)
    yield from _parts(batch.slice(middle), bytes_max)


def rows_for(batch_bytes: int, record_bytes_max: int) -> int:
    """How many rows Spark may put into an Arrow batch that shall hold about `batch_bytes`, whatever the records are.

    Spark can bound the bytes itself, but then it measures the batch after every row (measured: 44 against 1.8 CPU
    seconds for a million rows of 22 columns). Each batch costs about 80 microseconds: 2.0 seconds in batches of 256
    rows, as for Kafka's default limit of 1 MiB.
    """
    return max(SPARK_ROWS_MIN, min(SPARK_ROWS_MAX, _SKEW * batch_bytes // max(1, record_bytes_max)))


def as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
