"""The write step of a rollup: a batch of records becomes staged files of partials."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time

from pyspark.sql import SparkSession

from penstock.flow.compile import quarantine_options, write_options
from penstock.flow.stage import NamedSlice
from penstock.flow.write.report import REPORT_SCHEMA
from penstock.logs.log import Batch, Log
from penstock.tables.rollup.batch_task import PartialsFlow, partials_stage
from penstock.tables.rollup.schema import PARTIALS_GROUP_ROWS_MAX, written_schema
from penstock.tables.rollup.spec import RollupSpec
from penstock.tables.rollup.table import RollupTable
from penstock.tables.single.writer import TableWriter


class RollupWriter(TableWriter[PartialsFlow]):
    """Aggregates batches of one job to staged files of its partials."""

    read_bytes_min = 32 * 1024**2
    """Points are decoded fastest in large batches."""

    def __init__(self, spec: RollupSpec, table: RollupTable, spark: SparkSession, log: Log) -> None:
        super().__init__(table, spark, log, lambda records, flow: records.map(partials_stage(flow), REPORT_SCHEMA))
        self._spec = spec

    def flow(self, batch: Batch) -> PartialsFlow:
        spec, job = self._spec, self.job
        table = write_options(job, written_schema(spec.aggregates), ("day",))
        return PartialsFlow(
            job=job.name,
            batch_id=batch.id,
            decode=job.decode,
            columns={},
            on=job.on,
            slices={
                (item.partition.topic, item.partition.number): NamedSlice(item.partition.topic_id, item.start, item.end)
                for item in batch.slices
            },
            failpoint=self.environment.failpoint,
            finest=spec.finest,
            aggregates=spec.aggregates,
            earliest_ms=int(datetime.combine(spec.not_before, time(), UTC).timestamp() * 1000),
            latest_ms=int(self.environment.now() * 1000) + spec.future_cutoff_ms,
            table=replace(table, row_group_rows_max=PARTIALS_GROUP_ROWS_MAX),
            quarantine=quarantine_options(job, self.table.quarantine.url),
        )
