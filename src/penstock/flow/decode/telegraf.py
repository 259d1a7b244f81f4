"""Telegraf's JSON, on two paths.

The fast one cuts the values of `fields` and `timestamp` out of each line, which leaves two holes. Strict patterns
match these values. The text around the holes is the label: the same for every record of a producer, so it is parsed
once. Both checks together prove that the line is JSON. The exact path parses each record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decode.json_text import JsonNumber, JsonObject, parse
from penstock.flow.decode.misfit import SHOWN_CHARACTERS_MAX, Inside, MisfitError, clipped, quoted
from penstock.flow.points.fast import HOLE
from penstock.flow.points.metrics import Fields, Format, Lines, MetricPoint, SeriesLabel
from penstock.flow.points.names import canonical_tags, name_part
from penstock.flow.points.spans import find_alike, next_of, numbers, places_of, utf8_lines
from penstock.flow.points.times import exact_ms
from penstock.flow.spans import BufferSpans, Integers, Mask, spans_of

FIELDS = '"fields":{'
TIME = '"timestamp":'
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_TEXT = r'"[^"\\\x00-\x1f]*"'
_FIELD = rf"{_TEXT}:(?:{_NUMBER}|{_TEXT}|true|false|null)"
_QUOTE, _COLON, _COMMA, _BRACE = 0x22, 0x3A, 0x2C, 0x7D
_PACKED = (("[", "]"), ('{"metrics":[', "]}"))
_BETWEEN = b"},{"
_METRICS = "metrics"
T = TypeVar("T")
_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    JsonNumber: "number",
    str: "string",
    list: "array",
    JsonObject: "object",
}


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A label whose holes are filled with one field and a time."""

    name: str
    fields: dict[str, int]
    timestamp: int
    tags: dict[str, str] = {}


_PLAIN = msgspec.json.Decoder(_Plain)


