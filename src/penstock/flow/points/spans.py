"""Lines, places and numbers in the texts of a whole batch, by position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.flow.spans import BufferSpans, Integers, Mask, spans_of
from penstock.job.kafka_types import utf8

_NEWLINE = 0x0A
_MINUS = 0x2D
_ZERO, _NINE_FROM_ZERO = np.uint8(0x30), np.uint8(9)


def utf8_lines(values: pa.Array) -> tuple[BufferSpans, Integers]:
    """The non-empty lines of binaries that are UTF-8, and the number of the binary of each line."""
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


def split(spans: BufferSpans, separator: int) -> tuple[BufferSpans, Integers]:
    """The parts between separators, a byte below 128, and the number of parts per span; spans must be contiguous."""
    # Bytes beyond the first and the last span belong to others.
    first, last = (int(spans.starts[0]), int(spans.ends[-1])) if len(spans) else (0, 0)
    result = np.flatnonzero(spans.bytes[first:last] == separator) + first
    if not len(result):
        return spans, np.ones(len(spans), np.int64)
    starts = np.sort(np.concatenate([spans.starts, result + 1]), kind="stable")
    ends = np.sort(np.concatenate([result, spans.ends]), kind="stable")
    counts = np.searchsorted(result, spans.ends) - np.searchsorted(result, spans.starts) + 1
    return BufferSpans(spans.data, starts, ends), counts


def find(texts: pa.Array, literal: str) -> Integers:
    """The byte offset of the literal's first occurrence in each string; -1 if there is none."""
    result = _series(texts).str.find(literal, literal=True)
    return result.cast(pl.Int64).fill_null(-1).to_numpy()


def find_alike(spans: BufferSpans, literal: str, *, from_end: bool) -> Integers:
    """The place of the ASCII literal in each span; -1 if there is none.

    It tries the place of the first span, counted from its start or its end, because most spans are alike. If a span
    has the literal several times, any of these places may be returned.
    """
    if not len(spans):
        return np.empty(0, np.int64)
    expected = literal.encode()
    start, end = int(spans.starts[0]), int(spans.ends[0])
    offset = max(0, spans.bytes[start:end].tobytes().find(expected))
    places = spans.ends + (start + offset - end) if from_end else spans.starts + offset
    others = ~_is_at(spans, places, expected)
    if others.any():
        remaining = spans.where(others)
        result = find(remaining.texts(), literal)
        places[others] = np.where(result >= 0, remaining.starts + result, -1)
    return places


def _is_at(spans: BufferSpans, places: Integers, expected: bytes) -> Mask:
    """Which spans hold the bytes at these places."""
    result = (places >= spans.starts) & (places + len(expected) <= spans.ends)
    if result.any():
        data, inside = spans.bytes, np.where(result, places, 0)
        for index, byte in enumerate(expected):
            result &= data[inside + index] == byte
    return result


def places_of(spans: BufferSpans, byte: int) -> Integers:
    """All places of the byte between the first and the last span, and the end of the buffer."""
    first, last = (int(spans.starts[0]), int(spans.ends[-1])) if len(spans) else (0, 0)
    return np.append(np.flatnonzero(spans.bytes[first:last] == byte) + first, len(spans.bytes))


def next_of(places: Integers, starts: Integers) -> Integers:
    """The first of the ascending places at or after each start; the last of them is after all starts."""
    return places[np.searchsorted(places, starts)]


def matches(texts: pa.Array, pattern: str) -> Mask:
    """Which strings match the pattern, which has anchors of its own."""
    return _series(texts).str.contains(pattern).to_numpy()


def numbers(spans: BufferSpans) -> tuple[npt.NDArray[np.float64], Mask]:
    """The values of non-empty spans, and which spans begin like numbers; the values of others are undefined."""
    first = spans.bytes[spans.starts]
    numeric = (first - _ZERO <= _NINE_FROM_ZERO) | (first == _MINUS)
    if numeric.all():
        return spans.texts().cast(pa.float64()).to_numpy(), numeric
    values = np.zeros(len(spans))
    values[numeric] = spans.where(numeric).texts().cast(pa.float64()).to_numpy()
    return values, numeric


def _series(texts: pa.Array) -> pl.Series:
    return pl.Series(texts, dtype=pl.String)
