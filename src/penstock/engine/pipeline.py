"""The rounds of a job that writes one Delta table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from penstock.claims import Claims, StaticClaims
from penstock.engine.ownership import StartedTable
from penstock.engine.rounds import Context, JobRounds, answering_log
from penstock.environment import Environment
from penstock.events import Listener, NullListener
from penstock.failpoints import Failpoint
from penstock.flow.compile import visible_schema
from penstock.flow.sql import output_schema
from penstock.job.checks.spark import refuse_unshared
from penstock.job.spec import DeltaTableSpec, JobSpec, KafkaLogSpec, NewColumnPolicy, job_of
from penstock.lake.delta.provenance import provenance_of
from penstock.lake.delta.table import Table, open_or_create
from penstock.lake.proposal import Outcome, Proposal, SlicePart
from penstock.lake.state import TableWord
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.log import Batch, Partition
from penstock.spark.failures import spark_errors
from penstock.staging.reports import Written
from penstock.tables.delta.writer import BatchWriter
from penstock.tables.quarantine.replayed import TableRuns
from penstock.tables.quarantine.table import Quarantine, refuse_earlier_table


class Pipeline(JobRounds[Written]):
    """The five steps of one job over its log and its Delta table."""

    def __init__(
        self,
        job: JobSpec,
        spark: SparkSession,
        environment: Environment | None = None,
        listener: Listener | None = None,
        failpoint: Failpoint | None = None,
        claims: Claims | None = None,
        stopping: Callable[[], bool] = lambda: False,
        open_log: Callable[[KafkaLogSpec], KafkaLog] = KafkaLog,
    ) -> None:
        context = Context(
            environment or Environment(),
            listener or NullListener(),
            claims or StaticClaims(),
            failpoint,
            stopping,
            open_log,
        )
        refuse_unshared(job, spark.sparkContext.master)
        self.spark = spark
        with answering_log(job, context) as log:
            self.table = _open_table(job, spark, context.environment)
            super().__init__(job, context, log)
            self.writer = BatchWriter(job, spark, self.table, self.log, self.listener, failpoint, stopping)
            self.quarantine = Quarantine(job, self.table, self.environment)
            self.quarantine.finish_replay(TableRuns(self.table))
            self._learn_record_bytes()

    @property
    def stateful(self) -> StartedTable:
        return self.table

    def write(self, batch: Batch) -> Written | None:
        return self.writer.write(batch)

    def land(self, batch: Batch, tokens: Mapping[Partition, int], written: Written) -> Outcome:
        """The one act that makes rows visible and moves positions; a refused partition means another owner."""
        self._check_log(batch, written.marks)
        parts = tuple(
            SlicePart(
                piece,
                tokens[piece.partition],
                written.counts_of(piece),
                written.files_of(piece),
                written.quarantine_files_of(piece),
                written.mark_of(piece),
            )
            for piece in batch.slices
        )
        outcome = self.table.commit(Proposal(self.job.name, batch.id, parts), written.schema)
        self.reach("committed")
        if outcome.version is not None:
            self._learn(written)
            self.quarantine.append(outcome.accepted)
            self.reach("quarantined")
            self._tell(batch, outcome, written)
        self._heed(outcome.refused, len(parts))
        return outcome

    def settle(self, state: TableWord, *partitions: Partition) -> None:
        """Complete the quarantine of earlier commits of these partitions, whoever made them (RULES Q1)."""
        self.quarantine.append_missing({each: state.of(each).quarantine_mark for each in partitions})

    def _tell(self, batch: Batch, outcome: Outcome, written: Written) -> None:
        total = written.total
        self.listener.event(
            "batch committed",
            batch=batch.id,
            version=outcome.version,
            read=total.read,
            written=total.written,
            quarantined=total.quarantined,
            filtered=total.filtered,
            files=len(written.files),
            size_bytes=written.size_bytes,
            seconds=round(self.environment.now() - written.staged_at, 3),
        )

    def _learn(self, written: Written) -> None:
        if written.total.written:
            self.seen.record_bytes = written.size_bytes / written.total.written

    def _learn_record_bytes(self) -> None:
        """Take the size of a record from the newest commit that has one."""
        for record in self.table.handle.history(20):
            ours = provenance_of(record)
            if ours is not None and ours.rows:
                self.seen.record_bytes = ours.size_bytes / ours.rows
                return


def _open_table(job: JobSpec, spark: SparkSession, environment: Environment) -> Table:
    visible = visible_schema(job, job.schema)
    with spark_errors(spark):
        schema = output_schema(spark, visible, job.sql) if job.sql else visible
    policy = job.on.new_column
    if job.sql and job.sql.select:
        policy = NewColumnPolicy.ADD
    refuse_earlier_table(job, environment)
    return open_or_create(job_of(job, DeltaTableSpec).table, job.name, schema, policy, environment)
