"""The write step of a keyed table: a Spark job that leaves sorted runs, and one that merges them bucket by bucket."""

from __future__ import annotations

from dataclasses import fields, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.flow.task import Flow
from penstock.job.expressions import fields as fields_of
from penstock.job.spec import JobSpec, TombstonePolicy
from penstock.lake.delta.table import Change
from penstock.logs.log import Batch, Log
from penstock.staging.reports import Gathered, Written
from penstock.tables.keyed.layout import HIDDEN
from penstock.tables.keyed.merger import Runs
from penstock.tables.keyed.merging.plan import Naming
from penstock.tables.keyed.merging.runs import KeyedFlow
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.table import KeyedTable, KeyedWritten
from penstock.tables.quarantine.replay import StagedRun, run_change, run_number
from penstock.tables.single.replay_target import TableTarget
from penstock.tables.single.writer import SingleWriter


class KeyedWriter(SingleWriter):
    """Merges batches of one job into files of its table."""

    table: KeyedTable

    def __init__(self, job: JobSpec[KeyedSpec], table: KeyedTable, spark: SparkSession, log: Log) -> None:
        super().__init__(table, spark, log)
        self._spec = job.table

    def flow(self, batch: Batch) -> Flow:
        target = pa.schema([each for each in self.data.schema if each.name not in HIDDEN])
        plain = self._flow_to(batch, target, ())
        known = {each.name: getattr(plain, each.name) for each in fields(plain)}
        known["on"] = replace(plain.on, tombstone=tombstone_policy(self.job, self._spec))
        return KeyedFlow(
            **known,
            layout=self._spec.layout,
            generations={
                (each.partition.topic, each.partition.number): self.table.generations(each.partition)
                for each in batch.slices
            },
            tombstones_delete=told_by_key(self.job, self._spec),
        )

    def replay_target(self) -> TableTarget:
        return KeyedTarget(self.table, self.spark, self.replay)

    def _written(self, flow: Flow, found: Gathered, started_at: float) -> Written | None:
        written = super()._written(flow, found, started_at)
        if written is None:
            return None
        self.data.environment.reach("runs_staged")
        self.data.refresh()
        runs = Runs(Naming.of(flow), written.files)
        merged = self.table.merger.merge(runs)
        self.data.environment.reach("merged")
        return KeyedWritten(written.found, written.staged_at, written.schema, runs, merged)


class KeyedTarget(TableTarget):
    """A replay takes the same way: records that are older than what is there change nothing, and are done with."""

    def _land(self, staged: StagedRun[Written]) -> bool:
        run, written, table = staged.run, staged.files, self._table
        assert isinstance(written, KeyedWritten) and isinstance(table, KeyedTable)
        merged = written.merged

        def decide() -> Change | None:
            nonlocal merged
            if run_number(self._data) != run.number - 1:
                return None
            self._data.check_schema(written.schema)
            merged = table.merger.brought_up(written.runs, merged)
            table.remember_deleted(merged)
            change = run_change(self._data, run, merged.files)
            removed = table.merger.removed(merged)
            removes = [self._data.remove_action(each) for each in removed]
            numbers = {**change.transactions, **table.merger.numbers(merged, removed), **table.bulk_number()}
            return replace(change, actions=[*removes, *change.actions], transactions=numbers)

        return self._data.swap(decide)


def tombstone_policy(job: JobSpec, spec: KeyedSpec) -> TombstonePolicy:
    """What becomes of a record without a value: it is a row without values, unless `sql:` would see it."""
    if spec.filter_tombstones:
        return TombstonePolicy.FILTER
    return TombstonePolicy.QUARANTINE if job.sql else TombstonePolicy.ROW


def told_by_key(job: JobSpec, spec: KeyedSpec) -> bool:
    """Whether a record without a value tells the key of its row: all columns of the key come from Kafka's own."""
    if job.sql is not None or spec.bulk:
        return False
    needed = [name for name in spec.layout.columns if name not in HIDDEN]
    return all(name in job.columns and not list(fields_of(job.columns[name])) for name in needed)
