"""The record of a replay run in the data table, and the removal of its rows from quarantine (RULES Q2).

The data commit of run N is the truth. The removal follows from it alone, so any process can do it any number of times,
as long as the quarantine's own number is lower.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction, RemoveAction

from penstock.errors import InvariantError
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import replayed_name
from penstock.flow.write.offset_ranges import Ranges, count_of, offsets_of
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.keys import field_key, replay_key
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.provenance import Provenance, ReplayedOffsets, commits_of, placed
from penstock.lake.delta.table import Change, Table
from penstock.lake.staged import check_staged
from penstock.logs.log import Partition
from penstock.tables.quarantine.rows import at_places, files_of, may_hold, read_file, without_places

_KIND = "replay"
_PLACE = ("topic_id", "partition", "offset")


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """What one replay run wrote to the data table; the batch id tells it from another run of the same number."""

    number: int
    batch_id: str
    offsets: Mapping[Partition, Ranges]

    @property
    def rows(self) -> int:
        return sum(count_of(ranges) for ranges in self.offsets.values())

    def may_have(self, file: ActiveFile) -> bool:
        """Whether records of the run can be in a file of the quarantine, as far as its statistics say."""
        spans = ((partition.number, ranges[0][0], ranges[-1][1] - 1) for partition, ranges in self.offsets.items())
        return any(may_hold(file, *span) for span in spans)


class Runs(Protocol):
    """Where the data commits of a job's runs are found."""

    def last(self) -> int:
        """The number of the last run; 0 before the first."""

    def owed(self, removed: int) -> Iterable[int]:
        """The runs whose rows may still be in a quarantine that knows the run `removed`."""

    def find(self, number: int) -> ReplayRun | None: ...


@dataclass(frozen=True, slots=True)
class TableRuns:
    """The runs of a job with one Delta table, as of the loaded version."""

    data: Table

    def last(self) -> int:
        return run_number(self.data)

    def owed(self, removed: int) -> Iterable[int]:
        return range(removed + 1, self.last() + 1)

    def find(self, number: int) -> ReplayRun | None:
        """Search the table's history for the commit of a run."""
        with library_errors(self.data.spec.path):
            history = self.data.handle.history()
        for _, commit in commits_of(history, self.data.job):
            if commit.kind == _KIND and commit.run == number:
                return ReplayRun(number, commit.batch, {offsets.place: offsets.ranges for offsets in commit.offsets})
        return None


def run_number(table: Table) -> int:
    """The number of the last run that the loaded version knows; 0 before the first."""
    return table.transaction(replay_key(table.job)) or 0


def run_change(table: Table, run: ReplayRun, files: Sequence[StagedFile]) -> Change:
    """The commit of a run to a table: its files, its number and offsets, and what it adds to the counts."""
    check_staged(table.storage(), files)
    added = {field_key(table.job, place, "replayed"): count_of(ranges) for place, ranges in run.offsets.items()}
    totals = {key: (table.transaction(key) or 0) + count for key, count in added.items()}
    record = Provenance(
        kind=_KIND,
        job=table.job,
        batch=run.batch_id,
        run=run.number,
        offsets=tuple(ReplayedOffsets(*placed(place), ranges) for place, ranges in run.offsets.items()),
        rows=run.rows,
        size_bytes=sum(file.size_bytes for file in files),
    )
    actions = [table.add_action(file) for file in files]
    return Change([*actions], {replay_key(table.job): run.number, **totals}, record.metadata)


def finish_replay(runs: Runs, quarantine: Table | None) -> int:
    """Remove the records of runs that stopped between commit and removal; returns how many rows were removed."""
    if quarantine is None:
        return 0
    removed = 0
    for number in runs.owed(run_number(quarantine)):
        run = runs.find(number)
        if run is None:
            raise InvariantError(
                f"replay run {number} of {quarantine.job} was not finished and is not in the table's history any more",
                detail=f"records that it wrote to the table may still be in {quarantine.spec.path}",
                hint="restore the table's log; until then a replay could write records twice",
            )
        removed += remove_run(quarantine, run)
    return removed


def remove_run(quarantine: Table, run: ReplayRun) -> int:
    """Remove a run's rows from quarantine; returns how many, 0 if another process did it before."""
    rewrites: dict[str, tuple[int, tuple[StagedFile, ...]]] = {}

    def decide() -> Change | None:
        if run_number(quarantine) >= run.number:
            return None
        actions: list[AddAction | RemoveAction] = []
        for file in filter(run.may_have, files_of(quarantine)):
            if file.path not in rewrites:
                rewrites[file.path] = _rewrite(quarantine, file, run)
            removed, files = rewrites[file.path]
            if removed:
                actions += [quarantine.remove_action(file), *map(quarantine.add_action, files)]
        return Change(
            actions,
            {replay_key(quarantine.job): run.number},
            Provenance(kind="replayed", job=quarantine.job, run=run.number).metadata,
        )

    landed = quarantine.swap(decide)
    quarantine.environment.reach("replay_removed")
    return sum(removed for removed, _ in rewrites.values()) if landed else 0


def _rewrite(table: Table, file: ActiveFile, run: ReplayRun) -> tuple[int, tuple[StagedFile, ...]]:
    """How many rows of a run are in a file, and the files that hold the others."""
    places = {
        (partition.topic_id, partition.number): pa.array(offsets_of(ranges), pa.int64())
        for partition, ranges in run.offsets.items()
    }
    removed = sum(pc.sum(at_places(rows, places)).as_py() or 0 for rows in read_file(table, file, _PLACE))
    if not removed:
        return 0, ()
    options = WriteOptions(table.spec.path, table.schema, dict(table.spec.storage_options))
    writer = StagedWriter(options, lambda: replayed_name(str(run.number), uuid.uuid4().hex), "", 0)
    try:
        for rows in read_file(table, file):
            for batch in without_places(rows, places).to_batches():
                writer.write(batch)
        return removed, writer.finish()
    except BaseException:
        writer.abandon()
        raise
