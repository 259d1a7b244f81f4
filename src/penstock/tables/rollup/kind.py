"""The kind `rollup`: points of metrics aggregated in windows of event time, and published if the job requests it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.job.spec import JobSpec, job_of
from penstock.lake.compaction import Progress
from penstock.lake.delta.compact import compact
from penstock.lake.delta.table import DeltaLog
from penstock.lake.reports import CompactReport, VacuumReport
from penstock.logs.log import Log, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Proof
from penstock.proof.subject import Depth
from penstock.publish.output import PUBLISH_STEPS
from penstock.quarantine.table import Listings
from penstock.reporting.metrics import Meter
from penstock.reporting.model import JobStatus
from penstock.tables.kind import CompactRequest, Kind, RecordRows, VacuumRequest
from penstock.tables.rollup.closing import compact_partials, windows_rules
from penstock.tables.rollup.events import METRICS, metric_changes
from penstock.tables.rollup.proof.verification import prove_rollup
from penstock.tables.rollup.publishing import check_publishing
from penstock.tables.rollup.spec import RollupSpec, partials_job
from penstock.tables.rollup.status import rollup_status
from penstock.tables.rollup.table import open_tables
from penstock.tables.rollup.writer import RollupWriter
from penstock.tables.single.table import SingleKind, existing_table, vacuum

STEPS = ("close_begun", "close_staged", "close_landed", *PUBLISH_STEPS, "cleaned")


class RollupKind(SingleKind):
    """Metrics in windows."""

    name = RollupSpec.kind
    spec = RollupSpec
    steps = STEPS
    metrics = METRICS

    def meter(self) -> Meter:
        return metric_changes

    def open_writer(self, job: JobSpec, spark: SparkSession, log: Log, environment: Environment) -> RollupWriter:
        rollup = job_of(job, RollupSpec)
        check_publishing(rollup, environment)
        return RollupWriter(rollup.table, open_tables(rollup, spark, log, environment), spark, log)

    def prove(self, job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
        return prove_rollup(job_of(job, RollupSpec), depth, open_log)

    def status(self, job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
        return rollup_status(job_of(job, RollupSpec), open_log, now)

    def data_tables(self, job: JobSpec) -> Mapping[str, DeltaLog]:
        return super().data_tables(replace(job, table=job_of(job, RollupSpec).table.windows_place))

    def compact(
        self, job: JobSpec, request: CompactRequest, environment: Environment, progress: Progress | None
    ) -> CompactReport:
        request.refuse_all_days(f"{job.name} is a rollup: run without it")
        rollup, target_bytes = job_of(job, RollupSpec), request.target_bytes or job.flush.min_bytes_per_file
        report = compact(_windows_table(job, environment), target_bytes, progress, request.effort)
        partials = existing_table(partials_job(rollup), environment)
        return report + compact_partials(partials, rollup.table, request.effort.after(report.size_bytes_before))

    def vacuum(self, job: JobSpec, request: VacuumRequest, environment: Environment) -> VacuumReport:
        partials = existing_table(partials_job(job_of(job, RollupSpec)), environment)
        return vacuum(partials, dry_run=request.dry_run, alongside=[(_windows_table(job, environment), windows_rules)])

    def record_rows(self, job: JobSpec, piece: Slice, records: Sequence[pa.RecordBatch]) -> RecordRows:
        return RecordRows(note="A window sums up many records: no row is that of one record")

    def listings(self, job: JobSpec, environment: Environment) -> Listings | None:
        return super().listings(partials_job(job_of(job, RollupSpec)), environment)


KIND: Kind = RollupKind()


def _windows_table(job: JobSpec, environment: Environment) -> DeltaLog:
    return existing_table(replace(job, table=job_of(job, RollupSpec).table.windows_place), environment)
