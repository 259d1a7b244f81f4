"""The Spark job of a batch: run it, find the records that break it, and check its reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession

from penstock.environment import Environment
from penstock.errors import TransientError
from penstock.events import FieldsLeftOut, RecordIsolated
from penstock.flow.compile import NoRecords, RecordFrame
from penstock.flow.stage import TaskFlow
from penstock.flow.write.manifest import PartitionKey
from penstock.flow.write.report import TaskReport
from penstock.job.spec import JobSpec
from penstock.logs.log import Batch, Log, PieceSource, Slice
from penstock.spark.failures import BatchFailedError, spark_errors
from penstock.staging.isolate import Poison, Probe, find_poison
from penstock.staging.read_checks import ReadChecks
from penstock.staging.reports import Gathered, gather

CAREFUL_ROWS_MAX = 10_000

F = TypeVar("F", bound=TaskFlow)
Compile = Callable[[RecordFrame, F], DataFrame]
"""Makes the Spark job whose rows are the reports of its tasks."""
Records = Callable[[Sequence[Slice]], RecordFrame]
"""Gives the records of slices, from the log or from quarantine."""


@dataclass(frozen=True, slots=True)
class LogRecords:
    """Reads slices from the log; the same slices in the same pieces, even if the number of cores changes."""

    session: SparkSession
    log: Log
    tasks_min: int
    batch_bytes: int

    def source(self, slices: Sequence[Slice]) -> PieceSource:
        return self.log.source(slices, self.tasks_min, self.batch_bytes)

    def __call__(self, slices: Sequence[Slice]) -> RecordFrame:
        source = self.source(slices)
        count = len(source.pieces)
        return RecordFrame(self.session.range(0, count, 1, max(1, count)), source, tasks=count)


class BatchJob(Generic[F]):
    """Runs the batches of one job."""

    def __init__(
        self, job: JobSpec, spark: SparkSession, log: Log, environment: Environment, compiled: Compile[F]
    ) -> None:
        self._job = job
        self._spark = spark
        self._log = log
        self._listener = environment.listener
        self._stopping = environment.stopping
        self._compiled = compiled
        self.checks = ReadChecks(job, log)

    @cached_property
    def session(self) -> SparkSession:
        """A session of its own: the size of Arrow batches is set for each batch, for this job only."""
        with spark_errors(self._spark):
            return self._spark.newSession()

    def log_records(self, batch_bytes: int) -> LogRecords:
        """What reads slices from the log, in Arrow batches of so many bytes."""
        with spark_errors(self._spark):
            return LogRecords(self.session, self._log, self._spark.sparkContext.defaultParallelism, batch_bytes)

    def run(self, batch: Batch, flow: F, records: Records, types: Sequence[str] = ()) -> Gathered:
        """Run the Spark job, and again if new fields of these types are in too few records to become columns."""
        gathered, on = self._run(batch, flow, records), flow.on
        while on.new_column == "add" and (rare := gathered.rare_fields(types, on.new_column_share)):
            reason = f"in less than {on.new_column_share:g} of the records of a batch: these records are quarantined"
            # A rare object is listed by what is in it; so is a known one that has new members.
            around = {path[:depth] for path in rare for depth in range(len(path))}
            for name in types:
                fields = sorted(".".join(path) for of_type, *path in rare - around if of_type == name)
                if fields:
                    self._listener.event(FieldsLeftOut(fields=fields, reason=reason, type=name or None))
            on = replace(on, rare_fields=on.rare_fields | rare)
            gathered = self._run(batch, replace(flow, on=on), records)
        return gathered

    def _run(self, batch: Batch, flow: F, records: Records) -> Gathered:
        """Records that break it are found and sent to quarantine, the rest runs again."""
        try:
            return gather(self._reports(batch, flow, records))
        except BatchFailedError:
            if self._stopping():
                raise
        with spark_errors(self._spark):
            self._cut_batches_carefully()
        try:
            return gather(self._reports(batch, flow, records))
        except BatchFailedError:
            poison = {} if self._stopping() else find_poison(batch.slices, self._probe(flow, records))
            if not poison:
                raise
        for (partition, offset), reason in poison.items():
            self._listener.event(RecordIsolated(partition=str(partition), offset=offset, reason=reason))
        return gather(self._reports(batch, _without(flow, poison), records))

    def _reports(self, batch: Batch, flow: F, records: Records) -> list[TaskReport]:
        """Run it, and once more without the records from which `sql:` made rows that cannot be written."""
        with spark_errors(self._spark):
            source = records(batch.slices)
            reports = source.reports(self._compiled(source, flow))
            if not any(report.refused for report in reports):
                return reports
            poison = {key: dict(bad) for key, bad in flow.poison.items()}
            for report in reports:
                for key, bad in report.refused.items():
                    poison.setdefault(key, {}).update(bad)
            return source.reports(self._compiled(source, replace(flow, poison=poison)))

    def _probe(self, flow: F, records: Records) -> Probe:
        dry = replace(flow, dry=True, failpoint=None)

        def probe(slices: Sequence[Slice], poison: Poison) -> str | None:
            if self._stopping():
                raise TransientError("the search for the record that breaks a batch was interrupted by a stop")
            try:
                with spark_errors(self._spark):
                    source = records(slices) if slices else self._no_records()
                    source.reports(self._compiled(source, _without(dry, poison)))
            except BatchFailedError as failure:
                return failure.detail
            return None

        return probe

    def _no_records(self) -> RecordFrame:
        """A task for every core, without records."""
        count = max(1, self._spark.sparkContext.defaultParallelism)
        table = self._job.table
        return RecordFrame(self.session.range(0, count, 1, count), NoRecords(table.path, dict(table.storage_options)))

    def _cut_batches_carefully(self) -> None:
        limit = str(self._job.limits.arrow_batch_bytes_max)
        self.session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", limit)
        self.session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(CAREFUL_ROWS_MAX))


def _without(flow: F, poison: Poison) -> F:
    """The flow that puts these records into quarantine without decoding them."""
    reasons: dict[PartitionKey, dict[int, str]] = {}
    for (partition, offset), reason in poison.items():
        reasons.setdefault((partition.topic, partition.number), {})[offset] = reason
    return replace(flow, poison=reasons)
