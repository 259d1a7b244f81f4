"""The compiler: the input of tasks, and the one Spark job in which they write and report staged files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import TransientError
from penstock.flow.columns.computed import output_type
from penstock.flow.columns.fitting import folded, grown
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import FanoutFlow
from penstock.flow.stage import NamedSlice, Stage
from penstock.flow.task import Flow, fused_stage
from penstock.flow.worker import spared_worker
from penstock.flow.write.files import WriteOptions
from penstock.flow.write.manifest import PartitionKey
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.flow.write.report import REPORT_SCHEMA, ReportT, TaskReport, decode_report
from penstock.job.spec import JobSpec
from penstock.logs.log import Batch
from penstock.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - a dry run needs no Spark

        read = self.read

        def fused(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with spared_worker():
                yield from stage(batches if read is None else read(batches))

        return self.frame.mapInArrow(fused, from_arrow_schema(schema))

    def reports(self, frame: DataFrame) -> list[TaskReport]:
        return collect_reports(frame, TaskReport, self.tasks)


def collect_reports(frame: DataFrame, kind: type[ReportT], count: int, of: str = "tasks") -> list[ReportT]:
    """The rows of a job as reports, of so many tasks at least.

    A JVM that dies while it hands them over ends the stream without an error.
    """
    result = [decode_report(bytes(row["report"]), kind) for row in frame.collect()]
    if len(result) < count:
        raise TransientError(f"Spark handed over the reports of {len(result)} of {count} {of}")
    return result


@dataclass(frozen=True, slots=True)
class NoRecords:
    """Reads nothing, so that a task only starts, loads its modules and reaches the table's storage."""

    table_url: str
    storage_options: Mapping[str, str]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in numbers:
            open_storage(self.table_url, self.storage_options).exists("_delta_log/_last_checkpoint")
        yield from ()


def table_job(records: RecordFrame, flow: Flow) -> DataFrame:
    """The Spark job of a batch for one table, whose rows are the reports of its tasks."""
    if flow.sql is None:
        return records.map(fused_stage(flow), REPORT_SCHEMA)
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - a dry run needs no Spark

    from penstock.flow.sql import HIDDEN, decode_stage, project, write_stage  # noqa: PLC0415 - imports pyspark

    decoded = records.map(decode_stage(flow), pa.schema([*HIDDEN, *flow.visible]))
    return project(decoded, flow.sql).mapInArrow(write_stage(flow), from_arrow_schema(REPORT_SCHEMA))


def fanout_job(records: RecordFrame, flow: FanoutFlow) -> DataFrame:
    """The Spark job of a batch for all types, whose rows are the reports of its tasks."""
    return records.map(fanout_stage(flow), REPORT_SCHEMA)


def decoded_schema(job: JobSpec, target: pa.Schema) -> pa.Schema:
    """What is decoded: the job's fields, and those of the table's columns that a JSON record may have."""
    if job.decode.format != "json" or (job.sql is not None and job.sql.select):
        return job.schema
    computed = {folded(name) for name in job.columns}
    # Records have fields under the names of the job; what others added, under the table's.
    return grown(job.schema, [item for item in target if folded(item.name) not in computed])


def flow_of(job: JobSpec, batch: Batch, target: pa.Schema, partition_by: tuple[str, ...], quarantine_url: str) -> Flow:
    """What the tasks of a batch must know to write rows of the columns `target`, and bad records elsewhere."""
    decoded = decoded_schema(job, target)
    return Flow(
        job=job.name,
        batch_id=batch.id,
        decode=job.decode,
        decoded=decoded,
        visible=visible_schema(job, decoded),
        columns=job.columns,
        sql=job.sql,
        on=job.on,
        table=write_options(job, target, partition_by),
        quarantine=quarantine_options(job, quarantine_url),
        slices=named_slices(batch),
        drop=job.drop,
    )


def named_slices(batch: Batch) -> dict[PartitionKey, NamedSlice]:
    return {
        (item.partition.topic, item.partition.number): NamedSlice(item.partition.topic_id, item.start, item.end)
        for item in batch.slices
    }


def quarantine_options(job: JobSpec, url: str) -> WriteOptions:
    return replace(write_options(job, QUARANTINE_SCHEMA), table_url=url, open_writers_max=1)


def write_options(job: JobSpec, schema: pa.Schema, partition_by: tuple[str, ...] = ()) -> WriteOptions:
    return WriteOptions(
        table_url=job.table.path,
        storage_options=dict(job.table.storage_options),
        schema=schema,
        partition_by=partition_by,
        open_writers_max=job.limits.open_writers_max,
        row_group_bytes_max=job.limits.row_group_bytes_max,
        row_group_rows_max=job.flush.max_messages_per_batch,
    )
