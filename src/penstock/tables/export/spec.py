"""The model of an export in a job file: its types, when their files are due, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import pyarrow as pa

from penstock.job.expressions import Constant, Expression, KafkaField
from penstock.job.faults import KeyPath, RefusedError, Secret, kind_of, nearest
from penstock.job.schema import read_schema
from penstock.job.spec import DaysSpec, Message, RouteSpec, TableSpec
from penstock.job.texts import read_expression
from penstock.job.values import (
    LOST,
    Duration,
    Key,
    Otherwise,
    Part,
    Positive,
    Read,
    items,
    matching,
    number,
    sections_by_name,
    text,
    within,
)

if TYPE_CHECKING:
    from penstock.job.reader import Reader

ExportFormat: TypeAlias = Literal["parquet", "delta"]
Compression: TypeAlias = Literal["snappy", "zstd", "gzip", "none"]
INFER = "infer"


def _route_value(value: object) -> str:
    """A text, or a whole number as its digits: other numbers have more than one way to be written."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bool | float):
        raise RefusedError(f"expected a text, found {kind_of(value)}", "put it in quotes")
    return text(value)


def _schema(value: object, at: KeyPath, reader: Reader) -> object:
    """The fields of a type; None: inferred."""
    if value == INFER:
        return None
    if isinstance(value, str):
        hint = "" if isinstance(value, Secret) else nearest(value, (INFER,))
        return reader.lost(at, f"expected a mapping of fields, or infer, found {kind_of(value)}", hint)
    return read_schema(value, at, reader)


def _event_time(value: object, at: KeyPath, reader: Reader) -> object:
    expression = reader.parsed(text, value, at)
    if expression is not LOST:
        expression = read_expression(value, at, reader)
    if isinstance(expression, Constant):
        return reader.lost(at, "a constant is no time of a record", "name a field, or kafka.timestamp")
    if isinstance(expression, KafkaField) and expression.name != "timestamp":
        return reader.lost(at, f"kafka.{expression.name} is no time", "did you mean kafka.timestamp?")
    return expression


_CLUSTER = matching("[A-Za-z0-9_-]{1,64}", "{} cannot stand in a file name", "letters, digits, _ - up to 64")
EventTime: TypeAlias = Annotated[Expression, Read(_event_time), Otherwise(None)]
Percent: TypeAlias = Annotated[
    float, within(number, "a percentage is more than 0 and at most 100", least=1e-9, most=100)
]


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a type with a rhythm of its own writes its files; whatever comes first."""

    events: Positive | None = None
    seconds: Annotated[Duration, Key("every")] = 1_800.0
    """A safeguard also where only `events` is stated: records of a rare type wait in Kafka, which forgets them."""


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """One event type: which route values mean it, what its rows look like, and when they are due."""

    name: str
    """Its folder below the root."""
    values: Annotated[tuple[str, ...], items(_route_value), Otherwise(())]
    schema: Annotated[pa.Schema | None, Read(_schema), Otherwise(None)]
    """The decoded fields; None: inferred from the first records and then fixed."""
    event_time: EventTime
    message: Message | None = None
    """Of `protobuf` and `garmadon`."""
    rotation: Annotated[Rotation | None, Part.SECTION] = None
    """None: it goes with the job's own flush."""


@dataclass(frozen=True, slots=True)
class AlertLimits:
    """The monitoring rules; None switches a rule off."""

    failed_writes_percent_max: Annotated[Percent | None, Key("failed_writes_percent")] = None
    lag_records_max: Annotated[Positive | None, Key("lag_records")] = None
    discrepancy_records_max: Annotated[Positive | None, Key("discrepancy_records")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSpec(TableSpec):
    """Mixed event types of one log into a table per type and day; `path` is the root of all types."""

    kind = "export"

    route: Annotated[RouteSpec, Part.SECTION, Part.TOP]
    types: Annotated[Mapping[str, TypeSpec], sections_by_name(TypeSpec), Part.TOP]
    format: ExportFormat = "parquet"
    days: Annotated[DaysSpec, Part.SECTION, Part.TOP] = field(default_factory=DaysSpec)
    cluster: Annotated[str, _CLUSTER] = ""
    """File names begin with `<cluster>.<topic>.`, or with `<topic>.` alone."""
    compression: Compression = "snappy"
    alerts: Annotated[AlertLimits, Part.SECTION, Part.TOP] = field(default_factory=AlertLimits)
    event_time: Annotated[EventTime | None, Part.TOP] = field(default=None, repr=False, compare=False)
    """Of types that state none of their own; completed types have theirs."""
