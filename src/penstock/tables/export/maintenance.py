"""Compaction, vacuum and rebuilding of an export, in whichever format it keeps its types."""

from __future__ import annotations

from dataclasses import replace

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.lake.delta.compact import compact as compact_table
from penstock.lake.maintenance.compaction import Progress
from penstock.lake.maintenance.reports import CompactReport, Dropped, VacuumReport
from penstock.logs.log import Log
from penstock.tables.export.compact import compact as compact_files
from penstock.tables.export.files.lost_files import drop_lost_files
from penstock.tables.export.opening import open_export
from penstock.tables.export.rebuild.rebuild import rebuild
from penstock.tables.export.rebuild.report import RebuildReport
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.table import ExportTable
from penstock.tables.export.vacuum import vacuum
from penstock.tables.kind import CompactWish, VacuumWish


def compact_export(
    job: JobSpec[ExportSpec], wish: CompactWish, environment: Environment, progress: Progress | None
) -> CompactReport:
    """Merge small files of closed days, or of all days but the newest; in Delta tables of any day."""
    if job.table.format == "delta":
        size = wish.target_bytes or job.table.compact_bytes
        tables = open_export(job, environment).type_tables()
        return sum((compact_table(each, size, progress) for each in tables), CompactReport())
    return compact_files(existing(job, environment), wish.target_bytes, all_days=wish.all_days, progress=progress)


def vacuum_export(job: JobSpec[ExportSpec], wish: VacuumWish, environment: Environment) -> VacuumReport:
    """Delete dead files; only where types have no tables of their own, the ledger alone knows which they are."""
    needs_ledger = job.table.format == "parquet" or wish.drop_lost
    table = existing(job, environment) if needs_ledger else open_export(job, environment)
    lost = drop_lost_files(table, dry_run=wish.dry_run) if wish.drop_lost else ()
    report = vacuum(table, dry_run=wish.dry_run)
    return replace(report, dropped=tuple(Dropped(each.type, each.target, each.rows) for each in lost))


def rebuild_export(job: JobSpec[ExportSpec], log: Log, environment: Environment) -> RebuildReport:
    if job.table.format != "parquet":
        raise UserError(
            f"the job {job.name} keeps its types in Delta tables",
            hint="this command is for exports in the format parquet",
        )
    return rebuild(open_export(job, environment), log.bounds(log.partitions()))


def existing(job: JobSpec[ExportSpec], environment: Environment) -> ExportTable:
    """The job's files with their ledger; one that is missing is the user's to create or to rebuild."""
    table = open_export(job, environment)
    if not table.ledger.exists:
        raise UserError(
            f"there is no ledger of the job {job.name} at {job.table.path}",
            hint="`penstock run` creates it; `penstock verify --rebuild` makes a lost one again from the files",
        )
    table.refuse_other_names(job.log.topics)
    return table
