"""The write step of a rollup: a batch of records becomes staged files of partials."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from penstock.flow.compile import RecordFrame
from penstock.flow.write.report import REPORT_SCHEMA
from penstock.job.spec import JobSpec
from penstock.logs.log import Batch, Log
from penstock.staging.batch_job import BatchJob, Records
from penstock.staging.reports import Written, check_conserved
from penstock.tables.rollup.batch_task import PartialsFlow, partials_flow, partials_stage
from penstock.tables.rollup.spec import RollupSpec
from penstock.tables.rollup.table import RollupTable
from penstock.tables.single.writer import TableTarget

READ_BYTES_MIN = 32 * 1024**2
"""Records that are read together: points are decoded fastest in large batches."""


class RollupWriter:
    """Aggregates batches of one job to staged files of its partials."""

    def __init__(self, job: JobSpec[RollupSpec], table: RollupTable, spark: SparkSession, log: Log) -> None:
        self.job = job
        self.table = table
        self.spark = spark
        self._environment = table.environment
        self._batch_job = BatchJob(table.job, spark, log, table.environment, _partials_frame)

    def stage(self, batch: Batch) -> Written:
        records = self._batch_job.log_records(max(READ_BYTES_MIN, self.job.limits.arrow_batch_bytes_max))
        return self._written(batch, self.flow(batch), records)

    def replay_target(self) -> TableTarget:
        return TableTarget(self.table, self.spark, self._replay)

    def _replay(self, batch: Batch, run: int, records: Records) -> Written:
        flow = self.flow(batch)
        return self._written(batch, replace(flow, replay_run=run), records)

    def _written(self, batch: Batch, flow: PartialsFlow, records: Records) -> Written:
        started_at = self._environment.now()
        result = self._batch_job.run(batch, flow, records)
        if flow.replay_run is None:
            self._batch_job.checks.check(batch, result)
        check_conserved(flow, result)
        return Written(result, started_at, flow.table.schema)

    def flow(self, batch: Batch) -> PartialsFlow:
        """The input of the tasks of a batch."""
        return partials_flow(self.job, batch, self._environment, self.table.quarantine.url)


def _partials_frame(records: RecordFrame, flow: PartialsFlow) -> DataFrame:
    return records.map(partials_stage(flow), REPORT_SCHEMA)
