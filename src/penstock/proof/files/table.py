"""The files of a single table and of its quarantine, each looked at, with what their footers count."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.job.spec import JobSpec
from penstock.lake.delta.active_files import active_paths
from penstock.lake.delta.place import TablePlace
from penstock.lake.delta.table import open_table
from penstock.lake.storage import Storage, open_storage
from penstock.proof.facts import TableFacts, life_faults, quarantine_files
from penstock.proof.files.footers import Examined, examine, slice_faults
from penstock.proof.invariants import RowCounts
from penstock.proof.offsets.owners import QUARANTINE_COLUMNS, OriginColumns, kept_columns
from penstock.proof.offsets.table import active_files
from penstock.tables.quarantine.life import life_of


@dataclass(frozen=True, slots=True)
class TableFiles:
    """What the files of a table, of its quarantine, and those that the quarantine has yet to take, showed."""

    columns: OriginColumns | None
    storage: Storage
    data: Examined
    quarantine_storage: Storage
    quarantine: Examined
    pending: Examined

    @staticmethod
    def of(job: JobSpec, facts: TableFacts) -> TableFiles:
        """Look at every file."""
        columns = kept_columns(job, facts.table.schema)
        storage = facts.table.storage()
        bad_storage = open_storage(job.table.quarantine_path, job.table.storage_options)
        bad = facts.quarantine
        return TableFiles(
            columns,
            storage,
            examine(storage, active_files(facts.table), columns, lambda: _named_now(facts.table.spec, job.name)),
            bad_storage,
            examine(
                bad_storage,
                quarantine_files(bad),
                QUARANTINE_COLUMNS,
                lambda: _named_now(bad.spec, job.name) if bad is not None else (),
            ),
            examine(bad_storage, facts.pending, QUARANTINE_COLUMNS),
        )

    def counts(self, facts: TableFacts) -> RowCounts:
        return RowCounts(
            table=self.data.rows,
            written=facts.incarnations.rows_written,
            quarantine=self.quarantine.rows,
            quarantined=sum(each.totals.quarantined - each.totals.replayed for each in facts.states.values()),
            pending=self.pending.rows,
            replay_unfinished=facts.replay_unfinished,
        )

    def faults(self, facts: TableFacts) -> list[str]:
        """What is wrong with the files themselves, and with those of slices."""
        return [
            *life_faults(facts.quarantine, facts.table.job, life_of(facts.table)),
            *self.data.faults,
            *(f"quarantine: {each}" for each in (*self.quarantine.faults, *self.pending.faults)),
            *slice_faults(self.data.files, facts.committed.slices),
        ]


def _named_now(spec: TablePlace, job: str) -> Collection[str]:
    return active_paths(open_table(spec, job).handle)
