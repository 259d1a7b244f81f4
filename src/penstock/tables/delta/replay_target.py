"""Replay into the one Delta table of a job: its commit carries the run (RULES Q2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.flow.compile import Source
from penstock.flow.task import Flow
from penstock.flow.write.manifest import PartitionKey, TaskReport
from penstock.flow.write.offset_ranges import count_of, offsets_of
from penstock.lake.delta.keys import replay_key, total_key
from penstock.lake.delta.table import Change
from penstock.lake.staged import check_staged
from penstock.logs.log import Batch
from penstock.staging.policies import stopping_nothing
from penstock.staging.reports import Written, gather
from penstock.tables.delta.table import SingleTable
from penstock.tables.delta.writer import BatchWriter, Records
from penstock.tables.quarantine.chunks import Chunk
from penstock.tables.quarantine.replay_target import StagedRun, Target, check_run, offsets_by_partition
from penstock.tables.quarantine.replayed import ReplayRun, TableRuns, run_number, run_record


class TableTarget(Target[Written]):
    """The Delta table of a job."""

    def __init__(self, table: SingleTable, batches: BatchWriter) -> None:
        super().__init__(table.job, table.environment, table.quarantine)
        self._batches = batches
        self._data = table.data

    @property
    def runs(self) -> TableRuns:
        return TableRuns(self._data)

    def refresh(self) -> None:
        self._data.refresh()

    def _staged(self, chunk: Chunk, batch: Batch, number: int) -> StagedRun[Written] | None:
        staged_at = self.environment.now()
        decoded, visible, target = self._batches.schemas()
        flow = self._flow(batch, number, decoded, target)
        reports = self._batches.run_flow(batch, flow, visible, self._reader(chunk))
        written = gather(batch, reports, staged_at, target)
        if self._batches.added_columns(written):
            return None
        run = ReplayRun(number, batch.id, offsets_by_partition(chunk, _replayed(reports)))
        check_run(chunk, run, written.total)
        return StagedRun(run, written.total, written)

    def _reader(self, chunk: Chunk) -> Records:
        return lambda slices: Source(self._batches.spark.createDataFrame(chunk.within(slices)))

    def _flow(self, batch: Batch, number: int, decoded: pa.Schema, target: pa.Schema) -> Flow:
        flow = self._batches.flow(batch, decoded, target)
        return replace(flow, replay_run=number, on=stopping_nothing(flow.on))

    def _land(self, staged: StagedRun[Written]) -> bool:
        run, written = staged.run, staged.files

        def decide() -> Change | None:
            if run_number(self._data) != run.number - 1:
                return None
            self._data.check_schema(written.schema)
            check_staged(self._data.storage(), written.files)
            return Change(
                actions=[self._data.add_action(each) for each in written.files],
                transactions={replay_key(self._data.job): run.number, **self._totals(run)},
                metadata=run_record(self._data.job, run, written.files),
            )

        return self._data.swap(decide)

    def _totals(self, run: ReplayRun) -> dict[str, int]:
        keys = {each: total_key(self._data.job, each, "replayed") for each in run.offsets}
        return {
            key: (self._data.transaction(key) or 0) + count_of(run.offsets[partition])
            for partition, key in keys.items()
        }


def _replayed(reports: Sequence[TaskReport]) -> dict[PartitionKey, list[int]]:
    found: dict[PartitionKey, list[int]] = {}
    for report in reports:
        for key, ranges in report.replayed.items():
            found.setdefault(key, []).extend(offsets_of(ranges))
    return found
