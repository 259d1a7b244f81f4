"""The compiler: a flow becomes one Spark job whose tasks write staged files and whose result is their reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.errors import TransientError
from penstock.flow.columns.computed import output_type
from penstock.flow.sql import HIDDEN, decode_stage, project, write_stage
from penstock.flow.task import REPORT_SCHEMA, Flow, Stage, fused_stage
from penstock.flow.write.files import WriteOptions
from penstock.flow.write.manifest import TaskReport, decode_report
from penstock.job.spec import JobSpec, SqlSpec
from penstock.lake.storage import open_storage


def visible_schema(job: JobSpec, decoded: pa.Schema) -> pa.Schema:
    """The decoded fields and the computed columns, before `sql:`."""
    computed = [pa.field(name, output_type(expression, decoded)) for name, expression in job.columns.items()]
    return pa.schema([*decoded, *computed])


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from: a frame of them, or a frame of numbers that `read` turns into them inside the task."""

    frame: DataFrame
    read: Stage | None = None
    tasks: int = 0
    """How many tasks there are at least, each of which reports once."""

    def map(self, stage: Stage, schema: pa.Schema) -> DataFrame:
        """One `mapInArrow` for reading and the stage together."""
        return self.frame.mapInArrow(
            stage if self.read is None else _Fused(self.read, stage), from_arrow_schema(schema)
        )

    def reports(self, frame: DataFrame) -> list[bytes]:
        """The report of every task. A JVM that dies while it hands them over ends the stream without an error."""
        found = [bytes(row["report"]) for row in frame.collect()]
        if len(found) < self.tasks:
            raise TransientError(f"Spark handed over the reports of {len(found)} of {self.tasks} tasks")
        return found


@dataclass(frozen=True, slots=True)
class NoRecords:
    """Reads nothing, so that a task only starts, loads its modules and reaches the table's storage."""

    table: WriteOptions

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in numbers:
            open_storage(self.table.table_url, self.table.storage_options).exists("_delta_log/_last_checkpoint")
        yield from ()


@dataclass(frozen=True, slots=True)
class _Fused:
    first: Stage
    second: Stage

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.second(self.first(batches))


def write_batch(records: Source, flow: Flow, sql: SqlSpec | None, visible: pa.Schema) -> Sequence[TaskReport]:
    """Run the one Spark job of a batch; again if `sql:` made rows that cannot be written, now without their records."""
    reports = _run(records, flow, sql, visible)
    poison = {key: dict(bad) for key, bad in flow.poison.items()}
    for report in reports:
        for key, bad in report.refused.items():
            poison.setdefault(key, {}).update(bad)
    if not any(report.refused for report in reports):
        return reports
    return _run(records, replace(flow, poison=poison), sql, visible)


def _run(records: Source, flow: Flow, sql: SqlSpec | None, visible: pa.Schema) -> Sequence[TaskReport]:
    if sql is None:
        written = records.map(fused_stage(flow), REPORT_SCHEMA)
    else:
        decoded = records.map(decode_stage(flow, visible), pa.schema([*HIDDEN, *visible]))
        written = project(decoded, sql).mapInArrow(write_stage(flow), from_arrow_schema(REPORT_SCHEMA))
    return [decode_report(report) for report in records.reports(written)]


def probe_batch(records: Source, flow: Flow, sql: SqlSpec | None, visible: pa.Schema) -> None:
    """Decode and compute like `write_batch`, but write nothing: raises if a record breaks the job."""
    decoded = records.map(decode_stage(flow, visible), pa.schema([*HIDDEN, *visible]))
    (decoded if sql is None else project(decoded, sql)).write.format("noop").mode("overwrite").save()
