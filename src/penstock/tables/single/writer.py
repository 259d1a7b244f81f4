"""The write step of a job with one Delta table: its batches, columns for new fields, and replays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Generic

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.errors import UserError
from penstock.events import ColumnsAdded, FieldsLeftOut
from penstock.flow.columns.fitting import new_paths
from penstock.flow.columns.seen_types import addable, column_types, left_out
from penstock.flow.compile import flow_of, table_job, visible_schema
from penstock.flow.sql import output_schema
from penstock.flow.task import Flow, FlowT
from penstock.flow.write.manifest import offsets_of
from penstock.flow.write.report import UNROUTED, Share
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.keys import field_key
from penstock.lake.delta.table import Change
from penstock.logs.batches import rows_for
from penstock.logs.log import Batch, Log
from penstock.quarantine.replay import Chunk, ReplayRun, StagedRun, TableRuns, Target, run_change, run_number
from penstock.spark.failures import spark_errors
from penstock.staging.batch_job import BatchJob, Compile, Records
from penstock.staging.reports import Gathered, Written, check_conserved
from penstock.tables.kind import SchemaChanged
from penstock.tables.single.table import SingleTable

BYTES_UNBOUNDED = str(2**31 - 1)
"""With exactly this value Spark does not measure batches."""


def row_columns(job: JobSpec, spark: SparkSession) -> tuple[pa.Schema, NewColumnPolicy]:
    """The columns of a job's rows, with `sql:` as Spark infers them, and the policy for those that a table lacks."""
    if job.with_fields is not None:
        raise UserError(f"the schema of job {job.name} is inferred from its first records", hint="run the job first")
    visible = visible_schema(job, job.schema)
    with spark_errors(spark):
        schema = output_schema(spark, visible, job.sql) if job.sql else visible
    schema = pa.schema([column for column in schema if column.name not in job.drop])
    return schema, "add" if job.sql and job.sql.select else job.on.new_column


class TableWriter(ABC, Generic[FlowT]):
    """Writes batches of one job, and replays, to staged files of its table."""

    read_bytes_min = 0
    """Records that are read together at least."""

    def __init__(self, table: SingleTable, spark: SparkSession, log: Log, compiled: Compile[FlowT]) -> None:
        self.job = table.job
        self.spark = spark
        self.table = table
        self.environment = table.environment
        self._batch_job = BatchJob(table.job, spark, log, table.environment, compiled)

    @abstractmethod
    def flow(self, batch: Batch) -> FlowT:
        """The input of the tasks of a batch."""

    def stage(self, batch: Batch) -> Written | SchemaChanged:
        started_at = self.environment.now()
        flow = self.flow(batch)
        records = self._batch_job.log_records(max(self.read_bytes_min, self.job.limits.arrow_batch_bytes_max))
        gathered = self._batch_job.run(batch, flow, records, (UNROUTED,))
        self._batch_job.checks.check(batch, gathered)
        return self._written(flow, gathered, started_at) or SchemaChanged()

    def replay_target(self) -> TableTarget:
        return TableTarget(self)

    def replay(self, batch: Batch, run: int, records: Records) -> Written | None:
        """Run the Spark job of a replay over records out of quarantine. None if the table first had to add columns."""
        started_at = self.environment.now()
        flow = replace(self.flow(batch), replay_run=run)
        return self._written(flow, self._batch_job.run(batch, flow, records), started_at)

    def _written(self, flow: FlowT, gathered: Gathered, started_at: float) -> Written | None:
        """The result of the Spark job; None if the table first had to add columns."""
        check_conserved(flow, gathered)
        return Written(gathered, started_at, flow.table.schema)


