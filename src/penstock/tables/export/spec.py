"""An export in a job file: its types, when their files are due, its limits, and the checks of several keys together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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
    number,
    sections_by_name,
    text,
    within,
)
from penstock.tables.rows import add_place, column_findings, expression_findings, stated_columns

ExportFormat: TypeAlias = Literal["parquet", "delta"]
Compression: TypeAlias = Literal["snappy", "zstd", "gzip", "none"]
INFER = "infer"
NAME_CHARACTERS_MAX = 180
"""Of cluster and topic together: a file name has 255 bytes, of which partition, offset and marks need some."""
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
Percent: TypeAlias = Annotated[
    float, within(number, "a percentage is more than 0 and at most 100", least=1e-9, most=100)
]


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
    decoders = ("json", "raw", "protobuf", "garmadon")
    unused = ("schema", "sql", "drop")
    route: Annotated[RouteSpec, Part.SECTION, Part.TOP]
    types: Annotated[Mapping[str, TypeSpec], sections_by_name(TypeSpec), Part.TOP]
    format: ExportFormat = "parquet"
    days: Annotated[DaysSpec, Part.SECTION, Part.TOP] = field(default_factory=DaysSpec)
    cluster: Annotated[str, _CLUSTER] = ""
    """File names begin with `<cluster>.<topic>.`, or with `<topic>.` alone."""
    compression: Compression = "snappy"
    alerts: Annotated[AlertLimits, Part.SECTION, Part.TOP] = field(default_factory=AlertLimits)
    event_time: Annotated[EventTime | None, Part.TOP] = field(default=None, repr=False, compare=False)
    """The default of types; `complete` copies it into them."""

    def complete(self, job: JobSpec[Self], reader: SpecReader) -> JobSpec[Self]:
        if job.decode.format == "protobuf" and reader.has("decode", "message"):
            reader.note(("decode", "message"), "each type has its own", "move it to types", on_key=True)
        if reader.states("types") and not reader.written("types"):
            reader.note(("types",), "names no type")
        stated = job.table.types if reader.states("types") else {}
        types = {name: replace(spec, schema=_decoded_schema(spec, job.decode, reader)) for name, spec in stated.items()}
        columns = _columns(job, types, reader)
        types = _with_event_times(job, types, reader)
        _check_names(job, types, reader)
        _check_route(job, reader)
        by_marker = job.table.route.by == "envelope" and job.decode.format == "garmadon"
        first_of: dict[str, str] = {}
        types = {name: _with_values(spec, first_of, by_marker, reader) for name, spec in types.items()}
        return replace(job, columns=columns, table=replace(job.table, types=types))


# fields


def _decoded_schema(spec: TypeSpec, decode: DecodeSpec, reader: SpecReader) -> pa.Schema | None:
    """The decoded fields of a type; None where they are inferred later or are not known."""
    if not reader.states("decode", "format") or decode.format not in ExportSpec.decoders:
        return spec.schema
    at: KeyPath = ("types", spec.name)
    message_at: KeyPath = (*at, "message")
    if decode.format in ("json", "raw") and reader.has(*message_at):
        reader.note(message_at, f"has no meaning with decode {decode.format}", "remove it", on_key=True)
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


# columns


def _columns(job: JobSpec[ExportSpec], types: Mapping[str, TypeSpec], reader: SpecReader) -> dict[str, Expression]:
    """The computed columns and the place columns."""
    stated = stated_columns(reader)
    schemas = {name: spec.schema for name, spec in types.items() if spec.schema is not None}
    reader.findings += _once(
        (name, finding) for name, schema in schemas.items() for finding in column_findings(job, schema, reader)
    )
    names: list[tuple[KeyPath, str]] = [(("columns", name), name) for name in stated]
    for name, schema in schemas.items():
        message: KeyPath | None = ("types", name, "message") if types[name].message is not None else None
        names += [(message or ("types", name, "schema", field), field) for field in schema.names]
    added = add_place(job, reader, names)
    for at, name in names:
        if name.casefold() == DAY_FOLDER:
            message_text = f"{name} is also the column that readers take from the folders day=..."
            reader.note(at, message_text, "give it another name", on_key=at[-1] != "message")
    return {**job.columns, **added}


def _once(findings: Iterable[tuple[str, Finding]]) -> Iterator[Finding]:
    """The findings of types, each once with the first type that it concerns."""
    first_of: dict[Finding, str] = {}
    for name, finding in findings:
        first_of.setdefault(finding, name)
    return (replace(finding, message=f"in type {name}: {finding.message}") for finding, name in first_of.items())


# event times


def _with_event_times(
    job: JobSpec[ExportSpec], types: Mapping[str, TypeSpec], reader: SpecReader
) -> dict[str, TypeSpec]:
    """The types with their own event time or the job's, checked against the fields that are known."""
    dated: dict[str, TypeSpec] = {}
    findings: list[tuple[str, Finding]] = []
    for name, spec in types.items():
        own: KeyPath = ("types", name, "event_time")
        at: KeyPath = own if reader.has(*own) else ("event_time",)
        expression = spec.event_time if at == own else job.table.event_time
        if not reader.has(*at):
            findings.append((name, Finding(at, "required key is missing: records need a day", "as in kafka.timestamp")))
        if reader.states(*at) and expression is not None:
            spec = replace(spec, event_time=expression)
            findings += [(name, finding) for finding in _time_findings(job, spec, at, reader)]
        dated[name] = spec
    reader.findings += _once(findings)
    return dated


