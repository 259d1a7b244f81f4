"""The write step: one Spark job that turns a batch into staged files and counts, and what can go wrong in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.engine.events import Listener
from penstock.engine.isolate import POISON_PER_BATCH_MAX, find_poison
from penstock.engine.read_checks import ReadChecks
from penstock.engine.reports import Written, gather
from penstock.engine.task_errors import task_error
from penstock.errors import PenstockError, TransientError, UserError
from penstock.failpoints import Failpoint
from penstock.flow.compile import Source, probe_batch, visible_schema, write_batch
from penstock.flow.manifest import PartitionKey, TaskReport
from penstock.flow.new_fields import addable
from penstock.flow.quarantine import QUARANTINE_SCHEMA
from penstock.flow.task import Flow, NamedSlice
from penstock.flow.write import WriteOptions
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.log.batches import gathered
from penstock.log.kafka import KafkaLog
from penstock.log.offsets import Batch, Partition, Slice
from penstock.log.reader import PieceReader
from penstock.log.sizes import rows_for
from penstock.log.source import read_batch, source_error
from penstock.tables.delta.table import Table

BYTES_UNBOUNDED = str(2**31 - 1)
"""With this very number Spark does not measure batches at all."""
CAREFUL_ROWS_MAX = 10_000


class BatchFailedError(TransientError):
    """The Spark job of a batch failed for a reason that is not the log's."""


Records = Callable[[Sequence[Slice]], Source]
"""Reads the records of slices, from the log or from quarantine."""


