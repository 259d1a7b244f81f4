"""Replay into the one Delta table of a job; and what a replay needs of any place that it writes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from penstock.engine.events import Listener
from penstock.engine.pipeline import Pipeline
from penstock.engine.replay_chunks import Choice, Chunk
from penstock.engine.reports import Written, gather
from penstock.engine.writing import Records, stopping_nothing
from penstock.errors import InvariantError, TransientError
from penstock.flow.compile import Source
from penstock.flow.manifest import Counts, PartitionKey, TaskReport
from penstock.flow.ranges import Ranges, count_of, offsets_of, ranges_of
from penstock.flow.task import Flow
from penstock.log.offsets import Batch, Partition
from penstock.tables.delta.keys import replay_key, total_key
from penstock.tables.delta.table import Change, SchemaMovedError, Table
from penstock.tables.environment import Environment
from penstock.tables.replayed import ReplayRun, Runs, TableRuns, find_run, run_number, run_record
from penstock.tables.staged import check_staged

STAGINGS_MAX = 20
"""How often the records of a run are written anew because they brought columns that the table had to take first."""

F = TypeVar("F")
"""What a run leaves behind for its commit."""


class OvertakenError(TransientError):
    """Another replay committed first: what was read of the quarantine may be in the table by now."""


@dataclass(frozen=True, slots=True)
class StagedRun(Generic[F]):
    """The records of a chunk, of which those that fit are written and not yet committed."""

    run: ReplayRun
    total: Counts
    files: F


class Target(Protocol[F]):
    """Where replayed rows go."""

    @property
    def runs(self) -> Runs: ...

    @property
    def environment(self) -> Environment: ...

    @property
    def listener(self) -> Listener: ...

    def refresh(self) -> None:
        """Read the newest word of the table."""
        ...

    def quarantine(self) -> Table | None: ...

    def choice(self, quarantine: Table) -> Choice:
        """Which records may be replayed, of the version that is loaded."""
        ...

    def stage(self, chunk: Chunk, batch_id: str, number: int) -> StagedRun[F]: ...

    def commit(self, staged: StagedRun[F]) -> None:
        """Make the run true; raises `OvertakenError` if another one has its number."""
        ...


class TableTarget:
    """The Delta table of a job."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._data = pipeline.table

    @property
    def runs(self) -> TableRuns:
        return TableRuns(self._data)

    @property
    def environment(self) -> Environment:
        return self._pipeline.environment

    @property
    def listener(self) -> Listener:
        return self._pipeline.listener

    def refresh(self) -> None:
        self._data.refresh()

    def quarantine(self) -> Table | None:
        return self._pipeline.quarantine.table()

    def choice(self, quarantine: Table) -> Choice:
        return lambda rows: rows

    def stage(self, chunk: Chunk, batch_id: str, number: int) -> StagedRun[Written]:
        """Write the rows that fit; anew if records brought columns that the table had to take first."""
        batch = Batch(batch_id, chunk.slices)
        for _ in range(STAGINGS_MAX):
            staged_at = self.environment.now()
            decoded, visible, target = self._pipeline.writer.schemas()
            flow = self._flow(batch, number, decoded, target)
            reports = self._pipeline.writer.run_flow(batch, flow, visible, self._reader(chunk))
            written = gather(batch, reports, staged_at, target)
            if not self._pipeline.writer.added_columns(written):
                run = ReplayRun(number, batch_id, offsets_by_partition(chunk, _replayed(reports)))
                check_run(chunk, run, written.total)
                return StagedRun(run, written.total, written)
        raise TransientError(f"the columns of {self._data.spec.path} changed {STAGINGS_MAX} times during a replay")

    def _reader(self, chunk: Chunk) -> Records:
        return lambda slices: Source(self._pipeline.spark.createDataFrame(chunk.within(slices)))

    def _flow(self, batch: Batch, number: int, decoded: pa.Schema, target: pa.Schema) -> Flow:
        flow = self._pipeline.writer.flow(batch, decoded, target)
        return replace(flow, replay_run=number, on=stopping_nothing(flow.on))

    def commit(self, staged: StagedRun[Written]) -> None:
        run, written = staged.run, staged.files

        def decide() -> Change | None:
            if run_number(self._data) != run.number - 1:
                return None
            self._check_schema(written.schema)
            check_staged(self._data.storage(), written.files)
            return Change(
                actions=[self._data.add_action(each) for each in written.files],
                transactions={replay_key(self._data.job): run.number, **self._totals(run)},
                metadata=run_record(self._data.job, run, written.files),
            )

        if self._data.swap(decide):
            return
        landed = find_run(self._data, run.number)
        if landed is None or landed.batch_id != run.batch_id:
            raise OvertakenError(f"another replay committed run {run.number} first")

    def _totals(self, run: ReplayRun) -> dict[str, int]:
        keys = {each: total_key(self._data.job, each, "replayed") for each in run.offsets}
        return {
            key: (self._data.transaction(key) or 0) + count_of(run.offsets[partition])
            for partition, key in keys.items()
        }

    def _check_schema(self, written_with: pa.Schema) -> None:
        there = {each.name: each.type for each in self._data.schema}
        if any(there.get(each.name) != each.type for each in written_with):
            raise SchemaMovedError(f"the columns of {self._data.spec.path} changed during a replay")


def offsets_by_partition(chunk: Chunk, found: Mapping[PartitionKey, Sequence[int]]) -> dict[Partition, Ranges]:
    """What tasks tell by topic and number, by the partitions of the chunk."""
    by_key = {(each.partition.topic, each.partition.number): each.partition for each in chunk.slices}
    return {by_key[key]: ranges_of(offsets) for key, offsets in found.items() if offsets}


def check_run(chunk: Chunk, run: ReplayRun, total: Counts) -> None:
    """An offset that is in quarantine twice would be in the table twice: rather no replay at all."""
    if total.read != chunk.rows.num_rows or total.written != run.rows:
        raise InvariantError(
            f"replay run {run.number} read {total.read} of {chunk.rows.num_rows} records "
            f"and wrote {total.written} rows of {run.rows} offsets",
            hint="is an offset in quarantine twice? compare (topic_id, partition, offset)",
        )


def _replayed(reports: Sequence[TaskReport]) -> dict[PartitionKey, list[int]]:
    found: dict[PartitionKey, list[int]] = {}
    for report in reports:
        for key, ranges in report.replayed.items():
            found.setdefault(key, []).extend(offsets_of(ranges))
    return found
