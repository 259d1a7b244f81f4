"""InfluxDB's line protocol. The fast path covers lines with a timestamp and without escapes or comments."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.flow.decode.misfit import Inside, MisfitError, quoted
from penstock.flow.points.metrics import Fields, Format, Lines, MetricPoint, SeriesLabel
from penstock.flow.points.names import canonical_tags, name_part
from penstock.flow.points.spans import find, numbers, split, utf8_lines
from penstock.flow.points.times import AT_MS_MAX, exact_ms
from penstock.flow.spans import BufferSpans, Integers, spans_of
from penstock.job.spec import NameStyle, PointTimes

_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|-?[0-9]{1,18}i|[0-9]{1,18}u"
_OTHER = r'"[^,= "\\]*"|[tTfF]|[tT]rue|TRUE|[fF]alse|FALSE'
_FIELD = rf'[^,= "\\]+=(?:{_NUMBER}|{_OTHER})'
_COMMA, _EQUALS = 0x2C, 0x3D
_SUFFIXES = [ord("i"), ord("u")]

# A backslash before any other character is a literal backslash.
_NAME = re.compile(r"(?:\\[, ]|[^, \n])++")
_WORD = r"(?:\\[,= ]|[^,= \n])++"
_TAG = re.compile(rf",({_WORD})=({_WORD})")
_KEY = re.compile(rf"({_WORD})=")
_STRING = re.compile(r'"((?:\\["\\]|[^"])*+)"')
_BARE = re.compile(r'[^, \n"]++')
_BLANK = re.compile(r"[ \t\r]*+(?:#[^\n]*+)?(?:\n|\Z)")
_INDENT = re.compile(r"[ \t\r]*+")
_SPACES = re.compile(r" ++")
_LINE_END = re.compile(r"[ \t\r]*+(?:\n|\Z)")
_ESCAPED = re.compile(r"\\([,= ])")
_ESCAPED_IN_NAME = re.compile(r"\\([, ])")

_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_INTEGER = re.compile(r"([+-]?[0-9]{1,20})([iu])", re.ASCII)
_TIME = re.compile(r"-?[0-9]++", re.ASCII)
_RANGES = {"i": (-(2**63), 2**63 - 1), "u": (0, 2**64 - 1)}
_BOOLEANS = frozenset(("t", "T", "f", "F", "true", "True", "TRUE", "false", "False", "FALSE"))


class InfluxFormat(Format):
    """The fast and the exact path of line protocol."""

    fields_pattern = rf"^{_FIELD}(?:,{_FIELD})*$"

    def lines(self, values: pa.Array) -> tuple[Lines, Integers]:
        """The lines with two spaces, split at these."""
        lines, rows = utf8_lines(values)
        lines_counts = np.bincount(rows, minlength=len(values))
        first = find(lines.texts(), " ")
        there = first >= 0
        if not there.all():
            lines, rows, first = lines.where(there), rows[there], first[there]
        labels_end = lines.starts + first
        second = find(BufferSpans(lines.data, labels_end + 1, lines.ends).texts(), " ")
        fields_end = labels_end + 1 + second
        labels = BufferSpans(lines.data, lines.starts, labels_end)
        fields = BufferSpans(lines.data, labels_end + 1, fields_end)
        cut = Lines(rows, (labels,), fields, BufferSpans(lines.data, fields_end + 1, lines.ends))
        there = second >= 0
        return (cut if there.all() else cut.where(there)), lines_counts

    def fields(self, texts: pa.Array) -> Fields:
        items, counts = split(spans_of(texts), _COMMA)
        equals = np.flatnonzero(items.bytes == _EQUALS)
        typed = np.isin(items.bytes[items.ends - 1], _SUFFIXES)
        keys = BufferSpans(items.data, items.starts, equals).texts()
        return Fields(counts, keys, *numbers(BufferSpans(items.data, equals + 1, items.ends - typed)))

    def label(self, text: str) -> SeriesLabel | None:
        """Without escapes, commas and equals signs have no other meaning."""
        # An escaped space, a comment and an indented line only look as if the label ended here.
        if "\\" in text or text[:1] in ("", "#", "\t", "\r"):
            return None
        try:
            label, end = _read_label(text, 0, self.names)
        except MisfitError:
            return None
        return label if end == len(text) else None

    def metrics(self, record: bytes, written_at_ms: int | None) -> Iterator[MetricPoint]:
        """The metrics of all lines; a line without a timestamp gets that of its record."""
        if not record:
            raise MisfitError("value is empty")
        try:
            text = record.decode()
        except UnicodeDecodeError as error:
            raise MisfitError(f"value is not UTF-8 at byte {error.start}") from None
        several = "\n" in text.strip()
        at = 0
        while at < len(text):
            if blank := _BLANK.match(text, at):
                at = blank.end()
                continue
            place = f"line {text.count(chr(10), 0, at) + 1}" if several else ""
            with Inside(place):
                metric, at = self._metric(text, at, written_at_ms)
            yield metric._replace(place=place)

    def _metric(self, text: str, at: int, written_at_ms: int | None) -> tuple[MetricPoint, int]:
        """One metric, and where the next line begins."""
        indent = _INDENT.match(text, at)
        label, at = _read_label(text, indent.end() if indent else at, self.names)
        spaces = _SPACES.match(text, at)
        if spaces is None:
            raise MisfitError("the fields are missing")
        fields, at = _read_fields(text, spaces.end())
        at_ms, at = _read_time(text, at, self.unit, written_at_ms)
        end = _LINE_END.match(text, at)
        if end is None:
            raise MisfitError(f"expected the end of the line, found {quoted(text[at : at + 60])}")
        return MetricPoint(label, fields, at_ms), end.end()


def _read_label(text: str, at: int, names: NameStyle) -> tuple[SeriesLabel, int]:
    """The measurement and tags that begin at a place, and where they end. Raises `MisfitError`."""
    name = _NAME.match(text, at)
    if name is None:
        raise MisfitError("the measurement is missing")
    at = name.end()
    tags: dict[str, str] = {}
    while tag := _TAG.match(text, at):
        key, value = (_ESCAPED.sub(r"\1", part) for part in tag.groups())
        if key in tags:
            raise MisfitError("given twice").inside(key).inside("tags")
        tags[key] = value
        at = tag.end()
    if text[at : at + 1] == ",":
        raise MisfitError(f"expected key=value, found {quoted(text[at + 1 : at + 60])}").inside("tags")
    with Inside("measurement"):
        stored = name_part(_ESCAPED_IN_NAME.sub(r"\1", name[0]), names)
    with Inside("tags"):
        return SeriesLabel(stored, canonical_tags(tags, names)), at


def _read_fields(text: str, at: int) -> tuple[list[tuple[str, float | None]], int]:
    fields: list[tuple[str, float | None]] = []
    while True:
        key = _KEY.match(text, at)
        if key is None:
            raise MisfitError(f"expected key=value, found {quoted(text[at : at + 60])}").inside("fields")
        name = _ESCAPED.sub(r"\1", key[1])
        with Inside("fields"), Inside(name):
            value, at = _read_value(text, key.end())
        fields.append((name, value))
        if text[at : at + 1] != ",":
            return fields, at
        at += 1


def _read_value(text: str, at: int) -> tuple[float | None, int]:
    if string := _STRING.match(text, at):
        return None, string.end()
    bare = _BARE.match(text, at)
    if bare is None:
        raise MisfitError("a string without its closing quote" if text[at : at + 1] == '"' else "the value is missing")
    return _bare_value(bare[0]), bare.end()


def _bare_value(text: str) -> float | None:
    if _FLOAT.fullmatch(text):
        return float(text)
    if text in _BOOLEANS:
        return None
    if typed := _INTEGER.fullmatch(text):
        least, most = _RANGES[typed[2]]
        if not least <= int(typed[1]) <= most:
            raise MisfitError(f"{text} is beyond 64 bits")
        return float(typed[1])
    raise MisfitError(f"{quoted(text)} is not a value of line protocol")


def _read_time(text: str, at: int, unit: PointTimes, written_at_ms: int | None) -> tuple[int, int]:
    spaces = _SPACES.match(text, at)
    time = _TIME.match(text, spaces.end()) if spaces else None
    if time is not None:
        with Inside("timestamp"):
            return exact_ms(time[0], unit), time.end()
    if written_at_ms is None or not 0 <= written_at_ms <= AT_MS_MAX:
        raise MisfitError("the line has no timestamp, and its record has no valid one")
    return written_at_ms, at
