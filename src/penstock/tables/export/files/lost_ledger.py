"""Whether a root without a ledger is a new one, or one that has lost it."""

from __future__ import annotations

from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.lake.storage import NotFoundError, Storage
from penstock.tables.export.ledger.names import claim_of, is_own_output, parse_final_name, type_and_day
from penstock.tables.export.spec import ExportSpec


def refuse_files_without_ledger(storage: Storage, job: JobSpec[ExportSpec]) -> None:
    """Files of ours and no ledger: it was lost, and beginning anew would write everything twice."""
    for name in job.table.all_types if job.table.format == "parquet" else ():
        found = _first_file_of(storage, job.name, name)
        if found is not None:
            raise UserError(
                f"{job.table.path} has data files such as {found} and no ledger of the job",
                detail="the ledger keeps the positions; without it every record would be written again",
                hint="restore its newest copy, or rebuild it from the files: penstock verify JOB --rebuild",
            )


def _first_file_of(storage: Storage, job: str, name: str) -> str | None:
    """A data file of a type that may be ours; a folder that cannot be read is its type's own trouble."""
    try:
        listed = (each.path for each in storage.list(name))
        return next((each for each in listed if type_and_day(each) and not _is_of_another(storage, job, each)), None)
    except UserError:
        return None


def _is_of_another(storage: Storage, job: str, path: str) -> bool:
    found = parse_final_name(path)
    if found is None:
        return not is_own_output(path, job)
    try:
        return storage.read(claim_of(found.space)).decode() != job
    except NotFoundError:
        return False
