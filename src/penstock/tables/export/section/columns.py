"""Computed columns and event times of an export, each against the fields of every type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.columns.computed import is_time, output_type
from penstock.job.checks.columns import column_findings, field_findings, parse_columns, read_expression
from penstock.job.checks.place import read_place
from penstock.job.document import Document
from penstock.job.expressions import Constant, Expression, KafkaField, fields, to_text
from penstock.job.faults import Finding, KeyPath
from penstock.job.kafka_types import UNKNOWN_SCHEMA
from penstock.job.schema import job_type_name, type_at
from penstock.job.spec import DAY_FOLDER, DecodeSpec, Secret, UnknownTypePolicy
from penstock.tables.export.section.models import ExportFile

TYPES_NAMED_MAX = 5

Schemas = Mapping[str, pa.Schema | None]


def read_export_columns(
    file: ExportFile, document: Document, schemas: Schemas
) -> tuple[dict[str, Expression], list[Finding]]:
    """The computed columns, with those added that say where a row came from."""
    raw = file.columns or {}
    columns, findings = parse_columns(raw)
    known = {name: schema for name, schema in schemas.items() if schema is not None}
    findings += _merged({name: column_findings(raw, columns, schema) for name, schema in known.items()})
    names: list[tuple[KeyPath, str]] = [(("columns", name), name) for name in raw]
    names += [(_field_key(each, field, file), field) for each, schema in known.items() for field in schema.names]
    added, of_place = read_place(file, document, columns, names)
    findings += of_place
    names += [(("place", part), name) for part, name in (file.place or {}).items()]
    for at, name in names:
        findings += _day_findings(at, name)
    reserved = UNKNOWN_SCHEMA.names if file.route is not None and file.route.unknown is UnknownTypePolicy.TABLE else ()
    for at, name in names:
        if name.casefold() in reserved and at[0] in ("columns", "place"):
            message = f"the table of unknown types has a column {name.casefold()} already"
            findings.append(Finding(at, message, "choose another name", on_key=at[0] == "columns"))
    return columns | added, findings


def _field_key(type_name: str, field: str, file: ExportFile) -> KeyPath:
    """Where the file states a field, or the message that has it."""
    section = (file.types or {})[type_name]
    return ("types", type_name, "message") if section.message is not None else ("types", type_name, "schema", field)


def _day_findings(at: KeyPath, name: str) -> Iterator[Finding]:
    if name.casefold() == DAY_FOLDER:
        message = f"{name} is what readers call the folders day=...: they would see one of both"
        yield Finding(at, message, "give it another name", on_key=at[0] != "place" and at[-1] != "message")


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


@dataclass(frozen=True, slots=True)
class _Time:
    expression: Expression
    at: KeyPath
    hidden: bool


def read_event_times(
    file: ExportFile, document: Document, schemas: Schemas, decode: DecodeSpec | None
) -> tuple[dict[str, Expression], list[Finding]]:
    """The event time of each type, its own or the job's, checked against the fields that are known."""
    findings: list[Finding] = []
    of_job = _read_time(file.event_time, ("event_time",), decode, findings)
    times: dict[str, _Time] = {}
    without: list[str] = []
    for name, section in (file.types or {}).items():
        at: KeyPath = ("types", name, "event_time")
        time = _read_time(section.event_time, at, decode, findings) if document.has(*at) else of_job
        if time is not None:
            times[name] = time
        elif not document.has(*at) and not document.has("event_time"):
            without.append(name)
    if without and len(without) == len(file.types or ()):
        message = "required key is missing: it gives each record its day"
        findings.append(Finding(("event_time",), message, "as in kafka.timestamp"))
    else:
        message = "required key is missing: the job has no event_time for all types"
        findings += [Finding(("types", name, "event_time"), message) for name in without]
    checked = {name: (time, schemas[name]) for name, time in times.items()}
    findings += _merged(
        {name: list(_time_findings(time, schema)) for name, (time, schema) in checked.items() if schema is not None}
    )
    return {name: time.expression for name, time in times.items()}, findings


def _read_time(value: str | None, at: KeyPath, decode: DecodeSpec | None, findings: list[Finding]) -> _Time | None:
    if value is None:
        return None
    expression = read_expression(value, at, findings)
    if expression is None:
        return None
    if isinstance(expression, Constant):
        findings.append(Finding(at, "a constant is no time of a record", "name a field, or kafka.timestamp"))
        return None
    if isinstance(expression, KafkaField) and expression.name != "timestamp":
        findings.append(Finding(at, f"kafka.{expression.name} is no time", "did you mean kafka.timestamp?"))
        return None
    if decode is not None and decode.format == "raw" and expression != KafkaField("timestamp"):
        findings.append(Finding(at, "decode raw knows no other time than Kafka's", "write kafka.timestamp"))
        return None
    return _Time(expression, at, isinstance(value, Secret))


def _time_findings(time: _Time, schema: pa.Schema) -> Iterator[Finding]:
    missing = list(field_findings(time.expression, schema, time.at, hidden=time.hidden))
    yield from missing
    fault = None if missing else _time_fault(time.expression, schema)
    if fault is not None:
        yield Finding(time.at, "gives no time") if time.hidden else Finding(time.at, *fault)


def _time_fault(expression: Expression, schema: pa.Schema) -> tuple[str, str] | None:
    kinds = (type_at(schema, each.path) for each in fields(expression))
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
