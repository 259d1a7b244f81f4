"""The kind `export`: mixed event types of one log into a folder or table per type and day."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.environment import Environment
from penstock.errors import TransientError, UserError, did_you_mean
from penstock.job.spec import JobSpec, job_of
from penstock.lake.compaction import Progress
from penstock.lake.delta.table import DeltaLog
from penstock.lake.reports import CompactReport, VacuumReport
from penstock.logs.log import Log, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Proof
from penstock.proof.subject import Depth
from penstock.quarantine.replay import finish_replay
from penstock.quarantine.table import Listings, Quarantine
from penstock.reporting.metrics import Meter
from penstock.reporting.model import DayAnswer, JobStatus
from penstock.spark.delta_spark import delta_frame, spark_path
from penstock.spark.failures import spark_errors
from penstock.tables.export.export import Export, ExportTable
from penstock.tables.export.finishing import refuse_unnamed_files
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.monitoring import METRICS, meter
from penstock.tables.export.proof import prove_export
from penstock.tables.export.rebuild import rebuild
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.status import day_answers, export_status
from penstock.tables.export.upkeep import compact, listings, vacuum
from penstock.tables.export.writer import ExportRuns, ExportWriter
from penstock.tables.kind import CompactRequest, Kind, ReadRequest, RebuildReport, RecordRows, VacuumRequest
from penstock.tables.single.record_rows import placed_rows


class ExportKind:
    name = ExportSpec.kind
    spec = ExportSpec
    steps = ("type_committed", "removing", "removed", "renaming", "renamed", "marked", "replay_begun")
    metrics = METRICS

    def meter(self) -> Meter:
        return meter

    def open_writer(self, job: JobSpec, spark: SparkSession, log: Log, environment: Environment) -> ExportWriter:
        logs = ExportLogs(job_of(job, ExportSpec), environment)
        refuse_unnamed_files(logs)
        logs.agree_on_types()
        quarantine = Quarantine(job, logs.job_log, environment)
        export = Export(logs, quarantine)
        with suppress(TransientError):
            # A type that cannot be written does not stop the others: the next replay finishes the run.
            finish_replay(ExportRuns(export), quarantine.table())
        return ExportWriter(export, spark, log)

    def prove(self, job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
        return prove_export(job_of(job, ExportSpec), depth, open_log)

    def status(self, job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
        return export_status(job_of(job, ExportSpec), open_log, now)

    def data_tables(self, job: JobSpec) -> Mapping[str, DeltaLog]:
        """One log per type."""
        return ExportLogs(job_of(job, ExportSpec), Environment()).type_logs()

    def day_answers(self, job: JobSpec, day: str, types: Sequence[str]) -> Sequence[DayAnswer]:
        return day_answers(job_of(job, ExportSpec), day, types)

    def compact(
        self, job: JobSpec, request: CompactRequest, environment: Environment, progress: Progress | None
    ) -> CompactReport:
        table = existing(job_of(job, ExportSpec), environment)
        target_bytes = request.target_bytes or job.flush.min_bytes_per_file
        return compact(table, target_bytes, all_days=request.all_days, progress=progress, effort=request.effort)

    def vacuum(self, job: JobSpec, request: VacuumRequest, environment: Environment) -> VacuumReport:
        return vacuum(existing(job_of(job, ExportSpec), environment), dry_run=request.dry_run)

    def read(self, job: JobSpec, spark: SparkSession, request: ReadRequest) -> DataFrame:
        """All days of a type, each row with its day."""
        request.refuse_keys(f"the export {job.name}")
        export, name = job_of(job, ExportSpec).table, request.type
        if name not in export.types:
            asked = "needs a type" if name is None else f"has no type {name}"
            hint = did_you_mean(name or "", export.types) or f"types: {', '.join(export.types)}"
            raise UserError(f"the export {job.name} {asked}", hint=hint)
        path = f"{export.path.rstrip('/')}/{name}"
        if export.format == "delta":
            return delta_frame(spark, path)
        with spark_errors(spark):
            return spark.read.option("mergeSchema", "true").parquet(spark_path(path))

    def record_rows(self, job: JobSpec, piece: Slice, records: Sequence[pa.RecordBatch]) -> RecordRows:
        logs = ExportLogs(job_of(job, ExportSpec), Environment())
        return placed_rows(job, piece, logs.type_logs().items())

    def rebuild(self, job: JobSpec, log: Log, environment: Environment) -> RebuildReport:
        return rebuild(ExportLogs(job_of(job, ExportSpec), environment), log.partitions())

    def listings(self, job: JobSpec, environment: Environment) -> Listings | None:
        table = ExportTable(ExportLogs(job_of(job, ExportSpec), environment))
        return None if table.logs.find_job_log() is None else listings(table)


KIND: Kind = ExportKind()


def existing(job: JobSpec[ExportSpec], environment: Environment) -> ExportTable:
    """The export with its logs. Raises if they are missing: the user creates or restores them."""
    logs = ExportLogs(job, environment)
    logs.job_log.refresh()
    refuse_unnamed_files(logs)
    return ExportTable(logs)
