"""The fast path of Telegraf's JSON: lines in which `fields` and `timestamp` leave two holes.

What stands in the holes is matched by strict patterns. What stands around them is the label: the same for every record
of a producer, so it is read once. A line is `label with holes filled`, hence both together prove that it is JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.points.metrics import MetricColumns
from penstock.flow.points.spans import find_alike, matches, next_of, numbers, places_of, utf8_lines
from penstock.flow.points.times import whole_ms
from penstock.flow.spans import Integers, Mask, Spans, spans_of
from penstock.job.spec import PointTimes

FIELDS = '"fields":{'
TIME = '"timestamp":'
HOLE = "\0"
"""Cannot stand in JSON."""

_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_TEXT = r'"[^"\\\x00-\x1f]*"'
_FIELD = rf"{_TEXT}:(?:{_NUMBER}|{_TEXT}|true|false|null)"
_FIELDS_PATTERN = rf"^{_FIELD}(?:,{_FIELD})*$"
_TIME_PATTERN = r"^(?:0|[1-9][0-9]{0,17}|[1-8][0-9]{18})$"
_QUOTE, _COLON, _COMMA, _BRACE = 0x22, 0x3A, 0x2C, 0x7D
_BATCH, _BATCH_END = '{"metrics":[', "]}"
_ARRAY, _ARRAY_END = "[", "]"
_BETWEEN = b"},{"


def read_columns(values: pa.Array, unit: PointTimes) -> tuple[MetricColumns, Mask]:
    """The metrics that the patterns cover, and which records hold something else."""
    lines, rows = unpacked(*utf8_lines(values))
    refused = np.ones(len(values), np.bool_)
    refused[rows] = False
    cut = _cut(lines, rows)
    fields, times = cut.fields.texts(), cut.times.texts()
    fits = matches(fields, _FIELDS_PATTERN) & matches(times, _TIME_PATTERN)
    if not fits.all():
        cut, fields, times = cut.where(fits), fields.filter(pa.array(fits)), times.filter(pa.array(fits))
    at_ms, held = whole_ms(times.cast(pa.int64()).to_numpy(), unit)
    covered = np.bincount(cut.rows[held], minlength=len(values))
    refused |= covered < np.bincount(rows, minlength=len(values))
    return MetricColumns(cut.rows, cut.labels(), at_ms, *_fields(fields)), refused


@dataclass(frozen=True, slots=True)
class _Cut:
    """Lines with their two holes."""

    rows: Integers
    lines: Spans
    fields: Spans
    times: Spans

    def where(self, kept: Mask) -> _Cut:
        return _Cut(self.rows[kept], self.lines.where(kept), self.fields.where(kept), self.times.where(kept))

    def labels(self) -> pa.Array:
        """What stands around the holes, which may be in any order."""
        fields, times, data = self.fields, self.times, self.lines.data
        before = Spans(data, self.lines.starts, np.minimum(fields.starts, times.starts))
        between = Spans(data, np.minimum(fields.ends, times.ends), np.maximum(fields.starts, times.starts))
        after = Spans(data, np.maximum(fields.ends, times.ends), self.lines.ends)
        return pc.binary_join_element_wise(before.texts(), between.texts(), after.texts(), HOLE)


def _cut(lines: Spans, rows: Integers) -> _Cut:
    """The lines in which both holes are found, apart from each other."""
    # Telegraf sorts keys: fields come first and the time last.
    fields_at, times_at = find_alike(lines, FIELDS, from_end=False), find_alike(lines, TIME, from_end=True)
    found = (fields_at >= 0) & (times_at >= 0)
    if not found.all():
        lines, rows, fields_at, times_at = lines.where(found), rows[found], fields_at[found], times_at[found]
    fields_from, times_from = fields_at + len(FIELDS), times_at + len(TIME)
    braces, commas = places_of(lines, _BRACE), places_of(lines, _COMMA)
    fields = Spans(lines.data, fields_from, next_of(braces, fields_from))
    brace = next_of(braces, times_from)
    times = Spans(lines.data, times_from, np.minimum(brace, next_of(commas, times_from)))
    apart = (fields.ends < times_from) | (times.ends < fields_from)
    usable = apart & (fields.ends < lines.ends) & (brace < lines.ends)
    cut = _Cut(rows, lines, fields, times)
    return cut if usable.all() else cut.where(usable)


def _fields(texts: pa.Array) -> tuple[Integers, pa.Array, npt.NDArray[np.float64], Mask]:
    """How many fields each text has, the keys and values of all, and which values are numbers."""
    spans = spans_of(texts)
    quotes = np.flatnonzero(spans.bytes == _QUOTE)
    opening, closing = quotes[0::2], quotes[1::2]
    # The pattern leaves no escapes, so quotes come in pairs, and those before a colon are around keys.
    is_key = spans.bytes[np.minimum(closing + 1, len(spans.bytes) - 1)] == _COLON
    if not is_key.all():
        opening, closing = opening[is_key], closing[is_key]
    bounds = np.searchsorted(opening, np.append(spans.starts, spans.ends[-1:]))
    counts = np.diff(bounds) if len(spans) else np.empty(0, np.int64)
    values_end = np.append(opening[1:] - 1, 0)[: len(opening)]
    values_end[bounds[1:] - 1] = spans.ends
    keys = Spans(spans.data, opening + 1, closing).texts()
    return counts, keys, *numbers(Spans(spans.data, closing + 2, values_end))


def unpacked(lines: Spans, rows: Integers) -> tuple[Spans, Integers]:
    """Lines with one metric each, where arrays and `{"metrics": [...]}` were cut apart, and the record of each line."""
    arrays, batches = _between(lines, _ARRAY, _ARRAY_END), _between(lines, _BATCH, _BATCH_END)
    packed = arrays | batches
    if not packed.any():
        return lines, rows
    starts = lines.starts + arrays * len(_ARRAY) + batches * len(_BATCH)
    ends = lines.ends - arrays * len(_ARRAY_END) - batches * len(_BATCH_END)
    cuts, owners = _cuts(Spans(lines.data, starts, ends), packed)
    counts = np.bincount(owners, minlength=len(lines)) + 1
    all_starts = np.sort(np.concatenate([starts, cuts + 2]), kind="stable")
    all_ends = np.sort(np.concatenate([cuts + 1, ends]), kind="stable")
    return Spans(lines.data, all_starts, all_ends), np.repeat(rows, counts)


def _between(lines: Spans, prefix: str, suffix: str) -> Mask:
    """Which lines begin and end so, with something between."""
    data = lines.bytes
    found = lines.ends - lines.starts > len(prefix) + len(suffix)
    # The last byte of a prefix tells most lines apart, before any text is cut.
    found[found] = data[lines.starts[found] + len(prefix) - 1] == ord(prefix[-1])
    chosen = lines.where(found)
    if len(chosen):
        first = Spans(lines.data, chosen.starts, chosen.starts + len(prefix))
        last = Spans(lines.data, chosen.ends - len(suffix), chosen.ends)
        found[found] = _equal(first, prefix) & _equal(last, suffix)
    return found


def _equal(spans: Spans, text: str) -> Mask:
    same: Mask = pc.equal(spans.texts(), pa.scalar(text)).to_numpy(zero_copy_only=False)
    return same


def _cuts(lines: Spans, packed: Mask) -> tuple[Integers, Integers]:
    """Where packed lines hold a comma between two objects, by the place before it, and the number of the line."""
    data = lines.bytes
    found = data[: -len(_BETWEEN) + 1] == _BETWEEN[0]
    for index in range(1, len(_BETWEEN)):
        found &= data[index : len(data) - len(_BETWEEN) + 1 + index] == _BETWEEN[index]
    places = np.flatnonzero(found)
    owners = np.searchsorted(lines.starts, places, side="right") - 1
    inside = (owners >= 0) & (places + len(_BETWEEN) <= lines.ends[owners]) & packed[owners]
    return places[inside], owners[inside]
