"""The quarantine table of a job: filled behind each data commit, never twice for one offset (RULES Q1).

The data commit is the truth: it lists the quarantine files of its slices and leaves a mark, the end of the last slice
that had any. The quarantine table keeps its own position per partition; while that is below the mark, listed files
are missing and are appended before the partition is planned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvariantError
from penstock.flow.manifest import StagedFile
from penstock.flow.quarantine import QUARANTINE_SCHEMA
from penstock.job.spec import DeltaTableSpec, JobSpec, NewColumnPolicy
from penstock.log.offsets import Partition
from penstock.tables.delta.keys import position_key
from penstock.tables.delta.library import MissingTableError
from penstock.tables.delta.table import Change, Table, open_or_create, open_table
from penstock.tables.environment import Environment
from penstock.tables.proposal import Part, SlicePart
from penstock.tables.replayed import finish_replay


@dataclass(frozen=True, slots=True)
class Listed:
    """Quarantine files that a data commit listed for one slice."""

    partition: Partition
    end: int
    """Of the slice; for a routed job the number of the ledger entry. It grows with every listing of a partition."""
    batch_id: str
    files: tuple[StagedFile, ...]


def quarantine_spec(job: JobSpec) -> DeltaTableSpec:
    return DeltaTableSpec(path=job.table.quarantine_path, storage_options=job.table.storage_options)


class QuarantineTable:
    """Appends listed files to the quarantine table, which is created with the first bad record."""

    def __init__(self, job: JobSpec, environment: Environment) -> None:
        self._job = job
        self._environment = environment
        self._table: Table | None = None

    def table(self) -> Table | None:
        """The quarantine table, or None while there never was a bad record."""
        if self._table is None:
            try:
                self._table = open_table(quarantine_spec(self._job), self._job.name, self._environment)
            except MissingTableError:
                return None
        return self._table

    def lacks(self, partition: Partition, end: int) -> bool:
        """Whether the files of the slice that ends there have yet to be appended."""
        table = self.table()
        position = table.transaction(position_key(self._job.name, partition)) if table is not None else None
        return position is None or position < end

    def append_listed(self, listed: Iterable[Listed]) -> None:
        """Append the files that are not there yet, in one commit."""
        pending = list(listed)
        if not pending:
            return
        if self._table is None:
            self._table = open_or_create(
                quarantine_spec(self._job), self._job.name, QUARANTINE_SCHEMA, NewColumnPolicy.FAIL, self._environment
            )
        table = self._table

        def decide() -> Change | None:
            new = [each for each in pending if self.lacks(each.partition, each.end)]
            if not new:
                return None
            return Change(
                actions=[table.add_action(file) for each in new for file in each.files],
                transactions={position_key(self._job.name, each.partition): each.end for each in new},
                metadata={"penstock": {"v": 1, "kind": "quarantine", "job": self._job.name}},
            )

        table.swap(decide)


class Quarantine(QuarantineTable):
    """The quarantine of a Delta table, whose commits list the files."""

    def __init__(self, job: JobSpec, data: Table, environment: Environment) -> None:
        super().__init__(job, environment)
        self._data = data

    def append(self, accepted: Iterable[Part]) -> None:
        """Append the quarantine files of slices that were just committed."""
        self.append_listed(
            Listed(part.partition, part.piece.end, "", part.quarantine_files)
            for part in accepted
            if isinstance(part, SlicePart) and part.quarantine_files
        )

    def append_missing(self, marks: Mapping[Partition, int | None]) -> None:
        """Append what earlier data commits listed and nobody appended; `marks` are the data table's."""
        behind = {each for each, mark in marks.items() if mark is not None and self.lacks(each, mark)}
        if not behind:
            return
        found = [each for each in self._listed(behind) if self.lacks(each.partition, each.end)]
        for partition in behind:
            if not any(each.partition == partition and each.end == marks[partition] for each in found):
                raise InvariantError(
                    f"quarantine files of {partition} up to offset {marks[partition]} are not listed any more",
                    detail=f"the log of {self._data.spec.path} no longer has the commit that lists them",
                    hint="restore the table's log, or read the slice again from Kafka with another job",
                )
        self.append_listed(sorted(found, key=lambda each: each.end))

    def finish_replay(self) -> int:
        """Take out what a replay wrote to the data table and did not live to take out; returns the rows (RULES Q2)."""
        table = self.table()
        return 0 if table is None else finish_replay(self._data, table)

    def _listed(self, partitions: set[Partition]) -> list[Listed]:
        """Search the data table's history, newest first."""
        found = []
        for record in self._data.handle.history():
            ours = record.get("penstock")
            if not isinstance(ours, dict):
                continue
            for piece in ours.get("slices", ()):
                partition = Partition(piece["topic"], piece["topic_id"], piece["partition"])
                if partition in partitions and piece["quarantine"]:
                    found.append(Listed(partition, piece["end"], ours["batch"], _files(piece)))
        return found


def _files(piece: Mapping[str, Any]) -> tuple[StagedFile, ...]:
    return tuple(
        StagedFile(
            piece["topic"], piece["partition"], each["path"], each["rows"], each["size_bytes"], {}, each["stats"]
        )
        for each in piece["quarantine"]
    )
