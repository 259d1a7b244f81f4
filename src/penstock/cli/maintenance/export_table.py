"""What maintenance of routed jobs shares: the job's files and ledger, opened without Spark."""

from __future__ import annotations

from penstock.cli.maintenance.opening import environment
from penstock.errors import InvariantError, UserError
from penstock.job.spec import ExportSpec, JobSpec, job_of
from penstock.tables.export.opening import open_export
from penstock.tables.export.table import ExportTable


def export_table(job: JobSpec) -> ExportTable:
    """The job's files; whether there is a ledger is not looked at."""
    if not isinstance(job.table, ExportSpec):
        raise InvariantError(f"{job.name} is no routed job")
    if job.table.format != "parquet":
        raise UserError(
            f"the job {job.name} keeps its types in Delta tables",
            hint="this command is for exports in the format parquet",
        )
    return open_export(job_of(job, ExportSpec), environment())


def existing_export(job: JobSpec) -> ExportTable:
    """The job's files with their ledger; one that is missing is the user's to create or to rebuild."""
    return _existing(export_table(job))


def existing_types(job: JobSpec) -> ExportTable:
    """The same for an export in any format."""
    if not isinstance(job.table, ExportSpec):
        raise InvariantError(f"{job.name} is no routed job")
    return _existing(open_export(job_of(job, ExportSpec), environment()))


def _existing(table: ExportTable) -> ExportTable:
    job = table.job
    if not table.ledger.exists:
        raise UserError(
            f"there is no ledger of the job {job.name} at {job.table.path}",
            hint="`penstock run` creates it; `penstock verify --rebuild` makes a lost one again from the files",
        )
    table.refuse_other_names(job.log.topics)
    return table
