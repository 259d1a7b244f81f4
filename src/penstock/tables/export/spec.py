"""An export in a job file: its types, when their files are due, its limits, and the checks of several keys together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal, Self, TypeAlias

import pyarrow as pa

from penstock.flow.columns.days import time_fault
from penstock.job.decode import note_stated_schema, schema_of_message
from penstock.job.expressions import Expression, KafkaField, fields
from penstock.job.faults import Finding, InvalidValueError, KeyPath, Secret, kind_of, nearest, shown
from penstock.job.kafka_types import RAW_SCHEMA
from penstock.job.messages import garmadon_schema, message_schema
from penstock.job.reader import SpecReader
from penstock.job.schema import read_schema, type_at
from penstock.job.spec import DAY_FOLDER, DaysSpec, DecodeSpec, JobSpec, Message, RouteSpec, TableSpec
from penstock.job.texts import read_expression
from penstock.job.values import (
    Duration,
    Key,
    Part,
    Positive,
    Read,
    items,
    matching,
    sections_by_name,
    text,
)
from penstock.tables.rows import add_place, column_findings, expression_findings, stated_columns

ExportFormat: TypeAlias = Literal["parquet", "delta"]
Compression: TypeAlias = Literal["snappy", "zstd", "gzip", "none"]
INFER = "infer"
MARKER_MIN, MARKER_MAX = -(2**31), 2**31 - 1
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FOLDER_HINT = "letters, digits, . _ - up to 100, beginning with a letter or digit, without .."
_MARKER = re.compile(r"0|-?[1-9][0-9]{0,9}")
_ROUTES_OF = {"field": "json", "envelope": "garmadon"}
"""The decoder that a kind of route needs."""


def _route_value(value: object) -> str:
    """A text, or a whole number as its digits: other numbers can be written in several ways."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bool | float):
        raise InvalidValueError(f"expected a text, found {kind_of(value)}", "put it in quotes")
    return text(value)


def _stated_schema(value: object, at: KeyPath, reader: SpecReader) -> object:
    """The fields of a type; None: inferred."""
    if value == INFER:
        return None
    if isinstance(value, str):
        hint = "" if isinstance(value, Secret) else nearest(value, (INFER,))
        return reader.lost(at, f"expected a mapping of fields, or infer, found {kind_of(value)}", hint)
    return read_schema(value, at, reader)


_CLUSTER = matching("[A-Za-z0-9_-]{1,64}", "{} cannot be part of a file name", "letters, digits, _ - up to 64")
EventTime: TypeAlias = Annotated[Expression, Read(read_expression)]


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a type writes its files, whichever limit is reached first."""

    events: Positive | None = None
    seconds: Annotated[Duration, Key("every")] = 1_800.0
    """A safeguard also where only `events` is stated: retention may delete waiting records of a rare type."""


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """One event type: its route values, its columns, and when its files are due."""

    name: str
    """Its folder below the root."""
    values: Annotated[tuple[str, ...], items(_route_value)] = ()
    schema: Annotated[pa.Schema | None, Read(_stated_schema)] = None
    """The decoded fields; None: inferred from the first records and then fixed."""
    event_time: EventTime = field(default=KafkaField("timestamp"))
    """`complete` replaces it by the stated one, or by that of the job."""
    message: Message | None = None
    """Of `protobuf` and `garmadon`."""
    rotation: Annotated[Rotation | None, Part.SECTION] = None
    """None: it is written with every batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSpec(TableSpec):
    """Mixed event types of one log into a table per type and day; `path` is the root of all types."""

    kind = "export"
    decoders = ("json", "raw", "protobuf", "garmadon")
    unused = ("schema", "sql", "drop")
    unused_alerts = ()
    route: Annotated[RouteSpec, Part.SECTION, Part.TOP]
    types: Annotated[Mapping[str, TypeSpec], sections_by_name(TypeSpec), Part.TOP]
    format: ExportFormat = "parquet"
    days: Annotated[DaysSpec, Part.SECTION, Part.TOP] = field(default_factory=DaysSpec)
    cluster: Annotated[str, _CLUSTER] = ""
    """File names begin with `<cluster>.<topic>.`, or with `<topic>.` alone."""
    compression: Compression = "snappy"
    event_time: Annotated[EventTime | None, Part.TOP] = field(default=None, repr=False, compare=False)
    """The default of types; `complete` copies it into them."""

    @property
    def summary(self) -> str:
        return f"export of {len(self.types)} types as {self.format}"

    def complete(self, job: JobSpec[Self], reader: SpecReader) -> JobSpec[Self]:
        route, decode = job.table.route, job.decode.format
        needed = _ROUTES_OF.get(route.by, decode)
        if reader.states("decode", "format") and decode != needed:
            hint = "route by header or key" if decode != "garmadon" else "route by envelope"
            reader.note(("route", "by"), f"{route.by} needs decode {needed}, not {decode}", hint)
        if job.on.recreated != "fail":
            hint = "remove it; a new job with a `table.export.cluster` of its own reads a recreated topic"
            reader.note(("on", "recreated"), "has no meaning for table.export", hint, on_key=True)
        if reader.states("types") and not reader.written("types"):
            reader.note(("types",), "names no type")
        stated = stated_columns(reader)
        names: list[tuple[KeyPath, str]] = [(("columns", name), name) for name in stated]
        first_with: dict[Finding, str] = {}
        """What is wrong with several types is reported once, with the first of them."""
        types: dict[str, TypeSpec] = {}
        for name, spec in (job.table.types if reader.states("types") else {}).items():
            spec = replace(spec, schema=_decoded_schema(spec, job.decode, reader))
            if spec.schema is not None:
                message: KeyPath | None = ("types", name, "message") if spec.message is not None else None
                names += [(message or ("types", name, "schema", field), field) for field in spec.schema.names]
                for finding in column_findings(job, spec.schema, reader):
                    first_with.setdefault(finding, name)
            at: KeyPath = ("types", name, "event_time")
            if not reader.has(*at):
                at = ("event_time",)
                spec = replace(spec, event_time=job.table.event_time or spec.event_time)
            for finding in _time_findings(job, spec, at, reader):
                first_with.setdefault(finding, name)
            types[name] = _with_values(job, spec, types, reader)
        reader.findings += [
            replace(finding, message=f"in type {name}: {finding.message}") for finding, name in first_with.items()
        ]
        added = add_place(job, reader, names)
        for at, name in names:
            if name.casefold() == DAY_FOLDER:
                text = f"{name} is also the column that readers take from the folders day=..."
                reader.note(at, text, "give it another name", on_key=at[-1] != "message")
        return replace(job, columns={**job.columns, **added}, table=replace(job.table, types=types))


