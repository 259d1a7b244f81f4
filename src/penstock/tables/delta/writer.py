"""The write step: one Spark job that turns a batch into staged files and counts, and what can go wrong in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.errors import TransientError
from penstock.flow.columns.fitting import folded, grown, new_paths
from penstock.flow.columns.new_fields import addable, left_out
from penstock.flow.columns.seen_types import column_types
from penstock.flow.compile import NoRecords, Source, probe_batch, visible_schema, write_batch
from penstock.flow.task import Flow, NamedSlice
from penstock.flow.write.files import WriteOptions
from penstock.flow.write.manifest import PartitionKey, TaskReport
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.table import Table
from penstock.logs.kafka.sizes import rows_for
from penstock.logs.log import Batch, Log, Slice
from penstock.spark.failures import BatchFailedError, spark_errors
from penstock.staging.isolate import Poison, Probe, find_poison
from penstock.staging.read_checks import ReadChecks
from penstock.staging.reports import Written, gather

BYTES_UNBOUNDED = str(2**31 - 1)
"""With this very number Spark does not measure batches at all."""
CAREFUL_ROWS_MAX = 10_000


Records = Callable[[Sequence[Slice]], Source]
"""Reads the records of slices, from the log or from quarantine."""


class BatchWriter:
    """Writes batches of one job to staged files of its table."""

    def __init__(
        self,
        job: JobSpec,
        spark: SparkSession,
        table: Table,
        log: Log,
        environment: Environment,
    ) -> None:
        self.job = job
        self.spark = spark
        self.table = table
        self.log = log
        self.listener = environment.listener
        self.failpoint = environment.failpoint
        self.stopping = environment.stopping
        self._checks = ReadChecks(job, log)
        # A session of its own: how Arrow batches are cut is decided batch by batch, for this job only.
        with spark_errors(spark):
            self._session = spark.newSession()

    def write(self, batch: Batch) -> Written | None:
        """Run the batch's Spark job. None if the table first had to take new columns: the batch is planned again."""
        started_at = self.table.environment.now()
        decoded, visible, target = self.schemas()
        flow = self.flow(batch, decoded, target)
        with spark_errors(self.spark):
            self._cut_batches(batch)
        reports = self.run_flow(batch, flow, visible, self._records)
        written = gather(batch, reports, started_at, target)
        self._check_reports(batch, written)
        return None if self.added_columns(written) else written

    def run_flow(self, batch: Batch, flow: Flow, visible: pa.Schema, records: Records) -> Sequence[TaskReport]:
        """Run the Spark job; records that break it are found and sent to quarantine, the rest runs again."""
        try:
            return self._run_job(batch, flow, visible, records)
        except BatchFailedError:
            if self.stopping():
                raise
        with spark_errors(self.spark):
            self._cut_batches_carefully()
        try:
            return self._run_job(batch, flow, visible, records)
        except BatchFailedError:
            poison = {} if self.stopping() else find_poison(batch.slices, self._probe(flow, visible, records))
            if not poison:
                raise
        for (partition, offset), reason in poison.items():
            self.listener.event("record isolated", partition=str(partition), offset=offset, reason=reason)
        return self._run_job(batch, _without(flow, poison), visible, records)

    def _run_job(self, batch: Batch, flow: Flow, visible: pa.Schema, records: Records) -> Sequence[TaskReport]:
        with spark_errors(self.spark):
            return write_batch(records(batch.slices), flow, self.job.sql, visible)

    def _probe(self, flow: Flow, visible: pa.Schema, records: Records) -> Probe:
        def probe(slices: Sequence[Slice], poison: Poison) -> str | None:
            if self.stopping():
                raise TransientError("the search for the record that breaks a batch was interrupted by a stop")
            try:
                with spark_errors(self.spark):
                    source = records(slices) if slices else self._no_records()
                    probe_batch(source, _without(flow, poison), self.job.sql, visible)
            except BatchFailedError as failure:
                return failure.detail
            return None

        return probe

    def _no_records(self) -> Source:
        """A task for every core, none of which gets a record."""
        count = max(1, self.spark.sparkContext.defaultParallelism)
        return Source(self._session.range(0, count, 1, count), NoRecords(write_options(self.job, self.table.schema)))

    def _records(self, slices: Sequence[Slice]) -> Source:
        tasks_min = self.spark.sparkContext.defaultParallelism
        reader = self.log.source(slices, tasks_min, self.job.limits.arrow_batch_bytes_max)
        count = len(reader.pieces)
        return Source(self._session.range(0, count, 1, max(1, count)), reader, tasks=count)

    def _cut_batches(self, batch: Batch) -> None:
        """Where Spark cuts Arrow batches: by rows, as few as the largest record that the topics allow makes needful."""
        if self.job.sql is None:
            return
        largest = max(self.log.record_bytes_max(topic) for topic in {each.partition.topic for each in batch.slices})
        rows = rows_for(self.job.limits.arrow_batch_bytes_max, largest)
        self._session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", BYTES_UNBOUNDED)
        self._session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(rows))

    def _cut_batches_carefully(self) -> None:
        limit = str(self.job.limits.arrow_batch_bytes_max)
        self._session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", limit)
        self._session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(CAREFUL_ROWS_MAX))

    def _check_reports(self, batch: Batch, written: Written) -> None:
        self._checks.refuse_bad_record(written.first_error)
        self._checks.refuse_bad_share(written.total, written.reasons)
        for piece in batch.slices:
            self._checks.check_count(piece, written.counts_of(piece).read)

    def schemas(self) -> tuple[pa.Schema, pa.Schema, pa.Schema]:
        """What is decoded, what stands before `sql:`, and the table's columns, which others may have extended."""
        target = self.table.schema
        decoded = decoded_schema(self.job, target)
        return decoded, visible_schema(self.job, decoded), target

    def flow(self, batch: Batch, decoded: pa.Schema, target: pa.Schema) -> Flow:
        return replace(
            flow_of(self.job, batch, decoded, target, self.table.spec.partition_by), failpoint=self.failpoint
        )

    def added_columns(self, written: Written) -> bool:
        """Give the table the fields that records brought; those that cannot be columns are told and left out."""
        if self.job.on.new_column is not NewColumnPolicy.ADD or not written.new_fields:
            return False
        before, (decoded, _, _) = self.table.schema, self.schemas()
        types = column_types(written.new_fields, self.job.on.mixed_types)
        columns = addable(types, before.names, decoded.names)
        ignored = left_out(written.new_fields, columns)
        if ignored:
            self.listener.event("fields left out", fields=ignored, reason="they cannot be names of new columns")
        if not len(columns):
            return False
        self.table.add_columns(columns)
        self.listener.event("columns added", columns=new_paths(before, columns))
        return True


