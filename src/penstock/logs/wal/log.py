"""A WAL as a log: the topics of one job, and how Spark's tasks read them through the server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.errors import TransientError, UserError, did_you_mean
from penstock.job.kafka_types import HEADERS_TYPE, RECORD_SCHEMA
from penstock.logs.batches import ROWS_MAX
from penstock.logs.log import (
    Bounds,
    EpochMark,
    LostTail,
    Offsets,
    Partition,
    Piece,
    ShowReport,
    Slice,
    Told,
    pieces_of,
    start_offset,
)
from penstock.logs.wal.client import Patience, WalClient
from penstock.logs.wal.records import Place, WalRecord
from penstock.logs.wal.section import WalLogSpec

RECORDS_BATCH_BYTES = 16 * 1024 * 1024
READ_BYTES = 4 * 1024 * 1024
"""Of one request."""
RECORD_BYTES = 64
"""What a record costs besides its bytes, about."""


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
    rows: list[tuple[WalRecord, int]] = []
    first, size = piece.start, 0
    for append, records in client.frames(piece.topic, piece.partition, piece.start, piece.end, READ_BYTES):
        for record in records[max(0, piece.start - append.offset) : piece.end - append.offset]:
            rows.append((record, append.at_ms))
            size += len(record.value or b"") + len(record.key or b"") + RECORD_BYTES
            if size >= batch_bytes or len(rows) >= ROWS_MAX:
                yield _batch(piece, first, rows)
                first, size, rows = first + len(rows), 0, []
    if rows:
        yield _batch(piece, first, rows)


def _batch(piece: Piece, first: int, rows: Sequence[tuple[WalRecord, int]]) -> pa.RecordBatch:
    """Records as Arrow; a WAL has no holes, so the first offset determines the others."""
    records = [record for record, _ in rows]
    times_ms = np.array([at_ms for _, at_ms in rows], np.int64)
    if any(record.headers for record in records):
        headers = [[{"key": key, "value": value} for key, value in record.headers] or None for record in records]
        header_column = pa.array(headers, HEADERS_TYPE)
    else:
        header_column = pa.nulls(len(rows), HEADERS_TYPE)
    arrays = [
        pa.repeat(piece.topic, len(rows)),
        pa.repeat(pa.scalar(piece.partition, pa.int32()), len(rows)),
        pa.array(np.arange(first, first + len(rows))),
        pa.array(times_ms * 1_000).cast(RECORD_SCHEMA.field("timestamp").type),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        header_column,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


class WalLog:
    """The topics of one job. The job is registered before it reads: nothing that it needs is trimmed from then on."""

    def __init__(self, spec: WalLogSpec, patience: Patience | None = None) -> None:
        self.spec = spec
        self._client = WalClient(spec.url, patience, spec.token)
        self._registered: set[Partition] = set()

    def partitions(self) -> tuple[Partition, ...]:
        topics = self._client.topics().topics
        names = {topic.name for topic in topics}
        for name in self.spec.topics:
            if name not in names:
                hint = did_you_mean(name, names) or f"the log has {', '.join(sorted(names)[:20]) or 'none'}"
                raise UserError(f"there is no topic {name} in the WAL at {self.spec.url}", hint=hint)
        pattern = self.spec.topic_pattern
        if pattern is None:
            names &= set(self.spec.topics)
        else:
            names = {name for name in names if re.fullmatch(pattern, name)}
        return tuple(sorted(partition for partition in self._bounds() if partition.topic in names))

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        names = set(topics)
        return {topic.name: topic.id for topic in self._client.topics().topics if topic.name in names}

    def _bounds(self) -> dict[Partition, Bounds]:
        return {
            Partition(topic.name, topic.id, view.number): Bounds(view.first, view.end)
            for topic in self._client.topics().topics
            for view in topic.partitions
        }

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        bounds = self._bounds()
        chosen = tuple(partitions)
        for partition in chosen:
            if partition not in bounds:
                raise TransientError(f"partition {partition} does not exist any more")
        return {partition: bounds[partition] for partition in chosen}

    def start_offsets(
        self, partitions: Iterable[Partition], bounds: Mapping[Partition, Bounds]
    ) -> Mapping[Partition, int]:
        """Where the job begins; the server keeps everything from there on for it."""
        starts = {partition: start_offset(self.spec.start, partition, bounds[partition]) for partition in partitions}
        if starts:
            self._client.report(self.spec.group, self.spec.owner, _places(starts), "reset")
            self._registered |= starts.keys()
        return starts

    def compacted(self, topic: str) -> bool | None:
        return False

    def record_bytes_max(self, topic: str) -> int:
        return self._client.topics().record_bytes_max

    def leader_epochs(self, partitions: Iterable[Partition]) -> Mapping[Partition, int | None]:
        return dict.fromkeys(partitions)

    def lost_tails(self, marks: Mapping[Partition, Iterable[EpochMark]]) -> Sequence[LostTail]:
        """A durable record is never lost: one that is makes the server refuse to start."""
        return []

    def source(self, slices: Sequence[Slice], tasks_min: int, batch_bytes: int) -> WalSource:
        new = {slice_.partition: slice_.start for slice_ in slices if slice_.partition not in self._registered}
        if new:
            self._client.report(self.spec.group, self.spec.owner, _places(new), "register")
            self._registered |= new.keys()
        return WalSource(self.spec.url, pieces_of(slices, tasks_min), batch_bytes, self.spec.token)

    def records(self, partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return read_piece(self._client, Piece(partition.topic, partition.number, start, end), RECORDS_BATCH_BYTES)

    def offsets(self, partition: Partition, start: int, end: int, told: Told) -> Offsets:
        """Reads the records, and so checks each of them."""
        first = max(start, min(end, self.bounds([partition])[partition].first))
        told(first - start)
        at = first
        for append, _ in self._client.frames(partition.topic, partition.number, first, end, READ_BYTES):
            told(min(end, append.end) - at)
            at = min(end, append.end)
        return np.arange(first, end, dtype=np.int64)

    def record_times(self, offsets: Mapping[Partition, int], seconds_max: float) -> Mapping[Partition, float]:
        times: dict[Partition, float] = {}
        for partition, bounds in self.bounds(offsets).items():
            at = max(offsets[partition], bounds.first)
            if at < bounds.end:
                append, _ = next(self._client.frames(partition.topic, partition.number, at, at + 1, 0))
                times[partition] = append.at_ms / 1000
        return times

    def show(self, positions: Mapping[Partition, int]) -> ShowReport:
        moved, refused = self._client.report(self.spec.group, self.spec.owner, _places(positions))
        return ShowReport(
            {Partition(*place): offset for place, offset in moved.items()},
            {Partition(*place): reason for place, reason in refused.items()},
        )

    def shown(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        chosen = set(partitions)
        shown = {Partition(*place): offset for place, offset in self._client.positions(self.spec.group).items()}
        return {partition: offset for partition, offset in shown.items() if partition in chosen}

    def trim(self, positions: Mapping[Partition, int]) -> None:
        """What is shown is what is committed: the server trims below it by itself, as its retention says."""
        self.show(positions)

    def close(self) -> None:
        self._client.close()


def _places(positions: Mapping[Partition, int]) -> dict[Place, int]:
    return {(partition.topic, partition.topic_id, partition.number): at for partition, at in positions.items()}
