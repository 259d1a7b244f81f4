"""The one Delta table of a job as the target of a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import SparkSession

from penstock.flow.write.manifest import offsets_of
from penstock.flow.write.report import UNROUTED, Share
from penstock.lake.delta.keys import field_key
from penstock.lake.delta.table import Change
from penstock.logs.log import Batch
from penstock.staging.batch_job import Records
from penstock.staging.reports import Written
from penstock.tables.quarantine.replay import Chunk, ReplayRun, StagedRun, TableRuns, Target, run_change, run_number
from penstock.tables.single.table import SingleTable

Replay = Callable[[Batch, int, Records], Written | None]
"""Runs the Spark job of a replay, of a number, over records out of quarantine; None: the table took new columns."""


class TableTarget(Target[Written]):
    """The one Delta table of a job: the commit carries the run (RULES Q2)."""

    def __init__(self, table: SingleTable, spark: SparkSession, replay: Replay) -> None:
        super().__init__(table.job, table.environment, table.quarantine)
        self._table = table
        self._data = table.data
        self._spark = spark
        self._replay = replay

    @property
    def runs(self) -> TableRuns:
        return TableRuns(self._data)

    def refresh(self) -> None:
        self._data.refresh()

    def _staged(self, chunk: Chunk, batch: Batch, number: int) -> StagedRun[Written] | None:
        written = self._replay(batch, number, chunk.records(self._spark))
        if written is None:
            return None
        replayed = {
            key: offsets_of(share.replayed) for key, named in written.found.shares.items() for share in named.values()
        }
        run = chunk.run(number, batch.id, replayed, written.found.total)
        return StagedRun(run, written.found.total, written)

    def _land(self, staged: StagedRun[Written]) -> bool:
        run, written = staged.run, staged.files

        def decide() -> Change | None:
            if run_number(self._data) != run.number - 1:
                return None
            self._data.check_schema(written.schema)
            change = run_change(self._data, run, self._data.stamped(written.files, self._table.stamps))
            return replace(change, transactions={**change.transactions, **self._sums(run, written)})

        return self._data.swap(decide)

    def _sums(self, run: ReplayRun, written: Written) -> dict[str, int]:
        """What the run adds to the further numbers of its partitions."""
        sums: dict[str, int] = {}
        for partition in run.offsets:
            share = written.found.of(partition).get(UNROUTED, Share())
            for name, number in self._table.numbers(share).sums.items():
                key = field_key(self._data.job, partition, name)
                sums[key] = (self._data.transaction(key) or 0) + number
        return sums
