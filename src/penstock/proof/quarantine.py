"""The files of a job's quarantine, each looked at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from penstock.job.spec import JobSpec
from penstock.lake.delta.active_files import active_paths
from penstock.lake.delta.table import Table, open_table
from penstock.lake.storage import Storage, open_storage
from penstock.proof.footers import Examined, examine
from penstock.proof.offsets.owners import QUARANTINE_COLUMNS
from penstock.proof.offsets.table import DataFile, data_files
from penstock.tables.quarantine.life import belongs_to
from penstock.tables.quarantine.rows import count_rows, own_files


@dataclass(frozen=True, slots=True)
class QuarantineFiles:
    """The files of the quarantine table with rows of the job, and those that it has yet to take (RULES Q1)."""

    storage: Storage
    taken: Examined
    pending: Examined
    faults: tuple[str, ...]

    @staticmethod
    def of(job: JobSpec, quarantine: Table | None, pending: Sequence[DataFile], life: int | None) -> QuarantineFiles:
        """Look at every file; `life` is that of the job's table."""
        storage = open_storage(job.table.quarantine_path, job.table.storage_options)
        taken = Examined(()) if quarantine is None else _examined(storage, quarantine)
        waiting = examine(storage, pending, QUARANTINE_COLUMNS)
        faults = (f"quarantine: {each}" for each in (*taken.faults, *waiting.faults))
        return QuarantineFiles(storage, taken, waiting, (*_life_faults(quarantine, job.name, life), *faults))

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.taken.files + self.pending.files


def named_now(table: Table) -> Callable[[], Collection[str]]:
    """Asks which files the newest version of a table names."""
    return lambda: active_paths(open_table(table.spec, table.job).handle)


def _examined(storage: Storage, quarantine: Table) -> Examined:
    """Other jobs may share it."""
    own = {file.path for file in own_files(quarantine)}
    files = [file for file in data_files(quarantine) if file.path in own]
    return examine(storage, files, QUARANTINE_COLUMNS, named_now(quarantine))


def _life_faults(quarantine: Table | None, job: str, life: int | None) -> tuple[str, ...]:
    """What is wrong with a quarantine of another table: its rows are none of the present one's."""
    if quarantine is None or belongs_to(quarantine, job, life) or not count_rows(quarantine):
        return ()
    return (f"the quarantine at {quarantine.spec.path} belongs to an earlier table of the job",)
