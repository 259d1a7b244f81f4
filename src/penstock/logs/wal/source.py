"""Reading slices of a WAL inside Spark's tasks, through its server: whole appends into Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.job.kafka_types import HEADERS_TYPE, RECORD_SCHEMA
from penstock.logs.batches import ROWS_MAX
from penstock.logs.log import Piece
from penstock.logs.wal.client import WalClient
from penstock.logs.wal.store.frames import WalRecord

READ_BYTES = 4 * 1024 * 1024
"""Asked for at once."""
_RECORD_BYTES = 64
"""What a record costs beside its bytes, about."""


@dataclass(frozen=True, slots=True)
class WalSource:
    """Turns piece numbers, as Spark deals them out to tasks, into Arrow batches of about `batch_bytes`."""

    url: str
    pieces: tuple[Piece, ...]
    batch_bytes: int
    token: str = field(default="", repr=False)

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with WalClient(self.url, token=self.token) as client:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from read_piece(client, self.pieces[number], self.batch_bytes)


def read_piece(client: WalClient, piece: Piece, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The records of a piece, in offset order; raises `SliceShrankError` if the log has lost some of them."""
    rows = _Rows(piece, piece.start)
    for header, records in client.frames(piece.topic, piece.partition, piece.start, piece.end, READ_BYTES):
        for record in records[max(0, piece.start - header.offset) : piece.end - header.offset]:
            rows.add(record, header.at_ms)
            if rows.held_bytes >= batch_bytes or len(rows.records) >= ROWS_MAX:
                yield rows.taken()
    if rows.records:
        yield rows.taken()


@dataclass(slots=True)
class _Rows:
    """Records that wait to become a batch; a WAL has no holes, so the first offset tells the others."""

    piece: Piece
    first: int
    records: list[WalRecord] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    held_bytes: int = 0

    def add(self, record: WalRecord, at_ms: int) -> None:
        self.records.append(record)
        self.times_ms.append(at_ms)
        self.held_bytes += len(record.value or b"") + len(record.key or b"") + _RECORD_BYTES

    def taken(self) -> pa.RecordBatch:
        """The batch of what waits, which then waits no more."""
        count = len(self.records)
        arrays = [
            pa.repeat(self.piece.topic, count),
            pa.repeat(pa.scalar(self.piece.partition, pa.int32()), count),
            pa.array(np.arange(self.first, self.first + count)),
            pa.array(np.array(self.times_ms, np.int64) * 1_000).cast(RECORD_SCHEMA.field("timestamp").type),
            pa.array([each.key for each in self.records], pa.binary()),
            pa.array([each.value for each in self.records], pa.binary()),
            _headers(self.records),
        ]
        self.first += count
        self.records, self.times_ms, self.held_bytes = [], [], 0
        return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _headers(records: Sequence[WalRecord]) -> pa.Array:
    if not any(each.headers for each in records):
        return pa.nulls(len(records), HEADERS_TYPE)
    rows = [[{"key": key, "value": value} for key, value in each.headers] or None for each in records]
    return pa.array(rows, HEADERS_TYPE)
