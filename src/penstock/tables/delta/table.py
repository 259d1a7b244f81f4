"""The one Delta table of a job, with its quarantine: rows and positions land in the same commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.environment import Environment
from penstock.errors import InvariantError
from penstock.flow.write.manifest import Counts
from penstock.job.spec import JobSpec
from penstock.lake.delta.provenance import provenance_of
from penstock.lake.delta.table import Table
from penstock.lake.proposal import Outcome, Proposal, SlicePart
from penstock.lake.state import DeltaState
from penstock.logs.log import Batch, Partition
from penstock.staging.reports import Written
from penstock.tables.kind import Chore, Landed, View
from penstock.tables.quarantine.replayed import TableRuns
from penstock.tables.quarantine.table import Quarantine

COMMITS_SEARCHED = 20
"""For the size of a row."""


class SingleTable:
    """A Delta table of one type of rows."""

    divisible = True

    def __init__(self, job: JobSpec, data: Table, environment: Environment) -> None:
        self.job = job
        self.data = data
        self.environment = environment
        self.quarantine = Quarantine(job, data, environment)
        self.quarantine.finish_replay(TableRuns(data))

    def state(self, partitions: Iterable[Partition]) -> DeltaState:
        return self.data.state(partitions)

    def commit(self, proposal: Proposal) -> Outcome:
        return self.data.commit(proposal)

    def land(self, batch: Batch, tokens: Mapping[Partition, int], staged: Written) -> Landed:
        parts = tuple(
            SlicePart(
                piece,
                tokens[piece.partition],
                (share := staged.share_of(piece)).counts,
                share.files,
                share.quarantine_files,
                staged.found.mark_of(piece.partition),
            )
            for piece in batch.slices
        )
        outcome = self.data.commit(Proposal(self.job.name, batch.id, parts), staged.schema)
        self.environment.reach("committed")
        if outcome.version is None:
            return Landed(outcome)
        self.quarantine.append(outcome.accepted)
        self.environment.reach("quarantined")
        landed = [part for part in outcome.accepted if isinstance(part, SlicePart)]
        files = [file for part in landed for file in part.files]
        counts = sum((part.counts for part in landed), Counts())
        return Landed(outcome, counts, len(files), sum(file.size_bytes for file in files))

    def own(self, partitions: Iterable[Partition]) -> None:
        """Staged names have a random part: there is nothing to reserve."""

    def settle(self, partitions: Iterable[Partition]) -> None:
        state = self.data.known_state(partitions)
        self.quarantine.append_missing({each: state.of(each).quarantine_mark for each in partitions})

    def shown_position(self, partition: Partition) -> int:
        return self.data.known_state([partition]).of(partition).position or 0

    def chores(self, view: View) -> Sequence[Chore]:
        return ()

    def perform(self, chore: Chore) -> None:
        raise InvariantError(f"a single table has no chore {chore.name}")

    def lags(self, partitions: Iterable[Partition]) -> bool:
        return False

    def record_bytes(self) -> float | None:
        for record in self.data.handle.history(COMMITS_SEARCHED):
            ours = provenance_of(record)
            if ours is not None and ours.rows:
                return ours.size_bytes / ours.rows
        return None
