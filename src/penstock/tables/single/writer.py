"""The write step of a job with one Delta table: its batches, columns for new fields, and replays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.events import ColumnsAdded, FieldsLeftOut, Listener
from penstock.flow.columns.fitting import new_paths
from penstock.flow.columns.seen_types import NewFields, addable, column_types, left_out
from penstock.flow.compile import flow_of, table_job, visible_schema
from penstock.flow.sql import output_schema
from penstock.flow.task import Flow
from penstock.flow.write.manifest import offsets_of
from penstock.flow.write.report import UNROUTED, Share
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.keys import field_key
from penstock.lake.delta.table import Change, DeltaLog
from penstock.logs.batches import rows_for
from penstock.logs.log import Batch, Log
from penstock.quarantine.replay import Chunk, ReplayRun, StagedRun, TableRuns, Target, run_change, run_number
from penstock.spark.failures import spark_errors
from penstock.staging.batch_job import BatchJob, Records
from penstock.staging.reports import Gathered, Written, check_conserved
from penstock.tables.kind import SchemaChanged
from penstock.tables.single.table import SingleTable

BYTES_UNBOUNDED = str(2**31 - 1)
"""With exactly this value Spark does not measure batches."""


def row_columns(job: JobSpec, spark: SparkSession) -> tuple[pa.Schema, NewColumnPolicy]:
    """The columns of a job's rows, with `sql:` as Spark infers them, and the policy for those that a table lacks."""
    visible = visible_schema(job, job.schema)
    with spark_errors(spark):
        schema = output_schema(spark, visible, job.sql) if job.sql else visible
    schema = pa.schema([column for column in schema if column.name not in job.drop])
    return schema, "add" if job.sql and job.sql.select else job.on.new_column


def add_fields(table: DeltaLog, job: JobSpec, fields: NewFields, decoded: Iterable[str], listener: Listener) -> bool:
    """Add columns for new fields of records; fields that cannot be columns are reported and left out.

    Returns whether the table has other columns than before.
    """
    before = table.schema
    columns = addable(column_types(fields), before.names, decoded)
    ignored = left_out(fields, columns)
    if ignored:
        listener.event(FieldsLeftOut(fields=ignored, reason="they cannot be names of new columns"))
    if not len(columns):
        return False
    table.add_columns(columns)
    if table.schema == before:
        return False
    listener.event(ColumnsAdded(columns=new_paths(before, columns)))
    return True


class SingleWriter:
    """Writes batches of one job to staged files of its table."""

    def __init__(self, table: SingleTable, spark: SparkSession, log: Log) -> None:
        self.job = table.job
        self.spark = spark
        self.table = table
        self.data = table.data
        self.log = log
        self.listener = table.environment.listener
        self.failpoint = table.environment.failpoint
        self._batch_job = BatchJob(table.job, spark, log, table.environment, table_job)

    def stage(self, batch: Batch) -> Written | SchemaChanged:
        started_at = self.data.environment.now()
        flow = self.flow(batch)
        with spark_errors(self.spark):
            self._cut_batches(batch)
        records = self._batch_job.log_records(self.job.limits.arrow_batch_bytes_max)
        gathered = self._batch_job.run(batch, flow, records)
        self._batch_job.checks.check(batch, gathered)
        return self._written(flow, gathered, started_at) or SchemaChanged()

    def replay_target(self) -> TableTarget:
        return TableTarget(self.table, self.spark, self.replay)

    def replay(self, batch: Batch, run: int, records: Records) -> Written | None:
        """Run the Spark job of a replay over records out of quarantine. None if the table first had to add columns."""
        started_at = self.data.environment.now()
        flow = self.flow(batch)
        flow = replace(flow, replay_run=run)
        return self._written(flow, self._batch_job.run(batch, flow, records), started_at)

    def _written(self, flow: Flow, gathered: Gathered, started_at: float) -> Written | None:
        if self._added_columns(flow, gathered):
            return None
        check_conserved(flow, gathered)
        return Written(gathered, started_at, flow.table.schema)

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
        return replace(
            flow_of(self.job, batch, columns, partition_by, self.table.quarantine.url), failpoint=self.failpoint
        )

    def _added_columns(self, flow: Flow, gathered: Gathered) -> bool:
        """Whether the table has other columns than the flow knows, so that the batch has to run again."""
        fields = {name: types for name, types in gathered.new_fields().items() if name not in self.job.drop}
        if self.job.on.new_column != "add" or not fields:
            return False
        return add_fields(self.data, self.job, fields, flow.decoded.names, self.listener)


ReplayBatch = Callable[[Batch, int, Records], Written | None]
"""Runs the Spark job of a replay, of a number, over records out of quarantine; None: the table added columns."""


class TableTarget(Target[Written]):
    """The one Delta table of a job: the commit carries the run (RULES Q2)."""

    def __init__(self, table: SingleTable, spark: SparkSession, replay: ReplayBatch) -> None:
        super().__init__(table.job, table.environment, table.quarantine)
        self._table = table
        self._data = table.data
        self._spark = spark
        self._replay = replay

    @property
    def runs(self) -> TableRuns:
        return TableRuns(self._data)

    def refresh(self) -> None:
        self._data.refresh()

    def _staged(self, chunk: Chunk, batch: Batch, number: int) -> StagedRun[Written] | None:
        written = self._replay(batch, number, chunk.records(self._spark))
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
            change = run_change(self._data, run, self._data.stamped(written.files, self._table.stamps))
            return replace(change, transactions={**change.transactions, **self._sums(run, written)})

        return self._data.swap(decide)

    def _sums(self, run: ReplayRun, written: Written) -> dict[str, int]:
        """What the run adds to the further numbers of its partitions."""
        sums: dict[str, int] = {}
        for partition in run.offsets:
            share = written.gathered.of(partition).get(UNROUTED, Share())
            for name, number in self._table.numbers(share).sums.items():
                key = field_key(self._data.job, partition, name)
                sums[key] = (self._data.transaction(key) or 0) + number
        return sums