class BatchWriter:
    """Writes batches of one job to staged files of its table."""

    def __init__(
        self,
        job: JobSpec,
        spark: SparkSession,
        table: Table,
        log: KafkaLog,
        listener: Listener,
        failpoint: Failpoint | None,
        stopping: Callable[[], bool],
    ) -> None:
        self.job = job
        self.spark = spark
        self.table = table
        self.log = log
        self.listener = listener
        self.failpoint = failpoint
        self.stopping = stopping
        self._checks = ReadChecks(job, log)
        # A session of its own: how Arrow batches are cut is decided batch by batch, for this job only.
        self._session = spark.newSession()

    def write(self, batch: Batch) -> Written | None:
        """Run the batch's Spark job. None if the table first had to take new columns: the batch is planned again."""
        started_at = self.table.environment.now()
        decoded, visible, target = self.schemas()
        flow = self.flow(batch, decoded, target)
        self._cut_batches(batch)
        reports = self.run_flow(batch, flow, visible, self._records)
        written = gather(batch, reports, started_at, target)
        self._check_reports(batch, written)
        return None if self.added_columns(written) else written

    def run_flow(self, batch: Batch, flow: Flow, visible: pa.Schema, records: Records) -> Sequence[TaskReport]:
        """Run the Spark job; a record that breaks it is found and sent to quarantine, the rest runs again."""
        reason = ""
        for attempt in range(POISON_PER_BATCH_MAX):
            try:
                return write_batch(records(batch.slices), flow, self.job.sql, visible)
            except (PySparkException, Py4JError) as error:
                failure = self._spark_error(error)
            if attempt == 0 and isinstance(failure, BatchFailedError) and not self.stopping():
                self._cut_batches_carefully()
                continue
            found = self._find_poison(batch, flow, visible, records, failure)
            partition, offset, reason = found
            self.listener.event("record isolated", partition=str(partition), offset=offset, reason=reason)
            key = (partition.topic, partition.number)
            flow = replace(flow, poison={**flow.poison, key: {**flow.poison.get(key, {}), offset: reason}})
        raise UserError(
            f"more than {POISON_PER_BATCH_MAX} records of one batch break its Spark job",
            detail=reason,
            hint="use functions that return null instead of failing, such as try_cast and try_divide",
        )

    def _find_poison(
        self, batch: Batch, flow: Flow, visible: pa.Schema, records: Records, error: PenstockError
    ) -> tuple[Partition, int, str]:
        """The record that broke the job; if it was none, the job's own error is raised."""

        def probe(slices: Sequence[Slice]) -> str | None:
            try:
                probe_batch(records(slices), flow, self.job.sql, visible)
            except (PySparkException, Py4JError) as failure:
                source = source_error(failure)
                if source is not None:
                    raise source from failure
                return last_cause(failure)
            return None

        if not isinstance(error, BatchFailedError) or self.stopping():
            raise error
        found = find_poison(batch.slices, probe)
        if found is None:
            raise error
        return found

    def _records(self, slices: Sequence[Slice]) -> Source:
        tasks_min = self.spark.sparkContext.defaultParallelism
        if self.job.log.reader == "spark":
            frame = read_batch(self._session, self.job.log, slices, tasks_min, True)
            return Source(frame, partial(gathered, bytes_max=self.job.limits.arrow_batch_bytes_max))
        reader = PieceReader.of(self.job.log, slices, tasks_min, self.job.limits.arrow_batch_bytes_max)
        count = len(reader.pieces)
        return Source(self._session.range(0, count, 1, max(1, count)), reader)

    def _cut_batches(self, batch: Batch) -> None:
        """Where Spark cuts Arrow batches: by rows, as few as the largest record that the topics allow makes needful."""
        if self.job.log.reader != "spark" and self.job.sql is None:
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
        for piece in batch.slices:
            self._checks.check_count(piece, written.counts_of(piece).read)

    def schemas(self) -> tuple[pa.Schema, pa.Schema, pa.Schema]:
        """What is decoded, what stands before `sql:`, and the table's columns, which others may have extended."""
        target = self.table.schema
        decoded = self.job.schema
        if self.job.sql is None or not self.job.sql.select:
            known = {name.lower() for name in [*decoded.names, *self.job.columns]}
            if self.job.decode.format == "json":
                decoded = pa.schema([*decoded, *(each for each in target if each.name.lower() not in known)])
        return decoded, visible_schema(self.job, decoded), target

    def flow(self, batch: Batch, decoded: pa.Schema, target: pa.Schema) -> Flow:
        return Flow(
            batch_id=batch.id,
            decode=self.job.decode,
            decoded=decoded,
            columns=self.job.columns,
            on=self.job.on,
            table=write_options(self.job, target),
            quarantine=quarantine_options(self.job),
            slices=named_slices(batch.slices),
            failpoint=self.failpoint,
        )

    def _spark_error(self, error: Exception) -> PenstockError:
        return (
            source_error(error)
            or task_error(error)
            or BatchFailedError(
                "the Spark job of a batch failed", detail=last_cause(error), hint="the batch will be planned again"
            )
        )

    def added_columns(self, written: Written) -> bool:
        """Give the table the fields that records brought; those that cannot be columns are told and left out."""
        if self.job.on.new_column is not NewColumnPolicy.ADD or not written.new_fields:
            return False
        columns = addable(written.new_fields, self.table.schema.names)
        ignored = sorted(written.new_fields.keys() - set(columns.names))
        if ignored:
            self.listener.event("fields left out", fields=ignored, reason="they cannot be names of new columns")
        if not len(columns):
            return False
        self.table.add_columns(columns)
        self.listener.event("columns added", columns=columns.names)
        return True


def write_options(job: JobSpec, schema: pa.Schema) -> WriteOptions:
    return WriteOptions(
        table_url=job.table.path,
        storage_options=dict(job.table.storage_options),
        schema=schema,
        partition_by=job.table.partition_by,
        open_writers_max=job.limits.open_writers_max,
        row_group_bytes_max=job.limits.row_group_bytes_max,
        row_group_rows_max=job.flush.max_messages_per_batch,
    )


def quarantine_options(job: JobSpec) -> WriteOptions:
    return replace(
        write_options(job, QUARANTINE_SCHEMA), table_url=job.table.quarantine_path, partition_by=(), open_writers_max=1
    )


def named_slices(slices: Sequence[Slice]) -> dict[PartitionKey, NamedSlice]:
    return {
        (each.partition.topic, each.partition.number): NamedSlice(each.partition.topic_id, each.start, each.end)
        for each in slices
    }


def last_cause(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error" in line or "Exception" in line]
    # Python's traceback ends with its error; Spark's message begins with it and goes on with the place in the query.
    return (causes[-1] if causes else lines[0] if lines else "no message")[:500]
