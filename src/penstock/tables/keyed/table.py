"""A keyed table under one job: a batch lands whole, with the files that it replaces, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.write.manifest import Counts, PartitionKey
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.lake.proposal import Outcome, Proposal, SlicePart, check
from penstock.logs.log import Batch, Log, Partition, Slice
from penstock.staging.reports import Written
from penstock.tables.keyed.files import read_active
from penstock.tables.keyed.generations import generations_of, with_generations
from penstock.tables.keyed.merger import Merged, Merger, Runs
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.tombstones import Tombstones
from penstock.tables.kind import Landed
from penstock.tables.single.table import SingleTable


def bulk_key(job: str) -> str:
    """Whether every row of the table came from a bulk load of this job."""
    return f"{job}#bulk"


@dataclass(frozen=True, slots=True)
class KeyedWritten(Written):
    """A batch that is merged into the table as of some version, ready for its commit."""

    runs: Runs
    merged: Merged


class KeyedTable(SingleTable):
    """Rows unique by key. Files of several partitions are one: no slice lands without the others."""

    divisible = False

    def __init__(
        self, job: JobSpec[KeyedSpec], data: Table, environment: Environment, log: Log, spark: SparkSession
    ) -> None:
        super().__init__(job, data, environment)
        self.spec = job.table
        self.tombstones = Tombstones(job, data)
        self.tombstones.table()
        self.merger = Merger(job, data, self.tombstones, spark)
        self._log = log
        self._refuse_bulk()

    def commit(self, proposal: Proposal) -> Outcome:
        """As of any table; partitions that start begin a generation of the log."""

        def revise() -> Proposal:
            state = self.data.known_state([part.partition for part in proposal.parts])
            accepted = check(proposal, state).accepted
            return with_generations(proposal, accepted, self.data.transactions(), self._log.bounds)

        return self.data.commit_revised(revise)

    def generations(self, partition: Partition) -> tuple[tuple[int, int], ...]:
        return generations_of(self.data.transactions(), self.job.name, partition)

    def land(self, batch: Batch, tokens: Mapping[Partition, int], staged: Written) -> Landed:
        assert isinstance(staged, KeyedWritten)
        merged = staged.merged

        def revise() -> Proposal:
            nonlocal merged
            proposal = self._proposal(batch, tokens, staged, merged)
            if check(proposal, self.data.known_state(tokens)).accepted:
                merged = self.merger.brought_up(staged.runs, merged)
                removes = self.merger.removed(merged)
                proposal = replace(
                    self._proposal(batch, tokens, staged, merged),
                    files=merged.files,
                    removes=removes,
                    extra={**self.merger.numbers(merged, removes), **self.bulk_number()},
                )
            return proposal

        outcome = self.data.commit_revised(revise, staged.schema, lambda: self.remember_deleted(merged))
        self.environment.reach("committed")
        if outcome.version is None:
            return Landed(outcome)
        self.quarantine.append(outcome.accepted)
        self.environment.reach("quarantined")
        landed = [part for part in outcome.accepted if isinstance(part, SlicePart)]
        counts = sum((part.counts for part in landed), Counts())
        return Landed(outcome, counts, len(merged.files), _fresh_bytes(merged, counts))

    def remember_deleted(self, merged: Merged) -> None:
        """Tombstones are there before the deletes that they stand for (RULES K2)."""
        self.tombstones.append(merged.tombstones, self.data.schema, merged.tombstones_removed)
        self.environment.reach("tombstones_written")

    def bulk_number(self) -> dict[str, int]:
        """What a commit says of bulk loads, where that changes."""
        key, wanted = bulk_key(self.job.name), int(self.spec.bulk)
        return {} if (self.data.transaction(key) or 0) == wanted else {key: wanted}

    def _proposal(
        self, batch: Batch, tokens: Mapping[Partition, int], staged: KeyedWritten, merged: Merged
    ) -> Proposal:
        lost = [staged.runs.superseded(), merged.skipped()]
        parts = tuple(_part(piece, tokens[piece.partition], staged, lost) for piece in batch.slices)
        return Proposal(self.job.name, batch.id, parts, whole=True)

    def _refuse_bulk(self) -> None:
        if not self.spec.bulk or self.data.transaction(bulk_key(self.job.name)) == 1:
            return
        rows = read_active(self.data, self.spec.layout).rows
        if rows:
            raise UserError(
                f"a bulk load cannot go into the table at {self.spec.path}: it has {rows} rows",
                detail="a bulk load looks up no row, so a key that is there already would be there twice",
                hint="remove `bulk`, or load into a new table",
            )


def _part(piece: Slice, token: int, staged: KeyedWritten, lost: list[dict[PartitionKey, int]]) -> SlicePart:
    share = staged.share_of(piece)
    key = (piece.partition.topic, piece.partition.number)
    skipped = sum(each.get(key, 0) for each in lost)
    return SlicePart(
        piece,
        token,
        replace(share.counts, written=share.counts.written - skipped, skipped=share.counts.skipped + skipped),
        quarantine_files=share.quarantine_files,
        mark=staged.found.mark_of(piece.partition),
    )


def _fresh_bytes(merged: Merged, counts: Counts) -> int:
    """The bytes of the rows that a batch wrote, without those that are only written again with them."""
    rows = sum(file.rows for file in merged.files)
    size_bytes = sum(file.size_bytes for file in merged.files)
    return round(size_bytes * counts.written / rows) if rows else 0