class TelegrafFormat(Format):
    """The fast and the exact path of Telegraf's JSON."""

    fields_pattern = rf"^{_FIELD}(?:,{_FIELD})*$"

    def lines(self, values: pa.Array) -> tuple[Lines, Integers]:
        """The lines that have both holes, which do not overlap."""
        lines, rows = _unpacked(*utf8_lines(values))
        lines_counts = np.bincount(rows, minlength=len(values))
        # Telegraf sorts keys: fields come first and the time last.
        fields_at, times_at = find_alike(lines, FIELDS, from_end=False), find_alike(lines, TIME, from_end=True)
        there = (fields_at >= 0) & (times_at >= 0)
        if not there.all():
            lines, rows, fields_at, times_at = lines.where(there), rows[there], fields_at[there], times_at[there]
        data, fields_from, times_from = lines.data, fields_at + len(FIELDS), times_at + len(TIME)
        braces, commas = places_of(lines, _BRACE), places_of(lines, _COMMA)
        fields_end, brace = next_of(braces, fields_from), next_of(braces, times_from)
        times_end = np.minimum(brace, next_of(commas, times_from))
        apart = (fields_end < times_from) | (times_end < fields_from)
        usable = apart & (fields_end < lines.ends) & (brace < lines.ends)
        labels = (
            BufferSpans(data, lines.starts, np.minimum(fields_from, times_from)),
            BufferSpans(data, np.minimum(fields_end, times_end), np.maximum(fields_from, times_from)),
            BufferSpans(data, np.maximum(fields_end, times_end), lines.ends),
        )
        cut = Lines(rows, labels, BufferSpans(data, fields_from, fields_end), BufferSpans(data, times_from, times_end))
        return (cut if usable.all() else cut.where(usable)), lines_counts

    def fields(self, texts: pa.Array) -> Fields:
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
        keys = BufferSpans(spans.data, opening + 1, closing).texts()
        return Fields(counts, keys, *numbers(BufferSpans(spans.data, closing + 2, values_end)))

    def label(self, text: str) -> SeriesLabel | None:
        if text.count(FIELDS) > 1:
            return None
        try:
            return self._plain_label(text) or self._any_label(text)
        except (MisfitError, ValueError):
            return None

    def _plain_label(self, text: str) -> SeriesLabel | None:
        """Faster than `_any_label`: the label of an object with only the four keys, none twice, and strings as tags."""
        try:
            plain = _PLAIN.decode(_filled(text, '"x":0', "0"))
        except msgspec.MsgspecError:
            return None
        # Without escapes each string has two quotes; more quotes mean that a name is given twice.
        texts_count = len(("name", "fields", "timestamp", plain.name)) + ('"tags":' in text) + 2 * len(plain.tags)
        if "\\" in text or text.count('"') != 2 * texts_count:
            return None
        return SeriesLabel(name_part(plain.name, self.names), canonical_tags(plain.tags, self.names))

    def _any_label(self, text: str) -> SeriesLabel | None:
        """Parse the label twice with different values, so that another field is never mistaken for the hole."""
        metric = None
        for value, time in (("0.5", "1000"), ("1.5", "2000")):
            [metric] = self.metrics(_filled(text, f'"x":{value}', time).encode(), None)
            if metric.fields != [("x", float(value))] or metric.at_ms != exact_ms(time, self.unit):
                return None
        return metric and metric.label

    def metrics(self, record: bytes, written_at_ms: int | None) -> Iterator[MetricPoint]:
        """The metrics of an object, of `{"metrics": [...]}`, of an array, or of lines of these."""
        for line, document in _documents(record):
            place = f"line {line}" if line else ""
            try:
                for path, value in _values_of(document):
                    place = f"line {line} {path}".strip() if line else path
                    yield self._metric(value, place)
            except MisfitError as misfit:
                raise misfit.inside(place) from None

    def _metric(self, value: Any, path: str) -> MetricPoint:
        """One metric from its parsed object. Raises `MisfitError`."""
        if type(value) is not JsonObject:
            raise MisfitError(f"expected an object, found {_KINDS[type(value)]}")
        members = _object(value)
        with Inside("name"):
            name = name_part(_required(members, "name", str), self.names)
        with Inside("tags"):
            tags = canonical_tags(_tags(members.get("tags", JsonObject())), self.names)
        with Inside("fields"):
            fields = [
                (key, float(field) if type(field) is JsonNumber else None)
                for key, field in _object(_required(members, "fields", JsonObject)).items()
            ]
        with Inside("timestamp"):
            at_ms = exact_ms(_required(members, "timestamp", JsonNumber), self.unit)
        return MetricPoint(SeriesLabel(name, tags), fields, at_ms, path)


def _filled(label: str, field: str, time: str) -> str:
    """The label with its two holes filled; the hole after `"fields":{` gets the field."""
    before, between, after = label.split(HOLE)
    first, second = (field, time) if before.endswith(FIELDS) else (time, field)
    return f"{before}{first}{between}{second}{after}"


def _unpacked(lines: BufferSpans, rows: Integers) -> tuple[BufferSpans, Integers]:
    """Lines with one metric each, after splitting arrays and `{"metrics": [...]}`, and the record of each line."""
    packed, starts, ends = np.zeros(len(lines), np.bool_), lines.starts, lines.ends
    for prefix, suffix in _PACKED:
        between = _between(lines, prefix, suffix)
        packed |= between
        starts, ends = starts + between * len(prefix), ends - between * len(suffix)
    if not packed.any():
        return lines, rows
    cuts, owners = _cuts(BufferSpans(lines.data, starts, ends), packed)
    counts = np.bincount(owners, minlength=len(lines)) + 1
    all_starts = np.sort(np.concatenate([starts, cuts + 2]), kind="stable")
    all_ends = np.sort(np.concatenate([cuts + 1, ends]), kind="stable")
    return BufferSpans(lines.data, all_starts, all_ends), np.repeat(rows, counts)


