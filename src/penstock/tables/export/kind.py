"""The kind `export`: mixed event types of one log into a folder or table per type and day."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from penstock.environment import Environment
from penstock.errors import UserError, did_you_mean
from penstock.job.spec import JobSpec, job_of
from penstock.lake.delta.compact import compact as compact_table
from penstock.lake.maintenance.compaction import Progress
from penstock.lake.maintenance.reports import CompactReport, Dropped, VacuumReport
from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Proof
from penstock.proof.subject import Depth
from penstock.spark.delta_spark import delta_frame, spark_path
from penstock.spark.failures import spark_errors
from penstock.status.model import DayAnswer, JobStatus
from penstock.tables.export.compact import compact as compact_files
from penstock.tables.export.delta_types import open_export
from penstock.tables.export.proof.verification import prove_export
from penstock.tables.export.rebuild.rebuild import RebuildReport, rebuild
from penstock.tables.export.section.section import ExportSection
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.status.day_answers import day_answers
from penstock.tables.export.status.metrics import METRICS, ExportMeter
from penstock.tables.export.status.status import export_status
from penstock.tables.export.table import ExportTable
from penstock.tables.export.vacuum import drop_lost_files, vacuum
from penstock.tables.export.writer import ExportWriter
from penstock.tables.kind import CompactWish, ReadWish, VacuumWish
from penstock.tables.quarantine.discard import Listings
from penstock.tables.quarantine.table import open_quarantine, refuse_earlier_life


class ExportKind:
    name = ExportSpec.kind
    section = ExportSection()
    steps = (
        "entry_written", "removing", "removed", "renaming", "renamed", "snapshot_written", "type_landed", "marked",
    )  # fmt: skip
    metrics = METRICS

    def meter(self) -> ExportMeter:
        return ExportMeter()

    def summary(self, job: JobSpec) -> str:
        export = job_of(job, ExportSpec).table
        return f"export of {len(export.types)} types as {export.format}"

    def open_writer(self, job: JobSpec, spark: SparkSession, log: Log, environment: Environment) -> ExportWriter:
        files = open_export(job_of(job, ExportSpec), environment)
        refuse_earlier_life(job, files.state().life, open_quarantine(job, environment))
        files.agree_on_types()
        return ExportWriter(files, spark, log)

    def prove(self, job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
        return prove_export(job_of(job, ExportSpec), depth, open_log)

    def status(self, job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
        return export_status(job_of(job, ExportSpec), open_log, now)

    def day_answers(self, job: JobSpec, day: str, types: Sequence[str]) -> Sequence[DayAnswer]:
        return day_answers(job_of(job, ExportSpec), day, types)

    def compact(
        self, job: JobSpec, wish: CompactWish, environment: Environment, progress: Progress | None
    ) -> CompactReport:
        """Merge small files of closed days, or of all days but the newest; in Delta tables of any day."""
        mine = job_of(job, ExportSpec)
        if mine.table.format == "delta":
            size = wish.target_bytes or mine.table.compact_bytes
            report = CompactReport()
            for table in open_export(mine, environment).type_tables():
                report += compact_table(table, size, progress, wish.effort.after(report.size_bytes_before))
            return report
        files = existing(mine, environment)
        return compact_files(files, wish.target_bytes, all_days=wish.all_days, progress=progress, effort=wish.effort)

    def vacuum(self, job: JobSpec, wish: VacuumWish, environment: Environment) -> VacuumReport:
        """Delete dead files; only where types have no tables of their own, the ledger alone knows which they are."""
        mine = job_of(job, ExportSpec)
        needs_ledger = mine.table.format == "parquet" or wish.drop_lost
        table = existing(mine, environment) if needs_ledger else open_export(mine, environment)
        lost = drop_lost_files(table, dry_run=wish.dry_run) if wish.drop_lost else ()
        report = vacuum(table, dry_run=wish.dry_run)
        return replace(report, dropped=tuple(Dropped(each.type, each.target, each.rows) for each in lost))

    def read(self, job: JobSpec, spark: SparkSession, wish: ReadWish) -> DataFrame:
        """All days of a type, each row with its day."""
        wish.refuse_keys(f"the export {job.name}")
        export, name = job_of(job, ExportSpec).table, wish.type
        if name not in export.all_types:
            asked = "needs a type" if name is None else f"has no type {name}"
            hint = did_you_mean(name or "", export.all_types) or f"types: {', '.join(export.all_types)}"
            raise UserError(f"the export {job.name} {asked}", hint=hint)
        path = f"{export.path.rstrip('/')}/{name}"
        if export.format == "delta":
            return delta_frame(spark, path)
        with spark_errors(spark):
            return spark.read.option("mergeSchema", "true").parquet(spark_path(path))

    def rebuild(self, job: JobSpec, log: Log, environment: Environment) -> RebuildReport:
        mine = job_of(job, ExportSpec)
        if mine.table.format != "parquet":
            raise UserError(
                f"the job {job.name} keeps its types in Delta tables",
                hint="this command is for exports in the format parquet",
            )
        return rebuild(open_export(mine, environment), log.bounds(log.partitions()))

    def listings(self, job: JobSpec, environment: Environment) -> Listings:
        files = open_export(job_of(job, ExportSpec), environment)
        return files.listings(files.state())


def existing(job: JobSpec[ExportSpec], environment: Environment) -> ExportTable:
    """The job's files with their ledger; one that is missing is the user's to create or to rebuild."""
    table = open_export(job, environment)
    if table.state().number == 0:
        raise UserError(
            f"there is no ledger of the job {job.name} at {job.table.path}",
            hint="`penstock run` creates it; `penstock verify --rebuild` makes a lost one again from the files",
        )
    table.refuse_other_names()
    return table
