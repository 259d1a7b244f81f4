"""The compiler: a flow becomes one Spark job whose tasks write staged files and whose result is their reports."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.flow.columns import output_type
from penstock.flow.manifest import TaskReport, decode_report
from penstock.flow.sql import HIDDEN, decode_stage, project, write_stage
from penstock.flow.task import REPORT_SCHEMA, Flow, fused_stage
from penstock.job.spec import JobSpec, SqlSpec


def visible_schema(job: JobSpec, decoded: pa.Schema) -> pa.Schema:
    """The decoded fields and the computed columns, before `sql:`."""
    computed = [pa.field(name, output_type(expression, decoded)) for name, expression in job.columns.items()]
    return pa.schema([*decoded, *computed])


def write_batch(records: DataFrame, flow: Flow, sql: SqlSpec | None, visible: pa.Schema) -> Sequence[TaskReport]:
    """Run the one Spark job of a batch."""
    if sql is None:
        written = records.mapInArrow(fused_stage(flow), from_arrow_schema(REPORT_SCHEMA))
    else:
        decoded = records.mapInArrow(decode_stage(flow, visible), from_arrow_schema(pa.schema([*HIDDEN, *visible])))
        written = project(decoded, sql).mapInArrow(write_stage(flow), from_arrow_schema(REPORT_SCHEMA))
    return [decode_report(row["report"]) for row in written.collect()]


def probe_batch(records: DataFrame, flow: Flow, sql: SqlSpec | None, visible: pa.Schema) -> None:
    """Decode and compute like `write_batch`, but write nothing: raises if a record breaks the job."""
    decoded = records.mapInArrow(decode_stage(flow, visible), from_arrow_schema(pa.schema([*HIDDEN, *visible])))
    (decoded if sql is None else project(decoded, sql)).write.format("noop").mode("overwrite").save()
