"""What a replay needs of the place that it writes to, and what all such places have in common (RULES Q2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.errors import InvariantError, TransientError
from penstock.flow.compile import RecordFrame
from penstock.flow.write.manifest import Counts, PartitionKey
from penstock.flow.write.offset_ranges import Ranges, ranges_of
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.logs.log import Batch, Partition
from penstock.staging.batch_job import Records
from penstock.tables.quarantine.chunks import Choice, Chunk
from penstock.tables.quarantine.replayed import ReplayRun, Runs
from penstock.tables.quarantine.table import Quarantine

STAGINGS_MAX = 20
"""How often the records of a run are written anew because they brought columns that the table had to take first."""

F = TypeVar("F")
"""What a run leaves for its commit."""


class OvertakenError(TransientError):
    """Another replay committed first: what was read of the quarantine may be in the table by now."""


@dataclass(frozen=True, slots=True)
class StagedRun(Generic[F]):
    """The records of a chunk, of which those that fit are written and not yet committed."""

    run: ReplayRun
    total: Counts
    files: F
    waiting: int = 0
    """Of those that count as quarantined: records of types that cannot be written now."""


class Target(ABC, Generic[F]):
    """Where replayed rows go."""

    def __init__(self, job: JobSpec, environment: Environment, quarantine: Quarantine) -> None:
        self.job = job
        self.environment = environment
        self.listener = environment.listener
        self._quarantine = quarantine

    @property
    @abstractmethod
    def runs(self) -> Runs: ...

    @abstractmethod
    def refresh(self) -> None:
        """Read the newest word of the table."""

    def quarantine(self) -> Table | None:
        return self._quarantine.table()

    def choice(self, quarantine: Table) -> Choice:
        """Which records may be replayed, of the version that is loaded."""
        return lambda rows: rows

    def stage(self, chunk: Chunk, batch_id: str, number: int) -> StagedRun[F]:
        """Write the rows that fit; anew if records brought columns that their table had to take first."""
        batch = Batch(batch_id, chunk.slices)
        for _ in range(STAGINGS_MAX):
            if (staged := self._staged(chunk, batch, number)) is not None:
                return staged
        raise TransientError(f"the columns of {self.job.table.path} changed {STAGINGS_MAX} times during a replay")

    @abstractmethod
    def _staged(self, chunk: Chunk, batch: Batch, number: int) -> StagedRun[F] | None:
        """Run the Spark job of a replay; None if columns had to be added first."""

    def commit(self, staged: StagedRun[F]) -> None:
        """Make the run true; raises `OvertakenError` if another one has its number."""
        if self._land(staged):
            return
        landed = self.runs.find(staged.run.number)
        if landed is None or landed.batch_id != staged.run.batch_id:
            raise OvertakenError(f"another replay committed run {staged.run.number} first")

    @abstractmethod
    def _land(self, staged: StagedRun[F]) -> bool:
        """Commit the run if its number is the next one; whether this call did it."""


def chunk_records(spark: SparkSession, chunk: Chunk) -> Records:
    """The records of a chunk, for the Spark job of its replay."""
    return lambda slices: RecordFrame(spark.createDataFrame(chunk.within(slices)))


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
