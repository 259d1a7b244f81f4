"""The record of a replay run in the data table, and the removal of its rows from quarantine (RULES Q2).

The data commit of run N, for an export an entry of its ledger, is the truth. The removal is worked out from it alone,
so anybody can do it any number of times, as long as the quarantine's own number is lower.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction, RemoveAction

from penstock.errors import InvariantError
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import owner_tag, replayed_name
from penstock.flow.write.offset_ranges import Ranges, count_of, offsets_of
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.keys import field_key, replay_key
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.provenance import Provenance, ReplayedOffsets, commits_of, placed
from penstock.lake.delta.table import Change, Table
from penstock.lake.staged import check_staged
from penstock.logs.log import Partition
from penstock.tables.quarantine.rows import at_places, may_hold, own_files, read_file

_KIND = "replay"
_KEYS = ("job", "topic_id", "partition", "offset")


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """What one replay run wrote to the data table; `batch_id` tells it from a rival's run of the same number."""

    number: int
    batch_id: str
    offsets: Mapping[Partition, Ranges]

    @property
    def rows(self) -> int:
        return sum(count_of(ranges) for ranges in self.offsets.values())


class Runs(Protocol):
    """Where the data commits of a job's runs are found."""

    @property
    def path(self) -> str: ...

    def last(self) -> int:
        """The number of the last run; 0 before the first."""

    def owed(self, removed: int) -> Iterable[int]:
        """The runs whose rows may still be in a quarantine that knows the run `removed`."""

    def find(self, number: int) -> ReplayRun | None: ...


@dataclass(frozen=True, slots=True)
class TableRuns:
    """The runs of a job with one Delta table, as of the loaded version."""

    data: Table

    @property
    def path(self) -> str:
        return self.data.spec.path

    def last(self) -> int:
        return run_number(self.data)

    def owed(self, removed: int) -> Iterable[int]:
        return range(removed + 1, self.last() + 1)

    def find(self, number: int) -> ReplayRun | None:
        """Search the table's history for the commit of a run."""
        with library_errors(self.path):
            history = self.data.handle.history()
        for _, ours in commits_of(history, self.data.job):
            if ours.kind == _KIND and ours.run == number:
                return ReplayRun(number, ours.batch, {each.place: each.ranges for each in ours.offsets})
        return None


def run_number(table: Table) -> int:
    """The number of the last run that the loaded version knows; 0 before the first."""
    return table.transaction(replay_key(table.job)) or 0


def run_change(
    table: Table, number: int, files: Sequence[StagedFile], rows: Mapping[Partition, int], metadata: dict[str, Any]
) -> Change:
    """The commit that brings the files of a run into a table, with its number and what it adds to the counts."""
    check_staged(table.storage(), files)
    keys = {field_key(table.job, each, "replayed"): count for each, count in rows.items()}
    totals = {key: (table.transaction(key) or 0) + count for key, count in keys.items()}
    return Change([table.add_action(each) for each in files], {replay_key(table.job): number, **totals}, metadata)


def run_record(job: str, run: ReplayRun, files: Sequence[StagedFile]) -> dict[str, Any]:
    """The run as metadata of its data commit."""
    return Provenance(
        kind=_KIND,
        job=job,
        batch=run.batch_id,
        run=run.number,
        offsets=tuple(ReplayedOffsets(*placed(each), ranges) for each, ranges in run.offsets.items()),
        rows=run.rows,
        size_bytes=sum(file.size_bytes for file in files),
    ).metadata


def finish_replay(runs: Runs, quarantine: Table) -> int:
    """Do the removals that runs still owe; returns how many rows were taken out."""
    removed = 0
    for number in runs.owed(run_number(quarantine)):
        run = runs.find(number)
        if run is None:
            raise InvariantError(
                f"replay run {number} of {quarantine.job} was not finished and is not in the table's history any more",
                detail=f"records that it wrote to {runs.path} may still be in {quarantine.spec.path}",
                hint="restore the table's log; until then a replay could write records twice",
            )
        removed += remove_run(quarantine, run)
    return removed


def remove_run(quarantine: Table, run: ReplayRun) -> int:
    """Take a run's rows out of quarantine; returns how many were there, 0 if somebody else did it before."""
    rewrites: dict[str, _Rewrite] = {}

    def decide() -> Change | None:
        if run_number(quarantine) >= run.number:
            return None
        actions: list[AddAction | RemoveAction] = []
        for file in own_files(quarantine):
            if not _may_touch(file, run):
                continue
            if file.path not in rewrites:
                rewrites[file.path] = _rewrite(quarantine, file, run)
            if rewrites[file.path].removed:
                actions += replacement(quarantine, file, rewrites[file.path].files)
        return Change(
            actions,
            {replay_key(quarantine.job): run.number},
            Provenance(kind="replayed", job=quarantine.job, run=run.number).metadata,
        )

    landed = quarantine.swap(decide)
    quarantine.environment.reach("replay_removed")
    return sum(each.removed for each in rewrites.values()) if landed else 0


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """What takes the place of a file once a run's rows are out of it."""

    removed: int
    files: tuple[StagedFile, ...] = ()


def _may_touch(file: ActiveFile, run: ReplayRun) -> bool:
    return any(
        may_hold(file, partition.number, ranges[0][0], ranges[-1][1] - 1) for partition, ranges in run.offsets.items()
    )


def _rewrite(table: Table, file: ActiveFile, run: ReplayRun) -> _Rewrite:
    gone = {
        (partition.topic_id, partition.number): pa.array(offsets_of(ranges), pa.int64())
        for partition, ranges in run.offsets.items()
    }

    def hits(rows: pa.Table) -> pa.ChunkedArray:
        return pc.fill_null(pc.and_(at_places(rows, gone), pc.equal(rows.column("job"), table.job)), False)

    def name() -> str:
        return replayed_name(str(run.number), uuid.uuid4().hex, owner_tag(table.job))

    removed = sum(pc.sum(hits(rows)).as_py() or 0 for rows in read_file(table, file, _KEYS))
    return _Rewrite(removed, rewritten(table, file, name, lambda rows: pc.invert(hits(rows))) if removed else ())


def rewritten(
    table: Table, file: ActiveFile, name: Callable[[], str], stay: Callable[[pa.Table], pa.ChunkedArray]
) -> tuple[StagedFile, ...]:
    """Write the rows that stay to a new file. The old one is only named in a commit that finds it active."""
    options = WriteOptions(table.spec.path, table.schema, dict(table.spec.storage_options))
    writer = StagedWriter(options, name, "", 0)
    try:
        for rows in read_file(table, file):
            for batch in rows.filter(stay(rows)).to_batches():
                writer.write(batch)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def replacement(table: Table, file: ActiveFile, files: Iterable[StagedFile]) -> list[AddAction | RemoveAction]:
    """The actions that put other files in the place of one."""
    return [table.remove_action(file), *(table.add_action(each) for each in files)]
