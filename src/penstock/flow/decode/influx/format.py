"""Line protocol as a format of metrics. The fast path covers lines with a timestamp and without escapes or comments."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.flow.decode.influx.exact import read_metrics
from penstock.flow.decode.misfit import MisfitError
from penstock.flow.points.metrics import Label, Metric, MetricColumns, NamedFormat
from penstock.flow.points.names import canonical_tags, name_part
from penstock.flow.points.spans import find, matches, numbers, split, utf8_lines
from penstock.flow.points.times import whole_ms
from penstock.flow.spans import Integers, Mask, Spans, spans_of
from penstock.job.spec import PointTimes

_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|-?[0-9]{1,18}i|[0-9]{1,18}u"
_OTHER = r'"[^,= "\\]*"|[tTfF]|[tT]rue|TRUE|[fF]alse|FALSE'
_FIELD = rf'[^,= "\\]+=(?:{_NUMBER}|{_OTHER})'
_FIELDS_PATTERN = rf"^{_FIELD}(?:,{_FIELD})*$"
_TIME_PATTERN = r"^(?:[0-9]{1,18}|[1-8][0-9]{18})$"
_COMMA, _EQUALS = 0x2C, 0x3D
_SUFFIXES = [ord("i"), ord("u")]


class InfluxFormat(NamedFormat):
    """Both paths of it."""

    def columns(self, values: pa.Array) -> tuple[MetricColumns, Mask]:
        return read_columns(values, self.unit)

    def metrics(self, record: bytes, written_at_ms: int | None) -> Iterator[Metric]:
        return read_metrics(record, self.names, self.unit, written_at_ms)

    def label(self, text: str) -> Label | None:
        """Without escapes, commas and equals signs have no other meaning."""
        # An escaped space, a comment and an indented line only look as if the label ended here.
        if "\\" in text or text[:1] in ("", "#", "\t", "\r"):
            return None
        name, *tags = text.split(",")
        by_key: dict[str, str] = {}
        for tag in tags:
            key, _, value = tag.partition("=")
            if not key or not value or "=" in value or key in by_key:
                return None
            by_key[key] = value
        if not name:
            return None
        try:
            return Label(name_part(name, self.names), canonical_tags(by_key, self.names))
        except MisfitError:
            return None


def read_columns(values: pa.Array, unit: PointTimes) -> tuple[MetricColumns, Mask]:
    """The metrics that the patterns cover, and which records hold something else."""
    lines, rows = utf8_lines(values)
    lines_counts = np.bincount(rows, minlength=len(values))
    lines, rows, labels_end, fields_end = _cut(lines, rows)
    fields = Spans(lines.data, labels_end + 1, fields_end).texts()
    times = Spans(lines.data, fields_end + 1, lines.ends).texts()
    fits = matches(fields, _FIELDS_PATTERN) & matches(times, _TIME_PATTERN)
    labels = Spans(lines.data, lines.starts, labels_end)
    if not fits.all():
        rows, labels = rows[fits], labels.where(fits)
        fields, times = fields.filter(pa.array(fits)), times.filter(pa.array(fits))
    at_ms, held = whole_ms(times.cast(pa.int64()).to_numpy(), unit)
    refused = (np.bincount(rows[held], minlength=len(values)) < lines_counts) | (lines_counts == 0)
    return MetricColumns(rows, labels.texts(), at_ms, *_fields(fields)), refused


def _cut(lines: Spans, rows: Integers) -> tuple[Spans, Integers, Integers, Integers]:
    """The lines with two spaces, and where those stand."""
    first = find(lines.texts(), " ")
    found = first >= 0
    if not found.all():
        lines, rows, first = lines.where(found), rows[found], first[found]
    labels_end = lines.starts + first
    second = find(Spans(lines.data, labels_end + 1, lines.ends).texts(), " ")
    found = second >= 0
    if not found.all():
        lines, rows, labels_end, second = lines.where(found), rows[found], labels_end[found], second[found]
    return lines, rows, labels_end, labels_end + 1 + second


def _fields(texts: pa.Array) -> tuple[Integers, pa.Array, npt.NDArray[np.float64], Mask]:
    """How many fields each text has, the keys and values of all, and which values are numbers."""
    items, counts = split(spans_of(texts), _COMMA)
    equals = np.flatnonzero(items.bytes == _EQUALS)
    typed = np.isin(items.bytes[items.ends - 1], _SUFFIXES)
    keys = Spans(items.data, items.starts, equals).texts()
    return counts, keys, *numbers(Spans(items.data, equals + 1, items.ends - typed))
