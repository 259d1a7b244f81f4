"""The kind `delta`: one Delta table for all records of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.lake.delta.compact import compact
from penstock.lake.delta.table import Table, open_or_create
from penstock.lake.maintenance.compaction import Progress
from penstock.lake.maintenance.reports import CompactReport, VacuumReport
from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Proof
from penstock.proof.sources import Depth
from penstock.status.metrics import Meter, Metric
from penstock.status.model import DayAnswer, JobStatus
from penstock.tables.delta.proof import prove_table
from penstock.tables.delta.section import DeltaSection
from penstock.tables.delta.spec import DeltaSpec
from penstock.tables.kind import CompactWish, RebuildReport, VacuumWish
from penstock.tables.quarantine.discard import Listings
from penstock.tables.quarantine.table import open_quarantine, refuse_earlier_table
from penstock.tables.single.status import table_status
from penstock.tables.single.table import SingleTable, existing_table, table_listings
from penstock.tables.single.vacuum import vacuum
from penstock.tables.single.writer import SingleWriter, row_columns


class DeltaKind:
    """One Delta table for all records of a job."""

    name = DeltaSpec.kind
    section = DeltaSection()
    steps = ()
    metrics: tuple[Metric, ...] = ()

    def meter(self) -> Meter:
        return lambda event: ()

    def summary(self, job: JobSpec) -> str:
        return self.name

    def open_writer(self, job: JobSpec, spark: SparkSession, log: Log, environment: Environment) -> SingleWriter:
        return SingleWriter(SingleTable(job, _created(job, spark, environment), environment), spark, log)

    def prove(self, job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
        return prove_table(job, depth, open_log)

    def status(self, job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
        return table_status(job, open_log, now)

    def day_answers(self, job: JobSpec, day: str, types: Sequence[str]) -> Sequence[DayAnswer]:
        raise UserError(f"the table of {job.name} has no days", hint="--day is for tables that are kept by day")

    def compact(
        self, job: JobSpec, wish: CompactWish, environment: Environment, progress: Progress | None
    ) -> CompactReport:
        if wish.all_days:
            raise UserError("--all-days is for exports", hint=f"the table of {job.name} has no days")
        size = wish.target_bytes or job.flush.min_bytes_per_file
        return compact(existing_table(job, environment), size, progress)

    def vacuum(self, job: JobSpec, wish: VacuumWish, environment: Environment) -> VacuumReport:
        if wish.drop_lost:
            raise UserError("--drop-lost is for exports", hint=f"the files of {job.name} are never moved")
        table = existing_table(job, environment)
        return vacuum(table, open_quarantine(job, environment), dry_run=wish.dry_run)

    def rebuild(self, job: JobSpec, log: Log, environment: Environment) -> RebuildReport:
        raise UserError(f"the job {job.name} has no ledger", hint="--rebuild is for tables with a ledger")

    def listings(self, job: JobSpec, environment: Environment) -> Listings:
        return table_listings(job, environment)


def _created(job: JobSpec, spark: SparkSession, environment: Environment) -> Table:
    """The table with at least the job's columns."""
    schema, policy = row_columns(job, spark)
    refuse_earlier_table(job, environment)
    return open_or_create(job.table, job.name, schema, policy, environment)
