"""`schema: infer`: the fields of a JSON job are those of its first records, and are then kept in its table."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.environment import Environment
from penstock.errors import NoFieldsYetError, UserError
from penstock.events import FieldsLeftOut, SchemaInferred
from penstock.flow.columns.fitting import folded
from penstock.flow.columns.read_fields import with_read_fields
from penstock.flow.columns.seen_types import NewFields, add_fields, column_types, left_out
from penstock.flow.decode.json.rows import JsonDecoder
from penstock.flow.rows import in_parts
from penstock.job.kafka_types import PLACE
from penstock.job.schema import job_type_name, schema_mapping
from penstock.job.spec import JobSpec
from penstock.lake.delta.opening import FIELDS_PROPERTY, find_table, is_unused
from penstock.logs.log import Log

if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLED_RECORDS_MAX = 10_000
_NO_FIELD = pa.schema([("_penstock_nothing", pa.string())])


def with_stored_fields(job: JobSpec, environment: Environment | None = None) -> JobSpec:
    """The job with the fields that its table keeps; as it is if it states its schema, or while there is no table."""
    table = None if job.with_fields is None else find_table(job.table, job.name, environment)
    if table is None:
        return job
    text = table.handle.metadata().configuration.get(FIELDS_PROPERTY)
    if text is not None:
        return _with_fields(job, json.loads(text))
    if is_unused(table):
        return job
    raise UserError(
        f"job {job.name} has `schema: infer`, but its table was created with a stated schema",
        hint="state `schema:` in the job file, or use another table",
    )


def with_seen_fields(job: JobSpec, log: Log, environment: Environment) -> JobSpec:
    """The job with the fields of its table, or else of the first records that it is going to read.

    Raises `NoFieldsYetError` while no record shows a field.
    """
    job = with_stored_fields(job, environment)
    if job.with_fields is None:
        return job
    bounds = log.bounds(log.partitions())
    starts = log.start_offsets(list(bounds), bounds)
    share = max(1, SAMPLED_RECORDS_MAX // max(1, len(bounds)))
    decoder = JsonDecoder(_NO_FIELD, job.decode.payload, "filter", "add")
    seen: NewFields = {}
    records = 0
    for partition, bound in bounds.items():
        start = starts.get(partition, bound.first)
        if start >= bound.end:
            # With `start: latest` there are none yet: those before have the same fields.
            start = max(bound.first, bound.end - share)
        if start == bound.end:
            continue
        for batch in log.records(partition, start, min(bound.end, start + share)):
            records += batch.num_rows
            for decoded in in_parts(decoder.decode, batch):
                add_fields(seen, decoded.new_fields)
    taken = {folded(name) for name in (*job.columns, *PLACE.values())}
    types = {name: kind for name, kind in column_types(seen).items() if folded(name) not in taken}
    if not types:
        raise NoFieldsYetError(
            f"no record shows a field that could be in the schema of job {job.name}",
            hint="`schema: infer` needs records that are JSON objects",
        )
    schema = pa.schema(list(with_read_fields(types, None, job.columns.values()).items()))
    fields = {field.name: job_type_name(field.type) for field in schema}
    environment.listener.event(SchemaInferred(records=records, fields=fields))
    if ignored := left_out(seen, schema):
        environment.listener.event(FieldsLeftOut(fields=ignored, reason="they cannot be names of columns"))
    return _with_fields(job, schema_mapping(schema))


def _with_fields(job: JobSpec, fields: Mapping[str, object]) -> JobSpec:
    if job.with_fields is None:
        return job
    known = job.with_fields(fields)
    table: Any = known.table
    properties = {**table.properties, FIELDS_PROPERTY: json.dumps(fields)}
    return replace(known, table=replace(table, properties=properties))
