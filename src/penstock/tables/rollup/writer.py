"""The write step of a rollup: a batch of records becomes staged files of partials."""

from __future__ import annotations

from pyspark.sql import SparkSession

from penstock.flow.write.report import REPORT_SCHEMA
from penstock.logs.log import Batch, Log
from penstock.tables.rollup.batch_task import PartialsFlow, partials_flow, partials_stage
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
        return partials_flow(self._spec, self.job, batch, self.environment, self.table.quarantine.url)
