"""What a job file may state about an export: the fields, columns and event times of its types, its route, its names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.columns.computed import is_time, output_type
from penstock.job.decode import note_stated_schema, schema_of_message
from penstock.job.expressions import Expression, KafkaField, fields, to_text
from penstock.job.faults import Finding, KeyPath, Secret, shown
from penstock.job.kafka_types import RAW_SCHEMA
from penstock.job.messages import garmadon_schema, message_schema
from penstock.job.reader import Reader
from penstock.job.rows import add_place, column_findings, expression_findings, readable, stated_columns
from penstock.job.schema import job_type_name, type_at
from penstock.job.sections import KindSection
from penstock.job.spec import DAY_FOLDER, DecodeSpec, Delivery, JobSpec
from penstock.tables.export.spec import ExportSpec, TypeSpec

AT: KeyPath = ("table", ExportSpec.kind)
NAME_CHARACTERS_MAX = 180
"""Of cluster and topic together: a file name has 255 bytes, of which partition, offset and our own marks need some."""
RESERVED_NAMES = ("names", "topics")
"""Folders of `_penstock/` beside those of the jobs."""
MARKER_MIN, MARKER_MAX = -(2**31), 2**31 - 1
TYPES_NAMED_MAX = 5
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FOLDER_HINT = "letters, digits, . _ - up to 100, beginning with a letter or digit, without .."
_MARKER = re.compile(r"0|-?[1-9][0-9]{0,9}")
_ROUTES_OF = {"field": "json", "envelope": "garmadon"}
"""The decoder that a way to route needs."""


class ExportSection(KindSection[ExportSpec]):
    spec = ExportSpec
    phrase = "one for each event type"
    signs = ("route", "types")
    has_place = True
    many_types = "write them with table.export and route"

    def complete(self, job: JobSpec[ExportSpec], reader: Reader) -> JobSpec[ExportSpec]:
        if not reader.states("types"):
            job = replace(job, table=replace(job.table, types={}))
        types = _with_schemas(job, reader)
        columns = _columns(job, types, reader)
        types = _with_event_times(job, types, reader)
        _check_contradictions(job, reader)
        _check_names(job, types, reader)
        _check_route(job, types, reader)
        by_marker = job.table.route.by == "envelope" and job.decode.format == "garmadon"
        first_of: dict[str, str] = {}
        types = {name: _with_values(spec, first_of, by_marker, reader) for name, spec in types.items()}
        for name in types:
            at: KeyPath = ("types", name, "rotation")
            if reader.states(*at) and not any(reader.has(*at, key) for key in ("events", "every")):
                reader.note(at, "needs events or every", "remove it to write with the job's own flush")
        return replace(job, columns=columns, table=replace(job.table, types=types))

    def clash(self, job: JobSpec, other: JobSpec, other_path: Path) -> Finding | None:
        path, other_table = f"{job.table.path}/", f"{other.table.path}/"
        if path != other_table and (path.startswith(other_table) or other_table.startswith(path)):
            message = f"a table of this job and one in {other_path} lie one inside the other: readers would see both"
            return Finding(("table",), message, "put them side by side")
        if path != other_table:
            return None
        if not isinstance(job.table, ExportSpec) or not isinstance(other.table, ExportSpec):
            message = f"the table in {other_path} lies in the same folder, and one of both is an export"
            return Finding(("table",), message, "give each a folder of its own")
        if job.table.cluster == other.table.cluster and not set(job.log.topics).isdisjoint(other.log.topics):
            message = f"the same root as in {other_path}, under the same file names"
            return Finding(AT, message, "give each cluster a name, or each job its own root")
        return None


# fields


def _with_schemas(job: JobSpec[ExportSpec], reader: Reader) -> dict[str, TypeSpec]:
    """The types with their decoded fields; None where they are inferred later or cannot be told."""
    decode, types = job.decode, dict(job.table.types)
    if not reader.states("decode", "format"):
        return types
    if decode.format == "garmadon" and decode.descriptors and decode.header is not None:
        read = partial(message_schema, decode.descriptors, decode.header)
        if schema_of_message(read, decode.header, ("decode", "header"), reader) is None:
            decode = replace(decode, descriptors=b"")
    return {name: replace(spec, schema=_schema(spec, decode, reader)) for name, spec in types.items()}


def _schema(spec: TypeSpec, decode: DecodeSpec, reader: Reader) -> pa.Schema | None:
    at: KeyPath = ("types", spec.name)
    message_at: KeyPath = (*at, "message")
    if decode.format in ("json", "raw") and reader.has(*message_at):
        reader.note(message_at, f"has no meaning with decode {decode.format}", "remove it", on_key=True)
    if decode.format == "json":
        if not reader.has(*at, "schema"):
            message = "required key is missing: decode json needs the fields and their types"
            reader.note((*at, "schema"), message, "write schema: infer to take them from the first records")
        return spec.schema
    if decode.format in ("telegraf", "influx"):
        # Refused already, with the decoder.
        return None
    note_stated_schema((*at, "schema"), decode, reader)
    if decode.format == "raw":
        return RAW_SCHEMA
    if not reader.has(*message_at):
        reader.note(message_at, f"required key is missing: decode {decode.format} needs it")
    if spec.message is None or not decode.descriptors:
        return None
    read = partial(message_schema, decode.descriptors, spec.message)
    if decode.format == "garmadon":
        if decode.header is None:
            return None
        read = partial(garmadon_schema, decode.descriptors, decode.header, spec.message)
    return schema_of_message(read, spec.message, message_at, reader)


# columns


def _columns(job: JobSpec[ExportSpec], types: Mapping[str, TypeSpec], reader: Reader) -> dict[str, Expression]:
    """The computed columns, with those added that say where a row came from."""
    stated = stated_columns(reader)
    schemas = {name: spec.schema for name, spec in types.items() if spec.schema is not None}
    reader.findings += _merged({name: column_findings(stated, schema) for name, schema in schemas.items()})
    names: list[tuple[KeyPath, str]] = [(("columns", name), name) for name in stated]
    for name, schema in schemas.items():
        message: KeyPath | None = ("types", name, "message") if types[name].message is not None else None
        names += [(message or ("types", name, "schema", field), field) for field in schema.names]
    added = add_place(job, reader, stated, names)
    for name, expression in added.items():
        if isinstance(expression, KafkaField) and reader.has("place", expression.name):
            names.append((("place", expression.name), name))
    for at, name in names:
        on_key = at[0] != "place" and at[-1] != "message"
        if name.casefold() == DAY_FOLDER:
            message_text = f"{name} is what readers call the folders day=...: they would see one of both"
            reader.note(at, message_text, "give it another name", on_key=on_key)
    return {**readable(stated), **added}


def _merged(by_type: Mapping[str, Iterable[Finding]]) -> Iterator[Finding]:
    """What is wrong for several types, said once."""
    types_of: dict[Finding, list[str]] = {}
    for name, findings in by_type.items():
        for finding in findings:
            types_of.setdefault(finding, []).append(name)
    for finding, names in types_of.items():
        more = f" and {len(names) - TYPES_NAMED_MAX} more" if len(names) > TYPES_NAMED_MAX else ""
        listed = ", ".join(names[:TYPES_NAMED_MAX]) + more
        yield replace(finding, message=f"in type{'s' if len(names) > 1 else ''} {listed}: {finding.message}")


# event times


def _with_event_times(job: JobSpec[ExportSpec], types: Mapping[str, TypeSpec], reader: Reader) -> dict[str, TypeSpec]:
    """The types with their own event time or the job's, checked against the fields that are known."""
    without = [name for name in types if not reader.has("types", name, "event_time") and not reader.has("event_time")]
    if without and len(without) == len(types):
        message = "required key is missing: it gives each record its day"
        reader.note(("event_time",), message, "as in kafka.timestamp")
    else:
        for name in without:
            message = "required key is missing: the job has no event_time for all types"
            reader.note(("types", name, "event_time"), message)
    dated: dict[str, TypeSpec] = {}
    findings: dict[str, list[Finding]] = {}
    for name, spec in types.items():
        own: KeyPath = ("types", name, "event_time")
        at: KeyPath = own if reader.has(*own) else ("event_time",)
        if reader.states(*at):
            if at != own and job.table.event_time is not None:
                spec = replace(spec, event_time=job.table.event_time)
            if job.decode.format == "raw" and spec.event_time != KafkaField("timestamp"):
                reader.note(at, "decode raw knows no other time than Kafka's", "write kafka.timestamp")
            elif spec.schema is not None:
                findings[name] = list(_time_findings(spec.event_time, spec.schema, at))
        dated[name] = spec
    reader.findings += _merged(findings)
    return dated


