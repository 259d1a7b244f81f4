"""Compaction, vacuum and rebuilding of an export, in whichever format it keeps its types."""

from __future__ import annotations

from collections import Counter

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.lake.delta.compact import CompactReport, Progress
from penstock.lake.delta.compact import compact as compact_table
from penstock.lake.delta.vacuum import VacuumReport
from penstock.lake.delta.vacuum import vacuum as vacuum_table
from penstock.logs.log import Log
from penstock.tables.export.compact import compact as compact_files
from penstock.tables.export.delta_types import type_tables
from penstock.tables.export.files.lost_files import drop_lost_files
from penstock.tables.export.opening import open_export
from penstock.tables.export.rebuild.rebuild import rebuild
from penstock.tables.export.rebuild.report import RebuildReport
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.table import ExportTable
from penstock.tables.export.vacuum import vacuum as vacuum_files
from penstock.tables.kind import CompactWish, VacuumWish


def compact_export(
    job: JobSpec[ExportSpec], wish: CompactWish, environment: Environment, progress: Progress | None
) -> CompactReport:
    """Merge small files of closed days, or of all days but the newest; in Delta tables of any day."""
    if job.table.format == "delta":
        size = wish.target_bytes or job.table.compact_bytes
        tables = type_tables(job, environment)
        return sum((compact_table(each, size, progress) for each in tables), CompactReport())
    return compact_files(existing(job, environment), wish.target_bytes, all_days=wish.all_days, progress=progress)


def vacuum_export(job: JobSpec[ExportSpec], wish: VacuumWish, environment: Environment) -> VacuumReport:
    """Delete dead files; of Delta tables what is left over in the quarantine's folder stays."""
    dropped = drop_lost_files(existing(job, environment), dry_run=wish.dry_run) if wish.drop_lost else ()
    if job.table.format == "delta":
        reports = [vacuum_table(each, dry_run=wish.dry_run) for each in type_tables(job, environment)]
        kept = sum((Counter(each.kept) for each in reports), Counter[str]())
        report = VacuumReport(tuple(dead for each in reports for dead in each.deleted), kept, wish.dry_run)
    else:
        report = vacuum_files(existing(job, environment), dry_run=wish.dry_run)
    return report.with_dropped(dropped)


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
