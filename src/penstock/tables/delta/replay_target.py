"""Replay into the one Delta table of a job: its commit carries the run (RULES Q2)."""

from __future__ import annotations

from penstock.flow.write.offset_ranges import count_of, offsets_of
from penstock.lake.delta.keys import field_key, replay_key
from penstock.lake.delta.table import Change
from penstock.lake.staged import check_staged
from penstock.logs.log import Batch
from penstock.staging.reports import Written
from penstock.tables.delta.table import SingleTable
from penstock.tables.delta.writer import BatchWriter
from penstock.tables.quarantine.chunks import Chunk
from penstock.tables.quarantine.replay_target import StagedRun, Target, check_run, chunk_records, offsets_by_partition
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
        written = self._batches.replay(batch, number, chunk_records(self._batches.spark, chunk))
        if written is None:
            return None
        replayed = {
            key: offsets_of(share.replayed) for key, named in written.found.shares.items() for share in named.values()
        }
        run = ReplayRun(number, batch.id, offsets_by_partition(chunk, replayed))
        check_run(chunk, run, written.found.total)
        return StagedRun(run, written.found.total, written)

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
        keys = {each: field_key(self._data.job, each, "replayed") for each in run.offsets}
        return {
            key: (self._data.transaction(key) or 0) + count_of(run.offsets[partition])
            for partition, key in keys.items()
        }
