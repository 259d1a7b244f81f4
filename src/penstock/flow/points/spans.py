"""Texts of a whole batch, cut by position: no text is copied before it is known to be needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.job.kafka_types import utf8

Integers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_NEWLINE = 0x0A
_MINUS = 0x2D
_ZERO, _NINE_FROM_ZERO = np.uint8(0x30), np.uint8(9)


@dataclass(frozen=True, slots=True)
class Spans:
    """Parts of a buffer of UTF-8, in order and apart from each other: part `i` is `[starts[i], ends[i])`."""

    data: pa.Buffer
    starts: Integers
    ends: Integers

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The whole buffer, where the positions point into."""
        return np.frombuffer(self.data, np.uint8) if self.data.size else np.empty(0, np.uint8)

    def texts(self) -> pa.Array:
        """The parts as an array of strings."""
        count = len(self)
        if not count:
            return pa.array([], pa.string())
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2], offsets[1::2] = self.starts, self.ends
        # Parts and the gaps between them, of which the parts are taken.
        both = pa.Array.from_buffers(pa.string(), 2 * count - 1, [None, pa.py_buffer(offsets), self.data])
        return both.take(pa.array(np.arange(0, 2 * count - 1, 2)))

    def where(self, kept: Mask) -> Spans:
        return Spans(self.data, self.starts[kept], self.ends[kept])


def spans_of(texts: pa.Array) -> Spans:
    """The places of strings or binaries in their buffer."""
    _, offsets, data = texts.buffers()
    places = np.frombuffer(offsets, np.int32, len(texts) + 1, 4 * texts.offset).astype(np.int64)
    return Spans(data if data is not None else pa.py_buffer(b""), places[:-1], places[1:])


def utf8_lines(values: pa.Array) -> tuple[Spans, Integers]:
    """The lines of binaries that are UTF-8, without empty ones, and by line the number of its binary."""
    rows = np.arange(len(values))
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        rows = np.flatnonzero([utf8(value) is not None for value in values.to_pylist()])
        texts = values.take(pa.array(rows)).cast(pa.string())
    spans = spans_of(texts)
    spans, counts = split(spans, _NEWLINE)
    if len(spans) > len(rows):
        rows = np.repeat(rows, counts)
    filled = spans.starts < spans.ends
    return (spans, rows) if filled.all() else (spans.where(filled), rows[filled])


def split(spans: Spans, separator: int) -> tuple[Spans, Integers]:
    """The parts between separators, a byte below 128, and how many each span has; the spans follow on each other."""
    # Bytes beyond the first and the last span belong to others.
    first, last = (int(spans.starts[0]), int(spans.ends[-1])) if len(spans) else (0, 0)
    found = np.flatnonzero(spans.bytes[first:last] == separator) + first
    if not len(found):
        return spans, np.ones(len(spans), np.int64)
    starts = np.sort(np.concatenate([spans.starts, found + 1]), kind="stable")
    ends = np.sort(np.concatenate([found, spans.ends]), kind="stable")
    counts = np.searchsorted(found, spans.ends) - np.searchsorted(found, spans.starts) + 1
    return Spans(spans.data, starts, ends), counts


def find(texts: pa.Array, literal: str) -> Integers:
    """Where each string holds the literal first, in bytes from its beginning; -1 where it does not."""
    found = _series(texts).str.find(literal, literal=True)
    return found.cast(pl.Int64).fill_null(-1).to_numpy()


def find_alike(spans: Spans, literal: str, *, from_end: bool) -> Integers:
    """Where each span holds the literal, which is ASCII; -1 where it does not.

    Tried first is where the first span has it, counted from its start or its end: most spans are alike. If one holds
    it several times, any of these places may be told.
    """
    if not len(spans):
        return np.empty(0, np.int64)
    wanted = literal.encode()
    start, end = int(spans.starts[0]), int(spans.ends[0])
    offset = max(0, spans.bytes[start:end].tobytes().find(wanted))
    places = spans.ends + (start + offset - end) if from_end else spans.starts + offset
    others = ~_stands_at(spans, places, wanted)
    if others.any():
        rest = spans.where(others)
        found = find(rest.texts(), literal)
        places[others] = np.where(found >= 0, rest.starts + found, -1)
    return places


def _stands_at(spans: Spans, places: Integers, wanted: bytes) -> Mask:
    """Which spans hold the bytes at these places."""
    found = (places >= spans.starts) & (places + len(wanted) <= spans.ends)
    if found.any():
        data, inside = spans.bytes, np.where(found, places, 0)
        for index, byte in enumerate(wanted):
            found &= data[inside + index] == byte
    return found


def places_of(spans: Spans, byte: int) -> Integers:
    """Everywhere between the first and the last span where the byte stands, and the end of the buffer."""
    first, last = (int(spans.starts[0]), int(spans.ends[-1])) if len(spans) else (0, 0)
    return np.append(np.flatnonzero(spans.bytes[first:last] == byte) + first, len(spans.bytes))


def next_of(places: Integers, starts: Integers) -> Integers:
    """The first of the ascending places at or after each start; the last of them is after all starts."""
    return places[np.searchsorted(places, starts)]


def matches(texts: pa.Array, pattern: str) -> Mask:
    """Which strings the pattern matches, which has anchors of its own."""
    return _series(texts).str.contains(pattern).to_numpy()


def numbers(spans: Spans) -> tuple[npt.NDArray[np.float64], Mask]:
    """The values of spans, none of them empty, that begin like numbers, and which do; the others mean nothing."""
    first = spans.bytes[spans.starts]
    numeric = (first - _ZERO <= _NINE_FROM_ZERO) | (first == _MINUS)
    if numeric.all():
        return spans.texts().cast(pa.float64()).to_numpy(), numeric
    values = np.zeros(len(spans))
    values[numeric] = spans.where(numeric).texts().cast(pa.float64()).to_numpy()
    return values, numeric


def _series(texts: pa.Array) -> pl.Series:
    return pl.Series(texts, dtype=pl.String)
