"""Lines, places and numbers in the texts of a whole batch, by position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.flow.spans import Integers, Mask, Spans, spans_of
from penstock.job.kafka_types import utf8

_NEWLINE = 0x0A
_MINUS = 0x2D
_ZERO, _NINE_FROM_ZERO = np.uint8(0x30), np.uint8(9)


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
    result = np.flatnonzero(spans.bytes[first:last] == separator) + first
    if not len(result):
        return spans, np.ones(len(spans), np.int64)
    starts = np.sort(np.concatenate([spans.starts, result + 1]), kind="stable")
    ends = np.sort(np.concatenate([result, spans.ends]), kind="stable")
    counts = np.searchsorted(result, spans.ends) - np.searchsorted(result, spans.starts) + 1
    return Spans(spans.data, starts, ends), counts


def find(texts: pa.Array, literal: str) -> Integers:
    """Where each string holds the literal first, in bytes from its beginning; -1 where it does not."""
    result = _series(texts).str.find(literal, literal=True)
    return result.cast(pl.Int64).fill_null(-1).to_numpy()


def find_alike(spans: Spans, literal: str, *, from_end: bool) -> Integers:
    """Where each span holds the literal, which is ASCII; -1 where it does not.

    Tried first is where the first span has it, counted from its start or its end: most spans are alike. If one holds
    it several times, any of these places may be reported.
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
        result = find(rest.texts(), literal)
        places[others] = np.where(result >= 0, rest.starts + result, -1)
    return places


def _stands_at(spans: Spans, places: Integers, wanted: bytes) -> Mask:
    """Which spans hold the bytes at these places."""
    result = (places >= spans.starts) & (places + len(wanted) <= spans.ends)
    if result.any():
        data, inside = spans.bytes, np.where(result, places, 0)
        for index, byte in enumerate(wanted):
            result &= data[inside + index] == byte
    return result


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
