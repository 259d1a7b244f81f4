"""The kind `delta`: one Delta table for all records of a job."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.job.kafka_types import place_columns
from penstock.job.spec import JobSpec
from penstock.lake.compaction import Progress
from penstock.lake.delta.compact import compact
from penstock.lake.delta.opening import open_or_create
from penstock.lake.reports import CompactReport
from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Proof
from penstock.proof.subject import Depth
from penstock.reporting.model import JobStatus
from penstock.tables.delta.proof import prove_table
from penstock.tables.delta.spec import DeltaSpec
from penstock.tables.kind import CompactRequest, Kind
from penstock.tables.single.facts import table_status
from penstock.tables.single.table import SingleKind, SingleTable, existing_table
from penstock.tables.single.writer import SingleWriter, row_columns


class DeltaKind(SingleKind):
    name = DeltaSpec.kind
    spec = DeltaSpec

    def open_writer(self, job: JobSpec, spark: SparkSession, log: Log, environment: Environment) -> SingleWriter:
        schema, policy = row_columns(job, spark)
        # The policy is about fields of records: a table that was created without place columns gets them anyway.
        place = [name for _, name in place_columns(job.columns, job.sql.select if job.sql is not None else ())]
        data = open_or_create(job.table, job.name, schema, policy, environment, place)
        return SingleWriter(SingleTable(job, data, environment), spark, log)

    def prove(self, job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
        return prove_table(job, depth, open_log)

    def status(self, job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
        return table_status(job, open_log, now)

    def compact(
        self, job: JobSpec, request: CompactRequest, environment: Environment, progress: Progress | None
    ) -> CompactReport:
        request.refuse_all_days(f"the table of {job.name} has no days")
        size = request.target_bytes or job.flush.min_bytes_per_file
        return compact(existing_table(job, environment), size, progress, request.effort)


KIND: Kind = DeltaKind()