def decoded_schema(job: JobSpec, target: pa.Schema) -> pa.Schema:
    """What is decoded: the job's fields, and those of the table's columns that a JSON record may have."""
    if job.decode.format != "json" or (job.sql is not None and job.sql.select):
        return job.schema
    computed = {folded(name) for name in job.columns}
    # Records have fields under the names of the job; what others added, under the table's.
    return grown(job.schema, [each for each in target if folded(each.name) not in computed])


def flow_of(job: JobSpec, batch: Batch, decoded: pa.Schema, target: pa.Schema, partition_by: tuple[str, ...]) -> Flow:
    """What the tasks of a batch must know."""
    return Flow(
        job=job.name,
        batch_id=batch.id,
        decode=job.decode,
        decoded=decoded,
        columns=job.columns,
        on=job.on,
        table=write_options(job, target, partition_by),
        quarantine=quarantine_options(job),
        slices=named_slices(batch.slices),
        stated=job.schema,
    )


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


def quarantine_options(job: JobSpec) -> WriteOptions:
    return replace(write_options(job, QUARANTINE_SCHEMA), table_url=job.table.quarantine_path, open_writers_max=1)


def named_slices(slices: Sequence[Slice]) -> dict[PartitionKey, NamedSlice]:
    return {
        (each.partition.topic, each.partition.number): NamedSlice(each.partition.topic_id, each.start, each.end)
        for each in slices
    }


def _without(flow: Flow, poison: Poison) -> Flow:
    """The flow with these records set aside unseen, into quarantine."""
    found: dict[PartitionKey, dict[int, str]] = {}
    for (partition, offset), reason in poison.items():
        found.setdefault((partition.topic, partition.number), {})[offset] = reason
    return replace(flow, poison=found)