def _time_findings(job: JobSpec[ExportSpec], spec: TypeSpec, at: KeyPath, reader: SpecReader) -> Iterator[Finding]:
    expression, schema = spec.event_time, spec.schema
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


# names and the route


def _check_names(job: JobSpec[ExportSpec], types: Mapping[str, TypeSpec], reader: SpecReader) -> None:
    """Names of types are folders of one root, those of topics parts of file names."""
    for index, topic in enumerate(job.log.topics):
        if len(job.table.cluster) + len(topic) > NAME_CHARACTERS_MAX:
            log = next(log for log in reader.written("log") if reader.has("log", log, "topics"))
            message = f"cluster and topic have more than {NAME_CHARACTERS_MAX} characters: too long for a file name"
            reader.note(("log", log, "topics", index), message)
    names: dict[str, str] = {}
    for name in types:
        at: KeyPath = ("types", name)
        if _FOLDER.fullmatch(name) is None or ".." in name:
            reader.note(at, "cannot be the name of a folder", _FOLDER_HINT, on_key=True)
        elif (other := names.setdefault(name.casefold(), name)) != name:
            reader.note(at, f"the same name as {other}, but for case", on_key=True)


def _check_route(job: JobSpec[ExportSpec], reader: SpecReader) -> None:
    route, decode = job.table.route, job.decode.format
    needed = _ROUTES_OF.get(route.by, decode)
    if reader.states("decode", "format") and decode != needed:
        hint = "route by header or key" if decode != "garmadon" else "route by envelope"
        reader.note(("route", "by"), f"{route.by} needs decode {needed}, not {decode}", hint)


def _with_values(spec: TypeSpec, first_of: dict[str, str], by_marker: bool, reader: SpecReader) -> TypeSpec:
    """The type with its route values, stated ones or its name; none may mean another type."""
    at: KeyPath = ("types", spec.name, "values")
    if reader.misstates(*at):
        return spec
    by_name = not reader.has(*at)
    values = (spec.name,) if by_name else spec.values
    for index, value in enumerate(values):
        place: KeyPath = ("types", spec.name) if by_name else (*at, index)
        other = first_of.setdefault(value, spec.name)
        if value in values[:index]:
            reader.note(place, f"{shown(value)} is named twice")
        elif other != spec.name:
            reader.note(place, f"{shown(value)} means type {other} already", on_key=by_name)
        is_marker = _MARKER.fullmatch(value) is not None and MARKER_MIN <= int(value) <= MARKER_MAX
        if by_marker and not is_marker:
            message = f"invalid type marker {shown(value)}: an envelope holds a number of 32 bits"
            reader.note(place, message, "as in values: [1000]", on_key=by_name)
    return replace(spec, values=values)
