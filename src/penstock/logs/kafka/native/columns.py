"""Copies records from the client's memory into Arrow columns, without a Python object per record."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.job.kafka_types import HEADERS_TYPE, RECORD_SCHEMA
from penstock.logs.kafka.native.messages import Addresses, Int64Array, RawHeaders
from penstock.logs.log import Piece

Headers: TypeAlias = list[tuple[str | None, bytes | None]]
UNREADABLE_HEADERS: Headers = [(None, None)]
"""A header without a key, impossible in Kafka: stands for headers with a key that is not UTF-8."""

_MILLIS, _MICROS = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")
_MILLIS_MAX = (2**63 - 1) // 1_000
"""The most that a column of microseconds holds, in either direction."""
_INLINE_BYTES = 12
"""Arrow's views hold values of so many bytes themselves."""
_REACH_BYTES = 2**31
"""How far apart the values of one array may lie for views to reach them."""
_OFFSET_BYTES = 4


@dataclass(frozen=True, slots=True)
class ByteSpans:
    """Where values lie in memory: address 0 stands for null, a length of 0 for an empty one."""

    addresses: Addresses
    lengths: Int64Array

    def __getitem__(self, rows: slice) -> ByteSpans:
        return ByteSpans(self.addresses[rows], self.lengths[rows])


@dataclass(frozen=True, slots=True)
class KafkaRecords:
    """Records of one partition in the order of their offsets; their bytes have to stay where they are."""

    offsets: Int64Array
    values: ByteSpans
    keys: ByteSpans
    time_kinds: npt.NDArray[np.int32]
    """0: the record has no time."""
    times_ms: Int64Array
    headers: list[RawHeaders | None]

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, rows: slice) -> KafkaRecords:
        spans = self.values[rows], self.keys[rows]
        return KafkaRecords(self.offsets[rows], *spans, self.time_kinds[rows], self.times_ms[rows], self.headers[rows])


def arrow_batches(piece: Piece, records: KafkaRecords, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The records in the columns of `RECORD_SCHEMA`, their values in batches of so many bytes."""
    count = len(records)
    if count > 1 and int(records.values.lengths.sum()) + _OFFSET_BYTES * count > bytes_max:
        for half in (records[: count // 2], records[count // 2 :]):
            yield from arrow_batches(piece, half, bytes_max)
        return
    arrays = [
        pa.repeat(piece.topic, count),
        pa.repeat(pa.scalar(piece.partition, pa.int32()), count),
        pa.array(records.offsets, pa.int64()),
        _timestamp_array(records.time_kinds, records.times_ms),
        binary_array(records.keys),
        binary_array(records.values),
        _header_array(records.headers),
    ]
    yield pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def binary_array(spans: ByteSpans) -> pa.Array:
    """A copy of the values."""
    present = spans.addresses != 0
    if not present.any():
        return pa.nulls(len(present), pa.binary())
    first = int(spans.addresses[present].min())
    size = int((spans.addresses + spans.lengths.astype(np.uint64)).max()) - first
    if size >= _REACH_BYTES:
        pairs = zip(spans.addresses.tolist(), spans.lengths.tolist(), strict=True)
        return pa.array([ctypes.string_at(*pair) if pair[0] else None for pair in pairs], pa.binary())
    # Arrow itself copies from views; it does not need the first bytes that views of longer values hold.
    memory = pa.foreign_buffer(first, max(size, 1))
    starts = np.where(present, spans.addresses - np.uint64(first), 0).astype(np.int64)
    views = np.zeros((len(present), 4), np.int32)
    views[:, 0], views[:, 3] = np.where(present, spans.lengths, 0), starts
    short = np.flatnonzero(views[:, 0] <= _INLINE_BYTES)
    if len(short):
        views[short, 1:] = _inlined(np.frombuffer(memory, np.uint8), starts[short], views[short, 0])
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    from_buffers = pa.Array.from_buffers(pa.binary_view(), len(present), [valid, pa.py_buffer(views), memory])
    return from_buffers.cast(pa.binary())


def _inlined(
    memory: npt.NDArray[np.uint8], starts: Int64Array, lengths: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """The bytes of short values, filled up with zeros, as numbers of four bytes."""
    places = np.arange(_INLINE_BYTES)
    within = places < lengths[:, None]
    # No byte outside of a value is read.
    content = np.where(within, memory[np.where(within, starts[:, None] + places, 0)], 0)
    return np.ascontiguousarray(content, np.uint8).view(np.int32)


def _timestamp_array(kinds: npt.NDArray[np.int32], millis: Int64Array) -> pa.Array:
    """The times in microseconds; null where a record has none, the nearest where the unit is too fine."""
    times = pa.array(millis, mask=None if kinds.all() else kinds == 0)
    try:
        return times.cast(_MILLIS).cast(_MICROS)
    except pa.ArrowInvalid:
        near = pc.min_element_wise(times, _MILLIS_MAX, skip_nulls=False)
        near = pc.max_element_wise(near, -_MILLIS_MAX, skip_nulls=False)
        return near.cast(_MILLIS).cast(_MICROS)


def _header_array(headers: list[RawHeaders | None]) -> pa.Array:
    if not any(headers):
        return pa.nulls(len(headers), HEADERS_TYPE)
    # A header key may occur several times, so these are pairs.
    rows = [
        None if header is None else [{"key": key, "value": value} for key, value in _readable(header)]
        for header in headers
    ]
    return pa.array(rows, HEADERS_TYPE)


def _readable(headers: RawHeaders) -> Headers:
    try:
        return [(key.decode(), value) for key, value in headers]
    except UnicodeDecodeError:
        return UNREADABLE_HEADERS
