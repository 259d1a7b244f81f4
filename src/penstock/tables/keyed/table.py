"""A keyed table under one job: a batch lands whole, with the files that it replaces, or not at all.

Two Spark jobs write it: one writes sorted runs, one merges them bucket by bucket. A replay takes the same way: records
that are older than the rows of the table change nothing, and count as replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.flow.task import Flow
from penstock.flow.write.manifest import Counts
from penstock.flow.write.names import replayed_name, staged_name
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Change, DeltaLog
from penstock.lake.proposal import Outcome, Proposal, SlicePart, check
from penstock.logs.log import Batch, Log, Partition, Slice
from penstock.quarantine.replay import ReplayRun, run_change
from penstock.staging.reports import Gathered, Written
from penstock.tables.keyed.generations import with_generations
from penstock.tables.keyed.layout import HIDDEN
from penstock.tables.keyed.merger import Merge
from penstock.tables.keyed.merging.chunks import NewName, fresh
from penstock.tables.keyed.merging.runs import keyed_flow
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.tombstones import Tombstones
from penstock.tables.kind import Landed, output
from penstock.tables.single.table import SingleTable
from penstock.tables.single.writer import SingleWriter, TableTarget


@dataclass(frozen=True, slots=True)
class KeyedWritten(Written):
    """A batch that is merged into the table as of some version, ready for its commit."""

    merge: Merge

    def part(self, piece: Slice, token: int) -> SlicePart:
        """A slice with its counts: records that lost to a newer one count as skipped, not written."""
        share = self.share_of(piece)
        in_runs = sum(run.rows for run in share.files)
        written = in_runs - self.merge.skipped[(piece.partition.topic, piece.partition.number)]
        skipped = share.counts.skipped + share.counts.written - written
        counts = replace(share.counts, written=written, skipped=skipped)
        mark = self.gathered.mark_of(piece.partition)
        return SlicePart(piece, token, counts, quarantine_files=share.quarantine_files, mark=mark)


class KeyedTable(SingleTable):
    """Rows unique by key. A file has rows of several partitions, so no slice lands without the others."""

    divisible = False

    def __init__(self, job: JobSpec[KeyedSpec], data: DeltaLog, environment: Environment, log: Log) -> None:
        super().__init__(job, data, environment)
        self.tombstones = Tombstones(job, data)
        self.tombstones.table()
        self._log = log

    def commit(self, proposal: Proposal) -> Outcome:
        """Commit as for any table; partitions that start begin a generation of the log."""

        def revise() -> Proposal:
            state = self.data.cached_state([part.partition for part in proposal.parts])
            accepted = check(proposal, state).accepted
            return with_generations(proposal, accepted, self.data.transactions(), self._log.bounds)

        return self.data.commit_revised(revise)

    def land(self, batch: Batch, tokens: Mapping[Partition, int], staged: Written) -> Landed:
        assert isinstance(staged, KeyedWritten)
        merge = staged.merge

        def proposal() -> Proposal:
            parts = tuple(staged.part(piece, tokens[piece.partition]) for piece in batch.slices)
            return Proposal(self.job.name, batch.id, parts, whole=True, log_ends=batch.log_ends, steps=batch.steps)

        def revise() -> Proposal:
            if not check(proposal(), self.data.cached_state(tokens)).accepted:
                return proposal()
            merge.merge_into_loaded()
            removes = merge.removes()
            return replace(proposal(), files=merge.files, removes=removes, extra=merge.numbers(removes))

        landed = self.landed(self.data.commit_revised(revise, staged.schema, merge.commit_tombstones), staged.schema)
        if landed.outcome.version is None:
            return landed
        new_files = [file for file in merge.files if file.vector is None]
        fresh_bytes = _fresh_bytes(merge, landed.counts)
        added = replace(output(staged.schema, new_files), rows=landed.counts.written, size_bytes=fresh_bytes)
        sizes = tuple(file.size_bytes for file in new_files)
        return replace(landed, file_sizes=sizes, size_bytes=fresh_bytes, outputs={"": added})


class KeyedWriter(SingleWriter):
    """Merges batches of one job into files of its table."""

    table: KeyedTable

    def __init__(self, job: JobSpec[KeyedSpec], table: KeyedTable, spark: SparkSession, log: Log) -> None:
        super().__init__(table, spark, log)
        self._keyed_job = job

    def flow(self, batch: Batch) -> Flow:
        target = pa.schema([field for field in self.data.schema if field.name not in HIDDEN])
        partitions = [piece.partition for piece in batch.slices]
        return keyed_flow(self._keyed_job, self._flow_to(batch, target, ()), self.data.transactions(), partitions)

    def replay_target(self) -> TableTarget:
        return KeyedTarget(self)

    def _written(self, flow: Flow, gathered: Gathered, started_at: float) -> Written | None:
        written = super()._written(flow, gathered, started_at)
        if written is None:
            return None
        self.data.environment.at_step("runs_staged")
        self.data.refresh()
        job, tombstones = self._keyed_job, self.table.tombstones
        merge = Merge(job, self.data, tombstones, self.spark, written.files, _names(flow))
        merge.merge_into_loaded()
        self.data.environment.at_step("merged")
        return KeyedWritten(written.gathered, written.staged_at, written.schema, merge)


class KeyedTarget(TableTarget):
    """The target of a replay."""

    def _change(self, run: ReplayRun, written: Written) -> Change:
        assert isinstance(written, KeyedWritten)
        merge = written.merge
        merge.merge_into_loaded()
        merge.commit_tombstones()
        removes = merge.removes()
        change = run_change(self._data, run, merge.files, removes)
        return replace(change, transactions={**change.transactions, **merge.numbers(removes)})


def _names(flow: Flow) -> NewName:
    """The names of merged files, with the run of the replay, or with the first slice of the batch.

    A batch lands whole or not at all, so once that slice is behind the position no commit can name them.
    """
    if flow.replay_run is not None:
        return partial(fresh, replayed_name, str(flow.replay_run))
    (_, number), piece = min(flow.slices.items())
    return partial(fresh, staged_name, piece.topic_id, number, piece.start, piece.end)


def _fresh_bytes(merge: Merge, counts: Counts) -> int:
    """The bytes of the rows that a batch wrote, without unchanged rows of rewritten files."""
    rows = sum(file.rows for file in merge.files)
    size_bytes = sum(file.written_bytes for file in merge.files)
    return round(size_bytes * counts.written / rows) if rows else 0
