"""Reading slices inside Spark's tasks with librdkafka: straight into Arrow, no JVM in between.

Each task reads one piece, a part of a slice, exactly `[start, end)`. Offsets without a record (markers of transactions,
aborted or compacted records) are passed over; the end is reached by a record at or beyond it, or by the client's word
that the log ends there. See docs/adr/0004.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import methodcaller
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import TransientError
from penstock.job.kafka_types import HEADERS_TYPE, RECORD_SCHEMA
from penstock.job.spec import KafkaLogSpec
from penstock.logs.batches import gathered, mark_batch
from penstock.logs.kafka.faults import UNUSED_GROUP_DENIED, error_of, fault_of
from penstock.logs.kafka.security import reading_settings
from penstock.logs.kafka.statistics import next_offsets
from penstock.logs.log import EpochMark, Piece, Slice, SliceShrankError
from penstock.logs.pieces import pieces_of

MIB = 1024 * 1024
SILENCE_SECONDS_MAX = 30.0
"""So long without a record, and without a fetch of records that are passed over, is an error."""
CHUNK_RECORDS = 4_096
"""As many messages as the processor's cache holds: measured, a third less CPU than taking a whole batch at once."""
_WAIT_SECONDS = 0.1
_LOOKS_AT_PROGRESS = 6
"""How often the client says within the time of silence how far it has fetched."""
_TUNING = {
    "fetch.message.max.bytes": str(2 * MIB),
    "fetch.wait.max.ms": "50",
    "queued.max.messages.kbytes": str(8 * 1024),
    "queued.min.messages": "1000000",
    # A full queue is looked at again soon; the default of a second would leave the task waiting.
    "fetch.queue.backoff.ms": "5",
    "check.crcs": "true",
}

Headers: TypeAlias = list[tuple[str | None, bytes | None]]
UNREADABLE_HEADERS: Headers = [(None, None)]
"""A header without a key, which Kafka does not know: stands for headers that the client cannot hand over."""

_MILLIS, _MICROS = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")
_MILLIS_MAX = (2**63 - 1) // 1_000
"""The most that a column of microseconds holds, in either direction."""

_ERROR = methodcaller("error")
_TIMESTAMP = methodcaller("timestamp")
_KEY = methodcaller("key")
_VALUE = methodcaller("value")
_HEADERS = methodcaller("headers")


@dataclass(frozen=True, slots=True)
class PieceReader:
    """Turns piece numbers, as Spark deals them out to tasks, into Arrow batches of at most `batch_bytes`."""

    settings: Mapping[str, str]
    pieces: tuple[Piece, ...]
    batch_bytes: int
    silence_seconds_max: float = SILENCE_SECONDS_MAX

    @classmethod
    def of(cls, spec: KafkaLogSpec, slices: Sequence[Slice], tasks_min: int, batch_bytes: int) -> PieceReader:
        settings = {**_TUNING, **reading_settings(spec), "auto.offset.reset": "error"}
        return cls(settings, pieces_of(slices, tasks_min), batch_bytes)

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with _no_cycle_search():
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from self._read(self.pieces[number])

    def _read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        progress = _Progress(piece)
        interval_ms = int(1_000 * self.silence_seconds_max / _LOOKS_AT_PROGRESS)
        consumer = Consumer(
            {**self.settings, "statistics.interval.ms": str(interval_ms), "stats_cb": progress.hear_statistics}
        )
        try:
            consumer.assign([TopicPartition(piece.topic, piece.partition, piece.start)])
            cursor = _Cursor(piece, consumer, progress, self)
            yield from gathered(cursor.batches(), self.batch_bytes)
            if cursor.mark is not None:
                yield mark_batch(RECORD_SCHEMA, piece.topic, piece.partition, cursor.mark)
        except KafkaException as error:
            raise error_of(fault_of(error), self.settings["bootstrap.servers"], f"topic {piece.topic}") from error
        finally:
            consumer.close()


@contextmanager
def _no_cycle_search() -> Iterator[None]:
    """Keep Python from searching a hundred thousand messages for cycles that they cannot have.

    Measured: 1.9 instead of 3.2 CPU seconds for a million records.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Progress:
    """When the read of a piece last came forward: by records, or by what is fetched and never delivered."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._fetched_to: int | None = None
        self.at = time.monotonic()

    def hear_statistics(self, text: str) -> None:
        """The client passes over the records of aborted transactions: only its next offset to fetch shows it."""
        fetched_to = next_offsets(text).get((self._piece.topic, self._piece.partition))
        if fetched_to != self._fetched_to:
            self._fetched_to = fetched_to
            self.at = time.monotonic()


