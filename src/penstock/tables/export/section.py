"""What a job file may state about an export: the fields, columns and event times of its types, its route, its names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from penstock.flow.columns.days import time_fault
from penstock.job.decode import note_stated_schema, schema_of_message
from penstock.job.expressions import Expression, KafkaField, fields
from penstock.job.faults import Finding, KeyPath, Secret, shown
from penstock.job.kafka_types import RAW_SCHEMA
from penstock.job.messages import garmadon_schema, message_schema
from penstock.job.reader import Reader
from penstock.job.rows import add_place, column_findings, expression_findings, readable, stated_columns
from penstock.job.schema import type_at
from penstock.job.sections import KindSection
from penstock.job.spec import DAY_FOLDER, DecodeSpec, JobSpec
from penstock.tables.export.spec import ExportSpec, TypeSpec

NAME_CHARACTERS_MAX = 180
"""Of cluster and topic together: a file name has 255 bytes, of which partition, offset and our own marks need some."""
MARKER_MIN, MARKER_MAX = -(2**31), 2**31 - 1
TYPES_NAMED_MAX = 5
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FOLDER_HINT = "letters, digits, . _ - up to 100, beginning with a letter or digit, without .."
_MARKER = re.compile(r"0|-?[1-9][0-9]{0,9}")
_ROUTES_OF = {"field": "json", "envelope": "garmadon"}
"""The decoder that a way to route needs."""


class ExportSection(KindSection[ExportSpec]):
    spec = ExportSpec
    decoders = ("json", "raw", "protobuf", "garmadon")
    unused = ("schema", "sql", "drop")

    def complete(self, job: JobSpec[ExportSpec], reader: Reader) -> JobSpec[ExportSpec]:
        if not reader.states("types"):
            job = replace(job, table=replace(job.table, types={}))
        types = {
            name: replace(spec, schema=_schema(spec, job.decode, reader)) for name, spec in job.table.types.items()
        }
        columns = _columns(job, types, reader)
        types = _with_event_times(job, types, reader)
        _check_contradictions(job, reader)
        _check_names(job, types, reader)
        _check_route(job, reader)
        by_marker = job.table.route.by == "envelope" and job.decode.format == "garmadon"
        first_of: dict[str, str] = {}
        types = {name: _with_values(spec, first_of, by_marker, reader) for name, spec in types.items()}
        return replace(job, columns=columns, table=replace(job.table, types=types))


# fields


def _schema(spec: TypeSpec, decode: DecodeSpec, reader: Reader) -> pa.Schema | None:
    """The decoded fields of a type; None where they are inferred later or are not known."""
    if not reader.states("decode", "format"):
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
    if decode.format in ("telegraf", "influx"):
        # Refused already, with the decoder.
        return None
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
        yield replace(finding, message=f"in {_listed(names)}: {finding.message}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - TYPES_NAMED_MAX} more" if len(names) > TYPES_NAMED_MAX else ""
    return f"type{'s' if len(names) > 1 else ''} {', '.join(names[:TYPES_NAMED_MAX])}{more}"


# event times


def _with_event_times(job: JobSpec[ExportSpec], types: Mapping[str, TypeSpec], reader: Reader) -> dict[str, TypeSpec]:
    """The types with their own event time or the job's, checked against the fields that are known."""
    without = [name for name in types if not reader.has("types", name, "event_time")]
    if without and not reader.has("event_time"):
        message = f"required key is missing: it gives records their day, and {_listed(without)} has none of its own"
        reader.note(("event_time",), message, "as in kafka.timestamp")
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
    paths = [field.path for field in fields(expression)]
    # A type that could not be read has a finding already.
    if missing or any(pa.types.is_null(type_at(schema, path)) for path in paths):
        return
    if fault := time_fault(expression, schema):
        yield Finding(at, "gives no time" if any(isinstance(path[0], Secret) for path in paths) else fault)


# contradictions, names and the route


def _check_contradictions(job: JobSpec[ExportSpec], reader: Reader) -> None:
    if job.decode.format == "protobuf" and reader.has("decode", "message"):
        reader.note(("decode", "message"), "each type has its own", "move it to types", on_key=True)
    if reader.states("types") and not reader.written("types"):
        reader.note(("types",), "names no type")


def _check_names(job: JobSpec[ExportSpec], types: Mapping[str, TypeSpec], reader: Reader) -> None:
    """Names of types are folders of one root, those of topics parts of file names."""
    for index, topic in enumerate(job.log.topics):
        if len(job.table.cluster) + len(topic) > NAME_CHARACTERS_MAX:
            log = next(log for log in reader.written("log") if reader.has("log", log, "topics"))
            message = f"cluster and topic have more than {NAME_CHARACTERS_MAX} characters: too long for a file name"
            reader.note(("log", log, "topics", index), message)
    seen: dict[str, str] = {}
    for name in types:
        at: KeyPath = ("types", name)
        if _FOLDER.fullmatch(name) is None or ".." in name:
            reader.note(at, "cannot be the name of a folder", _FOLDER_HINT, on_key=True)
        elif name.casefold() in seen:
            reader.note(at, f"the same name as {seen[name.casefold()]}, but for case", on_key=True)
        seen.setdefault(name.casefold(), name)


def _check_route(job: JobSpec[ExportSpec], reader: Reader) -> None:
    route, decode = job.table.route, job.decode.format
    needed = _ROUTES_OF.get(route.by, decode)
    if reader.states("decode", "format") and decode != needed:
        hint = "route by header or key" if decode != "garmadon" else "route by envelope"
        reader.note(("route", "by"), f"{route.by} needs decode {needed}, not {decode}", hint)


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
