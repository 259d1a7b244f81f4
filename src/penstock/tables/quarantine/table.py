"""The quarantine table of a job: filled after each data commit, never twice for one offset (RULES Q1).

A data commit lists the quarantine files of its slices and leaves a mark; while the position that the quarantine keeps
is below it, listed files are missing and are appended before the partition is planned again. Several jobs may share a
quarantine: each looks at its own listings, rows and positions only, of the present life of its table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import parse_staged_name
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.keys import position_key, table_key
from penstock.lake.delta.provenance import Provenance, commits_of
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import Change, Table, find_table, open_or_create
from penstock.lake.proposal import AcceptedPart, SlicePart
from penstock.lake.storage import open_storage
from penstock.logs.log import Partition
from penstock.tables.quarantine.life import adoption, appended_up_to, belongs_to, life_of, positions_in
from penstock.tables.quarantine.replayed import Runs, finish_replay
from penstock.tables.quarantine.rows import count_rows

_PLACES_SHOWN_MAX = 5


class EarlierLifeError(UserError):
    """The quarantine holds records of a table that is not there any more."""

    def __init__(self, job: JobSpec, rows: int) -> None:
        super().__init__(
            f"the quarantine at {job.table.quarantine_path} belongs to an earlier table of the job {job.name}",
            detail=f"it holds {rows} records that commits of that table put there; the table at {job.table.path} "
            "was deleted or replaced since, and a new one reads the same records again",
            hint=f"`penstock quarantine discard` removes the records of {job.name} from it; to keep them, move the "
            f"folder away or name another one (`table.{job.table.kind}.quarantine`)",
        )


class QuarantineGoneError(UserError):
    """Records that went to quarantine are not there any more, and nothing can bring them back but their files."""

    def __init__(self, job: JobSpec, primary: str, detail: str) -> None:
        super().__init__(
            primary,
            detail=detail,
            hint=f"restore the folder {job.table.quarantine_path}; or accept that these records are lost to "
            f"{job.name}: `penstock quarantine discard`",
        )


@dataclass(frozen=True, slots=True)
class Listed:
    """Quarantine files that a data commit listed for one slice."""

    partition: Partition
    end: int
    """Of the slice; for an export the number of the ledger entry. It grows with every listing of a partition."""
    files: tuple[StagedFile, ...]


def quarantine_spec(job: JobSpec) -> TablePlace:
    return TablePlace(path=job.table.quarantine_path, storage_options=job.table.storage_options)


def open_quarantine(job: JobSpec, environment: Environment | None = None) -> Table | None:
    """The quarantine table of a job, or None while there never was a bad record."""
    return find_table(quarantine_spec(job), job.name, environment)


def create_quarantine(job: JobSpec, environment: Environment) -> Table:
    return open_or_create(quarantine_spec(job), job.name, QUARANTINE_SCHEMA, NewColumnPolicy.ADD, environment)


def refuse_earlier_life(job: JobSpec, life: int | None, quarantine: Table | None) -> None:
    """Raise `EarlierLifeError` for a quarantine with records of another life of the job's table; None: there is none.

    Where nothing of the earlier life is left but positions, the first append makes the quarantine the new one's.
    """
    if quarantine is None or belongs_to(quarantine, job.name, life):
        return
    rows = count_rows(quarantine)
    # Made before rows and positions knew their table: nothing tells whose they are.
    unmarked = quarantine.transaction(table_key(job.name)) is None and any(positions_in(quarantine, job.name).values())
    if rows or unmarked:
        raise EarlierLifeError(job, rows)


def refuse_earlier_table(job: JobSpec, environment: Environment) -> None:
    """The same for a job with one Delta table, before that is created."""
    quarantine = open_quarantine(job, environment)
    if quarantine is None:
        return
    table = find_table(job.table, job.name, environment)
    refuse_earlier_life(job, None if table is None else life_of(table), quarantine)


def adopt(job: JobSpec, life: int, environment: Environment) -> None:
    """Hand the job's rows and positions in its quarantine over to a ledger that was made again from the files."""
    quarantine = open_quarantine(job, environment)
    if quarantine is None:
        return

    def decide() -> Change | None:
        if belongs_to(quarantine, job.name, life) or not positions_in(quarantine, job.name):
            return None
        return Change([], {table_key(job.name): life}, Provenance(kind="adopted", job=job.name).metadata)

    quarantine.swap(decide)