class _Cursor:
    """Where the read of one piece stands."""

    def __init__(self, piece: Piece, consumer: Consumer, progress: _Progress, reader: PieceReader) -> None:
        self._piece = piece
        self._consumer = consumer
        self._progress = progress
        self._bootstrap = reader.settings["bootstrap.servers"]
        self._batch_bytes = reader.batch_bytes
        self._silence_seconds_max = reader.silence_seconds_max
        self._position = piece.start
        self._last: Message | None = None
        self._denied: KafkaError | None = None
        """Only if nothing comes is the group's refusal told: it then says most."""

    @property
    def mark(self) -> EpochMark | None:
        """The last record of the piece with its leader's epoch; None if there was none, or the log keeps no epochs."""
        epoch = None if self._last is None else self._last.leader_epoch()
        if self._last is None or epoch is None or epoch < 0:
            return None
        return EpochMark(_offset(self._last) + 1, epoch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records of the piece as they arrive."""
        chunk = CHUNK_RECORDS
        while self._position < self._piece.end:
            messages = self._arrived(min(chunk, self._piece.end - self._position))
            if messages:
                arrived_bytes = 0
                for part in arrow_batches(self._piece, messages, self._batch_bytes):
                    arrived_bytes += part.nbytes
                    yield part
                # Large records come in small chunks: what arrives at once is in memory twice.
                chunk = max(1, min(CHUNK_RECORDS, self._batch_bytes * len(messages) // max(1, arrived_bytes)))

    def _arrived(self, records_max: int) -> list[Message]:
        """Records of the piece that the client has ready, waiting for the first one only.

        The client's queue is bounded by bytes; to wait for a number of records would empty it over and over.
        """
        arrived = self._consumer.consume(1, _WAIT_SECONDS)
        if arrived and records_max > 1:
            arrived += self._consumer.consume(records_max - 1, 0)
        if arrived:
            self._progress.at = time.monotonic()
        elif time.monotonic() - self._progress.at > self._silence_seconds_max:
            if self._denied is not None:
                raise error_of(fault_of(self._denied), self._bootstrap, f"topic {self._piece.topic}")
            raise TransientError(
                f"Kafka sent nothing of {self._piece.topic}/{self._piece.partition} for too long",
                detail=f"{self._silence_seconds_max:g} s at offset {self._position}, the end is {self._piece.end}",
                hint="is every broker reachable from the executors?",
            )
        return self._taken(arrived)

    def _taken(self, arrived: list[Message]) -> list[Message]:
        """The records of the piece among what arrived, which is in offset order; events are heard."""
        if any(map(_ERROR, arrived)):
            for event in filter(_ERROR, arrived):
                self._hear(event)
            arrived = [each for each in arrived if each.error() is None]
        while arrived and _offset(arrived[-1]) >= self._piece.end:
            self._position = self._piece.end
            arrived.pop()
        if arrived:
            self._last = arrived[-1]
            self._position = max(self._position, _offset(self._last) + 1)
        return arrived

    def _hear(self, event: Message) -> None:
        error = event.error()
        if error is None:
            return
        code = error.code()
        if code == UNUSED_GROUP_DENIED:
            self._denied = error
        elif code == KafkaError._PARTITION_EOF:
            self._position = max(self._position, _offset(event))
        elif code in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            raise SliceShrankError(
                f"offset {self._position} of {self._piece.topic}/{self._piece.partition} is no longer in the log",
                detail=error.str(),
            )
        elif not error.retriable() or error.fatal():
            raise error_of(fault_of(error), self._bootstrap, f"topic {self._piece.topic}")


def _offset(message: Message) -> int:
    return message.offset() or 0


def arrow_batches(piece: Piece, messages: list[Message], bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Records of one partition in the columns of `SCHEMA`, their values in batches of so many bytes."""
    count = len(messages)
    values = pa.array(list(map(_VALUE, messages)), pa.binary())
    if values.nbytes > bytes_max and count > 1:
        for half in (messages[: count // 2], messages[count // 2 :]):
            yield from arrow_batches(piece, half, bytes_max)
        return
    arrays = [
        pa.repeat(piece.topic, count),
        pa.repeat(pa.scalar(piece.partition, pa.int32()), count),
        _offset_array(messages),
        _timestamp_array(messages),
        pa.array(list(map(_KEY, messages)), pa.binary()),
        values,
        _header_array(messages),
    ]
    yield pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _offset_array(messages: list[Message]) -> pa.Array:
    """The offsets; in a log without holes the first and the last tell all of them."""
    first, last = _offset(messages[0]), _offset(messages[-1])
    if last - first + 1 == len(messages):
        return pa.array(np.arange(first, last + 1))
    return pa.array([each.offset() for each in messages], pa.int64())


def _timestamp_array(messages: list[Message]) -> pa.Array:
    """The times in microseconds; null where a record has none, the nearest where the unit is too fine."""
    kinds, millis = zip(*map(_TIMESTAMP, messages), strict=True)
    known = millis if all(kinds) else [at if kind else None for kind, at in zip(kinds, millis, strict=True)]
    times = pa.array(known, pa.int64())
    try:
        return times.cast(_MILLIS).cast(_MICROS)
    except pa.ArrowInvalid:
        near = pc.min_element_wise(times, _MILLIS_MAX, skip_nulls=False)
        near = pc.max_element_wise(near, -_MILLIS_MAX, skip_nulls=False)
        return near.cast(_MILLIS).cast(_MICROS)


def _header_array(messages: list[Message]) -> pa.Array:
    headers: list[Headers | None] = []
    given = map(_HEADERS, messages)
    while len(headers) < len(messages):
        try:
            headers.extend(given)
        except (SystemError, UnicodeDecodeError) as error:
            # The client fails on a key that is not UTF-8. Asked again it would answer with a broken list.
            if not isinstance(_first_cause(error), UnicodeDecodeError):
                raise
            headers.append(UNREADABLE_HEADERS)
    if not any(headers):
        return pa.nulls(len(messages), HEADERS_TYPE)
    # One header may stand several times, so the client gives pairs.
    rows = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in headers]
    return pa.array(rows, HEADERS_TYPE)


def _first_cause(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _first_cause(error.__cause__)