def _decoded_schema(spec: TypeSpec, decode: DecodeSpec, reader: SpecReader) -> pa.Schema | None:
    """The decoded fields of a type; None where they are inferred later or are not known."""
    if not reader.states("decode", "format") or decode.format not in ExportSpec.decoders:
        return spec.schema
    at: KeyPath = ("types", spec.name)
    message_at: KeyPath = (*at, "message")
    if decode.format == "json":
        if not reader.has(*at, "schema"):
            message = "required key is missing: decode json needs the fields and their types"
            reader.note((*at, "schema"), message, "write schema: infer to take them from the first records")
        return spec.schema
    note_stated_schema((*at, "schema"), decode, reader)
    if decode.format == "raw":
        return RAW_SCHEMA
    if not reader.has(*message_at):
        reader.note(message_at, f"required key is missing: decode {decode.format} needs it")
    if spec.message is None or not decode.descriptors or (decode.format == "garmadon" and decode.header is None):
        return None
    read = partial(message_schema, decode.descriptors, spec.message)
    if decode.header is not None:
        read = partial(garmadon_schema, decode.descriptors, decode.header, spec.message)
    return schema_of_message(read, message_at, reader)


def _time_findings(job: JobSpec[ExportSpec], spec: TypeSpec, at: KeyPath, reader: SpecReader) -> Iterator[Finding]:
    """What is wrong with the event time of a type, which the file states at this key."""
    expression, schema = spec.event_time, spec.schema
    if not reader.has(*at):
        yield Finding(at, "required key is missing: records need a day", "as in kafka.timestamp")
    if not reader.states(*at) or expression is None:
        return
    paths = [field.path for field in fields(expression)]
    if expression != KafkaField("timestamp") and (job.decode.format == "raw" or not paths):
        yield Finding(at, "is not the time of a record", "name a field with a time, or write kafka.timestamp")
        return
    if schema is None or not paths:
        return
    missing = list(expression_findings(expression, schema, at))
    yield from missing
    # A field whose type could not be read has a finding already.
    is_known = not missing and not any(pa.types.is_null(type_at(schema, path)) for path in paths)
    if is_known and (fault := time_fault(expression, schema)):
        yield Finding(at, "gives no time" if isinstance(reader.written(*at), Secret) else fault)


def _with_values(
    job: JobSpec[ExportSpec], spec: TypeSpec, others: Mapping[str, TypeSpec], reader: SpecReader
) -> TypeSpec:
    """The type with its route values, stated ones or its name; neither they nor its folder may be those of another."""
    at: KeyPath = ("types", spec.name)
    if _FOLDER.fullmatch(spec.name) is None or ".." in spec.name:
        reader.note(at, "cannot be the name of a folder", _FOLDER_HINT, on_key=True)
    elif other := next((other for other in others if other.casefold() == spec.name.casefold()), None):
        reader.note(at, f"the same name as {other}, but for case", on_key=True)
    if reader.misstates(*at, "values"):
        return spec
    by_name = not reader.has(*at, "values")
    values = (spec.name,) if by_name else spec.values
    type_of = {value: other.name for other in others.values() for value in other.values}
    for index, value in enumerate(values):
        place: KeyPath = at if by_name else (*at, "values", index)
        if value in values[:index]:
            reader.note(place, f"{shown(value)} is named twice")
        elif value in type_of:
            reader.note(place, f"{shown(value)} means type {type_of[value]} already", on_key=by_name)
        is_marker = _MARKER.fullmatch(value) is not None and MARKER_MIN <= int(value) <= MARKER_MAX
        if job.table.route.by == "envelope" and job.decode.format == "garmadon" and not is_marker:
            message = f"invalid type marker {shown(value)}: an envelope holds a number of 32 bits"
            reader.note(place, message, "as in values: [1000]", on_key=by_name)
    return replace(spec, values=values)