class QuarantineTable:
    """Appends listed files to the quarantine table, which is created with the first bad record.

    `life` tells the job's table from an earlier one of the same name.
    """

    newest_only = True
    """Whether the job's table knows its newest listing only, and not those before."""

    def __init__(self, job: JobSpec, environment: Environment, life: int) -> None:
        self._job = job
        self._environment = environment
        self._life = life
        self._table: Table | None = None

    def table(self) -> Table | None:
        """The quarantine table, or None while there never was a bad record."""
        if self._table is None:
            self._table = open_quarantine(self._job, self._environment)
        return self._table

    def lacks(self, partition: Partition, end: int) -> bool:
        """Whether the files of the slice that ends there have yet to be appended."""
        return appended_up_to(self.table(), self._job.name, self._life, partition) < end

    def append_listed(self, listed: Iterable[Listed]) -> None:
        """Append the files that are not there yet, in one commit."""
        pending = list(listed)
        if not pending:
            return
        if self._table is None:
            self._table = create_quarantine(self._job, self._environment)
        table = self._table

        def decide() -> Change | None:
            new = [each for each in pending if self.lacks(each.partition, each.end)]
            if not new:
                return None
            refuse_earlier_life(self._job, self._life, table)
            return Change(
                actions=[table.add_action(file) for each in new for file in each.files],
                transactions={
                    **adoption(table, self._job.name, self._life),
                    **{position_key(self._job.name, each.partition): each.end for each in new},
                },
                metadata=Provenance(kind="quarantine", job=self._job.name).metadata,
            )

        table.swap(decide)

    def append_left(self, listed: Iterable[Listed]) -> None:
        """Append what an earlier process listed and did not live to append; its files must still be there."""
        pending = list(listed)
        if not pending:
            return
        if (table := self.table()) is not None:
            # Another process may have appended them meanwhile, and a replay taken them out again.
            table.refresh()
            pending = [each for each in pending if self.lacks(each.partition, each.end)]
        self._refuse_gone(pending)
        self.append_listed(pending)

    def finish_replay(self, runs: Runs) -> int:
        """Take out what a replay wrote and did not live to take out; returns the rows (RULES Q2)."""
        table = self.table()
        if table is None or not belongs_to(table, self._job.name, self._life):
            return 0
        return finish_replay(runs, table)

    def _refuse_gone(self, listed: Iterable[Listed]) -> None:
        """Never name files that do not exist: somebody deleted the folder, or a part of it."""
        storage = open_storage(self._job.table.quarantine_path, self._job.table.storage_options)
        there = {entry.path for entry in storage.list()}
        gone = [file for each in listed for file in each.files if file.path not in there]
        if gone:
            places = sorted(_place(file) for file in gone)
            shown = "; ".join(places[:_PLACES_SHOWN_MAX])
            more = len(places) - _PLACES_SHOWN_MAX
            least = "at least " if self.newest_only else ""
            raise QuarantineGoneError(
                self._job,
                f"{least}{sum(file.rows for file in gone)} quarantined records of {self._job.name} are gone",
                f"{len(gone)} files are not in {self._job.table.quarantine_path} any more: {shown}"
                + (f"; and {more} more" if more > 0 else ""),
            )


class Quarantine(QuarantineTable):
    """The quarantine of a Delta table, whose commits list the files."""

    newest_only = False

    def __init__(self, job: JobSpec, data: Table, environment: Environment) -> None:
        super().__init__(job, environment, life_of(data))
        self._data = data

    def append(self, accepted: Iterable[AcceptedPart]) -> None:
        """Append the quarantine files of slices that were just committed."""
        self.append_listed(
            Listed(part.partition, part.piece.end, part.quarantine_files)
            for part in accepted
            if isinstance(part, SlicePart) and part.quarantine_files
        )

    def append_missing(self, marks: Mapping[Partition, int | None]) -> None:
        """Append what earlier data commits listed and nobody appended; `marks` are the data table's."""
        missing = {each for each, mark in marks.items() if mark is not None and self.lacks(each, mark)}
        if not missing:
            return
        if (table := self.table()) is not None:
            table.refresh()
            missing = {each for each in missing if self.lacks(each, marks[each] or 0)}
        found = [each for each in self._listed(missing) if self.lacks(each.partition, each.end)]
        for partition in sorted(missing):
            if not any(each.partition == partition and each.end == marks[partition] for each in found):
                raise QuarantineGoneError(
                    self._job,
                    f"quarantined records of {partition} up to offset {marks[partition]} cannot be found",
                    f"they are not in {self._job.table.quarantine_path}, and the log of {self._data.spec.path} no "
                    "longer has the commit that lists their files",
                )
        self.append_left(sorted(found, key=lambda each: each.end))

    def _listed(self, partitions: set[Partition]) -> list[Listed]:
        """Search the data table's history for listings of this job, newest first."""
        return [
            Listed(piece.place, piece.end, piece.files)
            for _, ours in commits_of(self._data.handle.history(), self._job.name)
            for piece in ours.slices
            if piece.place in partitions and piece.quarantine
        ]


def _place(file: StagedFile) -> str:
    """What the name of a file tells about its records."""
    name = parse_staged_name(file.path)
    slice_text = "" if name is None else f" of offsets {name.start} to {name.end - 1}"
    return f"{file.rows} records{slice_text} of {file.topic}/{file.partition}"