def _time_findings(expression: Expression, schema: pa.Schema, at: KeyPath) -> Iterator[Finding]:
    missing = list(expression_findings(expression, schema, at))
    yield from missing
    fault = None if missing else _time_fault(expression, schema)
    if fault is not None:
        hidden = any(isinstance(field.path[0], Secret) for field in fields(expression))
        yield Finding(at, "gives no time") if hidden else Finding(at, *fault)


def _time_fault(expression: Expression, schema: pa.Schema) -> tuple[str, str] | None:
    kinds = (type_at(schema, field.path) for field in fields(expression))
    if any(kind is None or pa.types.is_null(kind) for kind in kinds):
        # A type that could not be read has a finding already.
        return None
    try:
        kind = output_type(expression, schema)
    except UserError as error:
        return error.primary, ""
    text = to_text(expression)
    if is_time(kind):
        return None
    if pa.types.is_integer(kind):
        return f"{text} is a number, not a time", f"write timestamp_millis({text}), or _seconds or _micros"
    return f"{text} is no time: it is of type {job_type_name(kind)}", ""


# contradictions, names and the route


def _check_contradictions(job: JobSpec[ExportSpec], reader: Reader) -> None:
    for name, reason, hint in (
        ("schema", ": each type has its own", "move it to types"),
        ("sql", ", which writes every type in one pass", "remove it; computed columns work"),
        ("drop", ": each type keeps its fields", "remove it"),
    ):
        if reader.has(name):
            reader.note((name,), f"contradicts table.export{reason}", hint, on_key=True)
    if job.decode.format == "protobuf" and reader.has("decode", "message"):
        reader.note(("decode", "message"), "each type has its own", "move it to types", on_key=True)
    if job.delivery is Delivery.AT_MOST_ONCE:
        reader.note(("delivery",), "at_most_once is not for table.export: it reads a failed type again", "remove it")
    if reader.states("types") and not reader.written("types"):
        reader.note(("types",), "names no type")


