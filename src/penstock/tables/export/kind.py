"""The kind `export`: mixed event types of one log into a folder or table per type and day."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.job.spec import JobSpec, job_of
from penstock.lake.maintenance.compaction import Progress
from penstock.lake.maintenance.reports import CompactReport, VacuumReport
from penstock.logs.log import Batch, Log
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Proof
from penstock.proof.sources import Depth
from penstock.status.model import DayAnswer, JobStatus
from penstock.tables.export.chores import CatchUpBatch
from penstock.tables.export.export import Export
from penstock.tables.export.maintenance import compact_export, rebuild_export, vacuum_export
from penstock.tables.export.opening import open_export
from penstock.tables.export.proof.verification import prove_export
from penstock.tables.export.rebuild.report import RebuildReport
from penstock.tables.export.replay_target import ExportTarget
from penstock.tables.export.section.section import ExportSection
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.status.day_answers import day_answers
from penstock.tables.export.status.metrics import METRICS, ExportMeter
from penstock.tables.export.status.status import export_status
from penstock.tables.export.table import ExportTable
from penstock.tables.export.writer import ExportWriter, WrittenShares
from penstock.tables.kind import CompactWish, SchemaChanged, VacuumWish
from penstock.tables.quarantine.discard import Listings
from penstock.tables.quarantine.table import open_quarantine, refuse_earlier_life


class TypesWriter:
    """Writes batches of an export to staged files of its types."""

    def __init__(
        self, job: JobSpec[ExportSpec], spark: SparkSession, files: ExportTable, log: Log, environment: Environment
    ) -> None:
        self.table = Export(job, files, log, environment)
        self.batches = ExportWriter(job, spark, files, log, environment)
        self._spark = spark

    def stage(self, batch: Batch) -> WrittenShares | SchemaChanged:
        catching_up = isinstance(batch, CatchUpBatch)
        routing = batch.routing if isinstance(batch, CatchUpBatch) else ""
        written = self.batches.write(batch, self.table.roles(batch), main=not catching_up, routing=routing)
        return SchemaChanged() if written is None else written

    def replay_target(self) -> ExportTarget:
        return ExportTarget(self.table, self.batches, self._spark)


class ExportKind:
    """Mixed event types of one log, by type and day."""

    name = ExportSpec.kind
    section = ExportSection()
    steps = (
        "entry_written",
        "removing",
        "removed",
        "renaming",
        "renamed",
        "snapshot_written",
        "type_landed",
        "marked",
    )
    metrics = METRICS

    def meter(self) -> ExportMeter:
        return ExportMeter()

    def summary(self, job: JobSpec) -> str:
        export = job_of(job, ExportSpec).table
        return f"export of {len(export.types)} types as {export.format}"

    def open_writer(self, job: JobSpec, spark: SparkSession, log: Log, environment: Environment) -> TypesWriter:
        mine = job_of(job, ExportSpec)
        files = open_export(mine, environment)
        refuse_earlier_life(job, files.life, open_quarantine(job, environment))
        files.agree_on_types()
        return TypesWriter(mine, spark, files, log, environment)

    def prove(self, job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
        return prove_export(job_of(job, ExportSpec), depth, open_log)

    def status(self, job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
        return export_status(job_of(job, ExportSpec), open_log, now).whole()

    def day_answers(self, job: JobSpec, day: str, types: Sequence[str]) -> Sequence[DayAnswer]:
        return day_answers(job_of(job, ExportSpec), day, types)

    def compact(
        self, job: JobSpec, wish: CompactWish, environment: Environment, progress: Progress | None
    ) -> CompactReport:
        return compact_export(job_of(job, ExportSpec), wish, environment, progress)

    def vacuum(self, job: JobSpec, wish: VacuumWish, environment: Environment) -> VacuumReport:
        return vacuum_export(job_of(job, ExportSpec), wish, environment)

    def rebuild(self, job: JobSpec, log: Log, environment: Environment) -> RebuildReport:
        return rebuild_export(job_of(job, ExportSpec), log, environment)

    def listings(self, job: JobSpec, environment: Environment) -> Listings:
        files = open_export(job_of(job, ExportSpec), environment)
        return files.listings(files.state())
