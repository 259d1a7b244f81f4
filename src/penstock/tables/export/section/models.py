"""The sections of an export as pydantic sees them: `route`, `types`, `days`, `alerts` and `table.export`."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, get_args

from pydantic import Field, PlainValidator

from penstock.job import expressions
from penstock.job.faults import RefusedError, kind_of, nearest, shown
from penstock.job.sections.models import JobFile, TableSection
from penstock.job.sections.scalars import Date, Duration, Message, Positive, Size, Text, one_of, text
from penstock.job.sections.section import Section
from penstock.job.spec import OutsidePolicy, RouteSpec, Secret, UnknownTypePolicy
from penstock.tables.export.spec import Compression, ExportFormat

INFER = "infer"

_WAYS = "write field(path.to.field), header(name), key or envelope"
_BY = re.compile(r"(field|header)\((.*)\)", re.DOTALL)


def route_by(value: object) -> RouteSpec:
    """Read `field(meta.type)`, `header(event-type)`, `key` or `envelope`."""
    word = text(value).strip()
    if word in ("key", "envelope"):
        return RouteSpec("key" if word == "key" else "envelope")
    found = _BY.fullmatch(word)
    if found is None:
        hint = "" if isinstance(value, Secret) else nearest(word, ("key", "envelope"))
        raise RefusedError(f"{shown(text(value))} is no route", hint or _WAYS)
    inside = found[2].strip()
    if not inside:
        raise RefusedError(f"{found[1]}() names nothing", _WAYS)
    path = (inside,) if found[1] == "header" else _field_path(inside)
    if isinstance(value, Secret):
        path = tuple(Secret(name) for name in path)
    return RouteSpec("header" if found[1] == "header" else "field", path)


def _field_path(inside: str) -> tuple[str, ...]:
    try:
        expression = expressions.parse(inside)
    except expressions.ExpressionError:
        expression = None
    if not isinstance(expression, expressions.Field):
        raise RefusedError("field() takes the path of a decoded field", "odd names stand in backticks: field(`a b`.c)")
    return expression.path


def route_value(value: object) -> str:
    """A text, or a whole number as its digits: other numbers have more than one way to be written."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bool | float):
        raise RefusedError(f"expected a text, found {kind_of(value)}", "put it in quotes")
    return text(value)


def percent(value: object) -> float:
    """A number above 0 and up to 100; digits in a text count too, since references are texts."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,9})?", value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError(f"expected a percentage, found {kind_of(value)}", "write 5, without a sign")
    if not math.isfinite(value) or not 0 < value <= 100:
        raise RefusedError("a percentage is more than 0 and at most 100")
    return float(value)


class RouteSection(Section):
    REQUIRED = ("by",)

    by: Annotated[RouteSpec | None, PlainValidator(route_by)] = None
    unknown: Annotated[UnknownTypePolicy | None, one_of(UnknownTypePolicy)] = None
    unknown_type: Text = None


class RotationSection(Section):
    events: Positive = None
    every: Duration = None
    size: Size = None


class TypeSection(Section):
    values: list[Annotated[str, PlainValidator(route_value)]] | None = None
    message: Message = None
    schema_: Any = Field(None, alias="schema")
    event_time: Text = None
    rotation: RotationSection | None = None


class DaysSection(Section):
    not_before: Date = None
    late: Duration = None
    early: Duration = None
    outside: Annotated[OutsidePolicy | None, one_of(OutsidePolicy)] = None
    complete_after: Duration = None
    idle: Duration = None


class AlertsSection(Section):
    failed_writes_percent: Annotated[float | None, PlainValidator(percent)] = None
    lag_records: Positive = None
    discrepancy_records: Positive = None


class ExportTableSection(TableSection):
    format: Annotated[ExportFormat | None, one_of(get_args(ExportFormat))] = None
    cluster: Text = None
    compression: Annotated[Compression | None, one_of(get_args(Compression))] = None
    compact_size: Size = None
    retry: Duration = None


class ExportFile(JobFile):
    """A job file with the sections that only exports have."""

    route: RouteSection | None = None
    types: dict[str, TypeSection] | None = None
    event_time: Text = None
    days: DaysSection | None = None
    alerts: AlertsSection | None = None
