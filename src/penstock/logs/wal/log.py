"""A WAL as a log: its section of a job file, the topics of one job, and how Spark's tasks read them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import pyarrow as pa

from penstock.errors import TransientError, UserError, did_you_mean
from penstock.job.faults import InvalidValueError, shown
from penstock.job.kafka_types import HEADERS_TYPE, RECORD_SCHEMA
from penstock.job.reader import SpecReader
from penstock.job.spec import JobSpec, LogSpec, Secret
from penstock.job.topics import complete_topics
from penstock.job.values import Parsed, text
from penstock.logs.batches import RECORDS_BATCH_BYTES, ROWS_MAX
from penstock.logs.log import Bounds, Log, OffsetProgress, Offsets, Partition, Piece, Slice, pieces_of, start_offset
from penstock.logs.wal.client import WalClient, is_address
from penstock.logs.wal.records import NAME, RECORD_BYTES_MAX
from penstock.serving import is_token


def _url(value: object) -> str:
    if not is_address(text(value)):
        raise InvalidValueError("expected http://HOST:PORT", "as in http://127.0.0.1:7070")
    return text(value)


def _token(value: object) -> Secret:
    if not is_token(text(value)):
        raise InvalidValueError("invalid token: it has blanks, or characters beyond ASCII")
    return Secret(text(value))


@dataclass(frozen=True, slots=True)
class WalLogSpec(LogSpec):
    """Which topics of which server. The server trims nothing that a registered `group` still needs.

    A fingerprint of the table completes the group, so that two tables never trim what only one of them has read.
    """

    kind = "wal"
    url: Annotated[str, Parsed(_url)]
    token: Annotated[str, Parsed(_token)] = ""
    """Authenticates the job, if the server requires a token."""


def complete_wal(log: WalLogSpec, job: JobSpec, reader: SpecReader) -> WalLogSpec:
    if log.group and not NAME.fullmatch(log.group):
        reader.note(("log", "wal", "group"), f"invalid job name {shown(log.group)}", "letters, digits, . _ -")
    table = hashlib.sha256((job.table.path or "").encode()).hexdigest()[:16]
    return replace(complete_topics(log, reader), group=f"{log.group or job.name}.{table}")


@dataclass(frozen=True, slots=True)
class WalSource:
    """Turns piece numbers, as Spark deals them out to tasks, into Arrow batches of about `batch_bytes`."""

    url: str
    pieces: tuple[Piece, ...]
    batch_bytes: int
    token: str = field(default="", repr=False)

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with WalClient(self.url, self.token) as client:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from read_piece(client, self.pieces[number], self.batch_bytes)


def read_piece(client: WalClient, piece: Piece, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The records of a piece, in offset order; raises `SliceShrankError` if the log has lost some of them."""
    rows: list[tuple[bytes, int]] = []
    first, size = piece.start, 0
    for append, values in client.read(piece.topic, piece.partition, piece.start, piece.end):
        for value in values[max(0, piece.start - append.offset) : piece.end - append.offset]:
            rows.append((value, append.at_ms))
            size += len(value)
            if size >= batch_bytes or len(rows) >= ROWS_MAX:
                yield _batch(piece, first, rows)
                first, size, rows = first + len(rows), 0, []
    if rows:
        yield _batch(piece, first, rows)


def _batch(piece: Piece, first: int, rows: Sequence[tuple[bytes, int]]) -> pa.RecordBatch:
    """Records as Arrow, without keys and headers; a WAL has no holes, so the first offset determines the others."""
    times_ms = np.array([at_ms for _, at_ms in rows], np.int64)
    arrays = [
        pa.repeat(piece.topic, len(rows)),
        pa.repeat(pa.scalar(piece.partition, pa.int32()), len(rows)),
        pa.array(np.arange(first, first + len(rows))),
        pa.array(times_ms * 1_000).cast(RECORD_SCHEMA.field("timestamp").type),
        pa.nulls(len(rows), pa.binary()),
        pa.array([value for value, _ in rows], pa.binary()),
        pa.nulls(len(rows), HEADERS_TYPE),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


class WalLog(Log):
    """The topics of one job. The job is registered before it reads: nothing that it needs is trimmed from then on.

    It has no epochs, no holes and no lost tails: a durable record that cannot be read is an error.
    """

    def __init__(self, spec: WalLogSpec) -> None:
        self.spec = spec
        self._client = WalClient(spec.url, spec.token)

    def partitions(self) -> tuple[Partition, ...]:
        partitions = sorted(state.partition for state in self._client.partitions())
        names = {partition.topic for partition in partitions}
        for name in self.spec.topics:
            if name not in names:
                hint = did_you_mean(name, names) or f"the log has {', '.join(sorted(names)[:20]) or 'none'}"
                raise UserError(f"there is no topic {name} in the WAL at {self.spec.url}", hint=hint)
        chosen = re.compile(self.spec.topic_pattern or "|".join(map(re.escape, self.spec.topics)))
        return tuple(partition for partition in partitions if chosen.fullmatch(partition.topic))

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        ids = {state.partition.topic: state.partition.topic_id for state in self._client.partitions()}
        return {topic: ids[topic] for topic in topics if topic in ids}

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        bounds = {state.partition: Bounds(state.first, state.end) for state in self._client.partitions()}
        try:
            return {partition: bounds[partition] for partition in partitions}
        except KeyError as error:
            raise TransientError(f"partition {error.args[0]} does not exist any more") from None

    def start_offsets(
        self, partitions: Iterable[Partition], bounds: Mapping[Partition, Bounds]
    ) -> Mapping[Partition, int]:
        """Where the job begins; the server keeps everything from there on for it."""
        starts = {partition: start_offset(self.spec.start, partition, bounds[partition]) for partition in partitions}
        self._client.report(self.spec.group, starts, reset=True)
        return starts

    def record_bytes_max(self, topic: str) -> int:
        return RECORD_BYTES_MAX

    def source(self, slices: Sequence[Slice], tasks_min: int, batch_bytes: int) -> WalSource:
        """What lies below the slices is committed: this registers a job that the server has forgotten."""
        self.show({slice_.partition: slice_.start for slice_ in slices})
        return WalSource(self.spec.url, pieces_of(slices, tasks_min), batch_bytes, self.spec.token)

    def records(self, partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return read_piece(self._client, Piece(partition.topic, partition.number, start, end), RECORDS_BATCH_BYTES)

    def offsets(self, partition: Partition, start: int, end: int, progress: OffsetProgress) -> Offsets:
        """Reads the records, and so checks each of them."""
        first = max(start, min(end, self.bounds([partition])[partition].first))
        progress(first - start)
        for append, _ in self._client.read(partition.topic, partition.number, first, end):
            progress(min(end, append.end) - max(first, append.offset))
        return np.arange(first, end, dtype=np.int64)

    def record_times(self, offsets: Mapping[Partition, int], seconds_max: float) -> Mapping[Partition, float]:
        times: dict[Partition, float] = {}
        for partition, bounds in self.bounds(offsets).items():
            at = max(offsets[partition], bounds.first)
            if at < bounds.end:
                append, _ = next(self._client.read(partition.topic, partition.number, at, at + 1))
                times[partition] = append.at_ms / 1000
        return times

    def show(self, positions: Mapping[Partition, int]) -> Mapping[Partition, str]:
        return self._client.report(self.spec.group, positions)

    def shown(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        positions = {state.partition: state.positions.get(self.spec.group) for state in self._client.partitions()}
        return {partition: at for partition in partitions if (at := positions.get(partition)) is not None}

    def close(self) -> None:
        self._client.close()
