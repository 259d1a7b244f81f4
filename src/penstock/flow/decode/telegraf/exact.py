"""The exact path of Telegraf's JSON: every metric of a record, strictly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from penstock.flow.decode.json_text import JsonNumber, JsonObject, parse
from penstock.flow.decode.misfit import SHOWN_CHARACTERS_MAX, MisfitError, clipped, quoted
from penstock.flow.points.metrics import Metric, OtherValue
from penstock.flow.points.names import canonical_tags, name_part
from penstock.flow.points.times import exact_ms
from penstock.job.spec import MetricNames, PointTimes

BATCH = "metrics"
_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    JsonNumber: "number",
    str: "string",
    list: "array",
    JsonObject: "object",
}


def read_metrics(record: bytes, names: MetricNames, unit: PointTimes) -> Iterator[Metric]:
    """The metrics of an object, of `{"metrics": [...]}`, of an array, or of lines of these. Raises `MisfitError`."""
    for line, document in _documents(record):
        place = f"line {line}" if line else ""
        try:
            for path, value in _values_of(document):
                place = f"line {line} {path}".strip() if line else path
                yield read_metric(value, names, unit, place)
        except MisfitError as misfit:
            raise misfit.inside(place) if place else misfit from None


def read_metric(value: Any, names: MetricNames, unit: PointTimes, path: str = "") -> Metric:
    """One metric from its parsed object. Raises `MisfitError`."""
    if type(value) is not JsonObject:
        raise MisfitError(f"expected an object, found {_kind(value)}")
    place = next(iter(value.doubled), "")
    try:
        if value.doubled:
            raise MisfitError("given twice")
        place = "name"
        name = name_part(_text(_required(value, place)), names)
        place = "tags"
        tags = canonical_tags(_tags(value.get(place, JsonObject())), names)
        place = "fields"
        fields = _fields(_required(value, place))
        place = "timestamp"
        at_ms = exact_ms(_number(_required(value, place)), unit)
    except MisfitError as misfit:
        raise misfit.inside(place) from None
    return Metric(name, tags, fields, at_ms, path)


def _documents(record: bytes) -> Iterator[tuple[int, Any]]:
    """The JSON values of a record; where each line is one, with the number of the line."""
    lines = [(number, line) for number, line in enumerate(record.split(b"\n"), 1) if line.strip()]
    try:
        document = parse(record)
    except MisfitError:
        if len(lines) < 2 or not _is_json(lines[0][1]):
            raise
    else:
        yield 0, document
        return
    for number, line in lines:
        try:
            document = parse(line)
        except MisfitError as misfit:
            raise misfit.inside(f"line {number}") from None
        yield number, document


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _values_of(document: Any) -> Iterator[tuple[str, Any]]:
    """The objects of metrics, each with its path."""
    path = ""
    if type(document) is JsonObject and BATCH in document and "name" not in document:
        if BATCH in document.doubled:
            raise MisfitError("given twice").inside(BATCH)
        document, path = document[BATCH], BATCH
        if type(document) is not list:
            raise _expected("array", document).inside(BATCH)
    if type(document) is not list:
        yield path, document
        return
    for index, value in enumerate(document):
        yield f"{path}[{index}]", value


def _required(members: JsonObject, name: str) -> Any:
    if name not in members:
        raise MisfitError("is missing")
    return members[name]


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _expected("string", value)
    return value


def _number(value: Any) -> str:
    if type(value) is not JsonNumber:
        raise _expected("number", value)
    return value


def _object(value: Any) -> JsonObject:
    if type(value) is not JsonObject:
        raise _expected("object", value)
    for name in value.doubled:
        raise MisfitError("given twice").inside(name)
    return value


def _tags(value: Any) -> dict[str, str]:
    """Numbers and booleans as they were written; null is no tag."""
    tags: dict[str, str] = {}
    for key, tag in _object(value).items():
        if isinstance(tag, bool):
            tags[key] = str(tag).lower()
        elif isinstance(tag, str):
            tags[key] = str(tag)
        elif tag is not None:
            raise _expected("string", tag).inside(key)
    return tags


def _fields(value: Any) -> list[tuple[str, float | OtherValue]]:
    return [(key, _field(each)) for key, each in _object(value).items()]


def _field(value: Any) -> float | OtherValue:
    if type(value) is JsonNumber:
        return float(value)
    return OtherValue(_shown(value), value if type(value) is str else None)


def _expected(expected: str, value: Any) -> MisfitError:
    return MisfitError(f"expected {expected}, found {_shown(value)}")


def _kind(value: Any) -> str:
    return _KINDS[type(value)]


def _shown(value: Any) -> str:
    """The kind of a value and, if it is short to say, the value."""
    kind = _kind(value)
    if isinstance(value, bool):
        return f"{kind} {str(value).lower()}"
    if isinstance(value, JsonNumber):
        return f"{kind} {clipped(value, SHOWN_CHARACTERS_MAX)}"
    if isinstance(value, str):
        return f"{kind} {quoted(value[:SHOWN_CHARACTERS_MAX])}"
    return kind