class SingleWriter(TableWriter[Flow]):
    """Writes rows of records, for whose new fields the table gets columns."""

    def __init__(self, table: SingleTable, spark: SparkSession, log: Log) -> None:
        super().__init__(table, spark, log, table_job)
        self.data = table.data
        self.log = log

    def stage(self, batch: Batch) -> Written | SchemaChanged:
        with spark_errors(self.spark):
            self._cut_batches(batch)
        return super().stage(batch)

    def _written(self, flow: Flow, gathered: Gathered, started_at: float) -> Written | None:
        return None if self._added_columns(flow, gathered) else super()._written(flow, gathered, started_at)

    def _cut_batches(self, batch: Batch) -> None:
        """Limit the rows of Spark's Arrow batches, by the largest record that the topics allow."""
        if self.job.sql is None:
            return
        largest = max(self.log.record_bytes_max(topic) for topic in {piece.partition.topic for piece in batch.slices})
        rows = rows_for(self.job.limits.arrow_batch_bytes_max, largest)
        session = self._batch_job.session
        session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", BYTES_UNBOUNDED)
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(rows))

    def flow(self, batch: Batch) -> Flow:
        """The flow of a batch, with the columns that the table has now; other processes may have added some."""
        return self._flow_to(batch, self.data.schema, self.data.spec.partition_by)

    def _flow_to(self, batch: Batch, columns: pa.Schema, partition_by: tuple[str, ...]) -> Flow:
        flow = flow_of(self.job, batch, columns, partition_by, self.table.quarantine.url)
        return replace(flow, failpoint=self.environment.failpoint)

    def _added_columns(self, flow: Flow, gathered: Gathered) -> bool:
        """Add columns for new fields of records; fields that cannot be columns are reported and left out.

        Returns whether the table has other columns than before, so that the batch has to run again.
        """
        fields = {name: types for name, types in gathered.new_fields().items() if name not in self.job.drop}
        if self.job.on.new_column != "add" or not fields:
            return False
        before = self.data.schema
        columns = addable(column_types(fields), before.names, flow.decoded.names)
        ignored = left_out(fields, columns)
        if ignored:
            self.environment.listener.event(FieldsLeftOut(fields=ignored, reason="they cannot be names of new columns"))
        if not len(columns):
            return False
        self.data.add_columns(columns)
        if self.data.schema == before:
            return False
        self.environment.listener.event(ColumnsAdded(columns=new_paths(before, columns)))
        return True


class TableTarget(Target[Written]):
    """The one Delta table of a job: the commit carries the run (RULES Q2)."""

    def __init__(self, writer: TableWriter[Any]) -> None:
        super().__init__(writer.job, writer.environment, writer.table.quarantine)
        self._writer = writer
        self._table = writer.table
        self._data = writer.table.data

    @property
    def runs(self) -> TableRuns:
        return TableRuns(self._data)

    def refresh(self) -> None:
        self._data.refresh()

    def _staged(self, chunk: Chunk, batch: Batch, number: int) -> StagedRun[Written] | None:
        written = self._writer.replay(batch, number, chunk.records(self._writer.spark))
        if written is None:
            return None
        replayed = {
            key: offsets_of(share.replayed)
            for key, named in written.gathered.shares.items()
            for share in named.values()
        }
        run = chunk.run(number, batch.id, replayed, written.gathered.total)
        return StagedRun(run, written.gathered.total, written)

    def _land(self, staged: StagedRun[Written]) -> bool:
        run, written = staged.run, staged.files

        def decide() -> Change | None:
            if run_number(self._data) != run.number - 1:
                return None
            self._data.check_schema(written.schema)
            return self._change(run, written)

        return self._data.swap(decide)

    def _change(self, run: ReplayRun, written: Written) -> Change:
        """The commit of the run, with what it adds to the further numbers of its partitions."""
        change = run_change(self._data, run, self._data.stamped(written.files, self._table.stamps))
        sums: dict[str, int] = {}
        for partition in run.offsets:
            share = written.gathered.of(partition).get(UNROUTED, Share())
            for name, number in self._table.numbers(share).sums.items():
                key = field_key(self._data.job, partition, name)
                sums[key] = (self._data.transaction(key) or 0) + number
        return replace(change, transactions={**change.transactions, **sums})