def _check_names(job: JobSpec[ExportSpec], types: Mapping[str, TypeSpec], reader: Reader) -> None:
    """Names of the job and of types are folders of one root, or parts of file names."""
    if job.name in RESERVED_NAMES and reader.has(*AT):
        hint = "it is a folder below _penstock/ that all jobs of the root share: choose another name"
        reader.note(("job",), f"an export cannot be called {shown(job.name)}", hint)
    for index, topic in enumerate(job.log.topics):
        if len(job.table.cluster) + len(topic) > NAME_CHARACTERS_MAX:
            log = next(log for log in reader.written("log") if reader.has("log", log, "topics"))
            message = (
                f"cluster and topic together have more than {NAME_CHARACTERS_MAX} characters: no file name holds them"
            )
            reader.note(("log", log, "topics", index), message)
    seen: dict[str, str] = {}
    for name in types:
        at: KeyPath = ("types", name)
        if _FOLDER.fullmatch(name) is None or ".." in name:
            reader.note(at, "cannot be the name of a folder", _FOLDER_HINT, on_key=True)
        elif name.casefold() in seen:
            message = f"the same name as {seen[name.casefold()]}: some storages do not tell upper from lower case"
            reader.note(at, message, on_key=True)
        seen.setdefault(name.casefold(), name)


def _check_route(job: JobSpec[ExportSpec], types: Mapping[str, TypeSpec], reader: Reader) -> None:
    route, decode = job.table.route, job.decode.format
    needed = _ROUTES_OF.get(route.by, decode)
    if reader.states("decode", "format") and decode != needed:
        hint = "route by header or key" if decode != "garmadon" else "route by envelope"
        reader.note(("route", "by"), f"{route.by} needs decode {needed}, not {decode}", hint)
    for name, spec in types.items() if route.by == "field" else ():
        fault = _route_field_fault(route.path, spec.schema) if spec.schema is not None else None
        if fault is not None:
            hidden = isinstance(route.path[0], Secret)
            reader.note(("types", name, "schema"), "route.by cannot read its field of it" if hidden else fault)


def _route_field_fault(path: tuple[str, ...], schema: pa.Schema) -> str | None:
    """A type may leave the field out of its schema; where it has it, it must be able to hold a route value."""
    for depth, name in enumerate(path[1:], 1):
        outer = type_at(schema, path[:depth])
        if outer is not None and not pa.types.is_null(outer) and not pa.types.is_struct(outer):
            return f"{'.'.join(path[:depth])} is no struct, but route.by reads {name} in it"
    kind = type_at(schema, path)
    if kind is None or pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return None
    return f"route.by reads {'.'.join(path)}, which is neither text nor a whole number but {kind}"


def _with_values(spec: TypeSpec, first_of: dict[str, str], by_marker: bool, reader: Reader) -> TypeSpec:
    """The type with its route values, those stated or its name, none of which means another type."""
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
            message = f"{shown(value)} is no type marker: an envelope holds a number of 32 bits"
            reader.note(place, message, "as in values: [1000]", on_key=by_name)
    return replace(spec, values=values)
