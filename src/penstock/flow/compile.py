"""The compiler: a flow becomes one Spark job whose tasks write staged files and whose result is their reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.errors import TransientError
from penstock.flow.columns.computed import output_type
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import FanoutFlow
from penstock.flow.sql import HIDDEN, decode_stage, project, write_stage
from penstock.flow.stage import Stage
from penstock.flow.task import Flow, fused_stage
from penstock.flow.write.report import REPORT_SCHEMA, TaskReport, decode_report
from penstock.job.spec import JobSpec
from penstock.lake.storage import open_storage


def visible_schema(job: JobSpec, decoded: pa.Schema) -> pa.Schema:
    """The decoded fields and the computed columns, before `sql:`."""
    computed = [pa.field(name, output_type(expression, decoded)) for name, expression in job.columns.items()]
    return pa.schema([*decoded, *computed])


@dataclass(frozen=True, slots=True)
class RecordFrame:
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

    def reports(self, frame: DataFrame) -> list[TaskReport]:
        """The report of every task. A JVM that dies while it hands them over ends the stream without an error."""
        found = [decode_report(bytes(row["report"])) for row in frame.collect()]
        if len(found) < self.tasks:
            raise TransientError(f"Spark handed over the reports of {len(found)} of {self.tasks} tasks")
        return found


@dataclass(frozen=True, slots=True)
class NoRecords:
    """Reads nothing, so that a task only starts, loads its modules and reaches the table's storage."""

    table_url: str
    storage_options: Mapping[str, str]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in numbers:
            open_storage(self.table_url, self.storage_options).exists("_delta_log/_last_checkpoint")
        yield from ()


@dataclass(frozen=True, slots=True)
class _Fused:
    first: Stage
    second: Stage

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.second(self.first(batches))


def table_job(records: RecordFrame, flow: Flow) -> DataFrame:
    """The Spark job of a batch for one table, whose rows are the reports of its tasks."""
    if flow.sql is None:
        return records.map(fused_stage(flow), REPORT_SCHEMA)
    decoded = records.map(decode_stage(flow), pa.schema([*HIDDEN, *flow.visible]))
    return project(decoded, flow.sql).mapInArrow(write_stage(flow), from_arrow_schema(REPORT_SCHEMA))


def fanout_job(records: RecordFrame, flow: FanoutFlow) -> DataFrame:
    """The Spark job of a batch for all types, whose rows are the reports of its tasks."""
    return records.map(fanout_stage(flow), REPORT_SCHEMA)
