"""The files of a single table and of its quarantine, each looked at, with what their footers count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.flow.write.names import parse_replayed_name, parse_staged_name
from penstock.job.spec import JobSpec
from penstock.proof.footers import Examined, examine
from penstock.proof.invariants import RowCounts, Slices
from penstock.proof.offsets.owners import OriginColumns, kept_columns
from penstock.proof.offsets.table import DataFile, data_files
from penstock.proof.quarantine import QuarantineFiles, named_now
from penstock.tables.delta.facts import TableFacts
from penstock.tables.quarantine.life import life_of


@dataclass(frozen=True, slots=True)
class TableFiles:
    """What the files of a table and of its quarantine showed."""

    columns: OriginColumns | None
    data: Examined
    quarantine: QuarantineFiles

    @staticmethod
    def of(job: JobSpec, facts: TableFacts) -> TableFiles:
        """Look at every file."""
        table = facts.table
        columns = kept_columns(job, table.schema)
        return TableFiles(
            columns,
            examine(table.storage(), data_files(table), columns, named_now(table)),
            QuarantineFiles.of(job, facts.quarantine, facts.pending, life_of(table)),
        )

    def counts(self, facts: TableFacts) -> RowCounts:
        return RowCounts(
            table=self.data.rows,
            written=facts.incarnations.rows_written,
            quarantine=self.quarantine.taken.rows,
            quarantined=sum(each.totals.quarantined - each.totals.replayed for each in facts.states.values()),
            pending=self.quarantine.pending.rows,
            replay_unfinished=facts.replay_unfinished,
        )

    def faults(self, facts: TableFacts) -> list[str]:
        """What is wrong with the files themselves, and with those of slices."""
        of_slices = slice_faults(self.data.files, facts.committed.slices)
        return [*self.data.faults, *self.quarantine.faults, *of_slices]


def slice_faults(files: Iterable[DataFile], slices: Slices) -> list[str]:
    """What is wrong with the rows of slices, as far as names of files tell of which slice their rows are.

    Compaction takes rows out of a slice's own files, so only without any do they have all of its rows.
    """
    rows: dict[tuple[str, int, int, int], int] = {}
    mixed = False
    for file in files:
        staged = parse_staged_name(file.path)
        if staged is not None:
            place = (staged.topic_id, staged.partition, staged.start, staged.end)
            rows[place] = rows.get(place, 0) + (file.rows or 0)
        elif parse_replayed_name(file.path) is None:
            mixed = True
    return [
        f"{partition} [{each.start}, {each.end}): {found} rows in its files, {each.totals.written} were written"
        for partition, committed in sorted(slices.items())
        for each in committed
        if (found := rows.get((partition.topic_id, partition.number, each.start, each.end), 0)) > each.totals.written
        or (found < each.totals.written and not mixed)
    ]