def _between(lines: BufferSpans, prefix: str, suffix: str) -> Mask:
    """Which lines have this prefix and suffix, with something between."""
    result = lines.ends - lines.starts > len(prefix) + len(suffix)
    # The last byte of a prefix distinguishes most lines, before any text is cut.
    result[result] = lines.bytes[lines.starts[result] + len(prefix) - 1] == ord(prefix[-1])
    chosen = lines.where(result)
    if len(chosen):
        first = BufferSpans(lines.data, chosen.starts, chosen.starts + len(prefix))
        last = BufferSpans(lines.data, chosen.ends - len(suffix), chosen.ends)
        result[result] = _equal(first, prefix) & _equal(last, suffix)
    return result


def _equal(spans: BufferSpans, text: str) -> Mask:
    same: Mask = pc.equal(spans.texts(), pa.scalar(text)).to_numpy(zero_copy_only=False)
    return same


def _cuts(lines: BufferSpans, packed: Mask) -> tuple[Integers, Integers]:
    """The place before each comma between two objects of a packed line, and the number of the line."""
    data = lines.bytes
    result = data[: -len(_BETWEEN) + 1] == _BETWEEN[0]
    for index in range(1, len(_BETWEEN)):
        result &= data[index : len(data) - len(_BETWEEN) + 1 + index] == _BETWEEN[index]
    places = np.flatnonzero(result)
    owners = np.searchsorted(lines.starts, places, side="right") - 1
    inside = (owners >= 0) & (places + len(_BETWEEN) <= lines.ends[owners]) & packed[owners]
    return places[inside], owners[inside]


def _documents(record: bytes) -> Iterator[tuple[int, Any]]:
    """The JSON values of a record, each with its line number; 0 if the whole record is one value."""
    lines = [(number, line) for number, line in enumerate(record.split(b"\n"), 1) if line.strip()]
    try:
        document = parse(record)
    except MisfitError:
        # A line that does not end like a value is the beginning of a value in several lines.
        if len(lines) < 2 or not lines[0][1].rstrip().endswith((b"}", b"]")):
            raise
    else:
        yield 0, document
        return
    for number, line in lines:
        with Inside(f"line {number}"):
            document = parse(line)
        yield number, document


def _values_of(document: Any) -> Iterator[tuple[str, Any]]:
    """The objects of metrics, each with its path."""
    path = ""
    if type(document) is JsonObject and _METRICS in document and "name" not in document:
        if _METRICS in document.doubled:
            raise MisfitError("given twice").inside(_METRICS)
        document, path = document[_METRICS], _METRICS
        with Inside(_METRICS):
            document = _of_type(document, list)
    if type(document) is not list:
        yield path, document
        return
    for index, value in enumerate(document):
        yield f"{path}[{index}]", value


def _required(members: JsonObject, name: str, kind: type[T]) -> T:
    if name not in members:
        raise MisfitError("is missing")
    return _of_type(members[name], kind)


def _of_type(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise MisfitError(f"expected {_KINDS[kind]}, found {_shown(value)}")
    return value


def _object(value: Any) -> JsonObject:
    members = _of_type(value, JsonObject)
    for name in members.doubled:
        raise MisfitError("given twice").inside(name)
    return members


def _tags(value: Any) -> dict[str, str]:
    """Numbers and booleans as they were written; null is not a tag."""
    tags: dict[str, str] = {}
    for key, tag in _object(value).items():
        if isinstance(tag, bool):
            tags[key] = str(tag).lower()
        elif isinstance(tag, str):
            tags[key] = str(tag)
        elif tag is not None:
            raise MisfitError(f"expected string, found {_shown(tag)}").inside(key)
    return tags


def _shown(value: Any) -> str:
    """The kind of a value and, if it is short, the value."""
    kind = _KINDS[type(value)]
    if isinstance(value, bool):
        return f"{kind} {str(value).lower()}"
    if isinstance(value, JsonNumber):
        return f"{kind} {clipped(value, SHOWN_CHARACTERS_MAX)}"
    if isinstance(value, str):
        return f"{kind} {quoted(value[:SHOWN_CHARACTERS_MAX])}"
    return kind
