"""What a replay reads of the quarantine, in runs of a bounded size, and what it needs of the table that it writes to.

`engine.replay` has the steps of a run (RULES Q2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.errors import InvariantError, TransientError
from penstock.flow.compile import RecordFrame
from penstock.flow.write.manifest import Counts, PartitionKey
from penstock.flow.write.offset_ranges import ranges_of
from penstock.job.kafka_types import RECORD_SCHEMA
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.lake.maintenance.compaction import Limit, gather
from penstock.logs.log import Batch, Partition, Slice
from penstock.staging.batch_job import Records
from penstock.tables.quarantine.replayed import ReplayRun, Runs
from penstock.tables.quarantine.rows import read_rows, where
from penstock.tables.quarantine.table import Quarantine

STAGINGS_MAX = 20
"""How often the records of a run are written again because they brought columns that the table had to take first."""

F = TypeVar("F")
"""What a run leaves for its commit."""
Choice = Callable[[pa.Table], pa.Table]
"""Which of the rows of a quarantine are replayed at all."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Which records to replay, and how many in one run."""

    error_contains: str = ""
    """A text that the record's error must have."""
    run_rows_max: int = 50_000
    run_bytes_max: int = 32 * 1024 * 1024
    """Passed by at most one row group; Spark sends a run's records to its tasks inside a message."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The records of one run; a topic has one incarnation among them."""

    rows: pa.Table
    slices: tuple[Slice, ...]
    """From the first to the last of the records of each partition; most offsets between may not be there."""

    def records(self, spark: SparkSession) -> Records:
        """The records in slices of the chunk, for the Spark job of its replay."""

        def inside(piece: Slice) -> pa.ChunkedArray:
            offsets = self.rows.column("offset")
            placed = where(self.rows, topic=piece.partition.topic, partition=piece.partition.number)
            return pc.and_(placed, pc.and_(pc.greater_equal(offsets, piece.read_from), pc.less(offsets, piece.end)))

        return lambda slices: RecordFrame(spark.createDataFrame(self.rows.filter(reduce(pc.or_, map(inside, slices)))))

    def run(
        self, number: int, batch_id: str, offsets: Mapping[PartitionKey, Sequence[int]], total: Counts
    ) -> ReplayRun:
        """The run that writes these offsets. One that is in quarantine twice would be in the table twice."""
        partitions = {(piece.partition.topic, piece.partition.number): piece.partition for piece in self.slices}
        ranges = {partitions[key]: ranges_of(written) for key, written in offsets.items() if written}
        run = ReplayRun(number, batch_id, ranges)
        if total.read != self.rows.num_rows or total.written != run.rows:
            raise InvariantError(
                f"replay run {number} read {total.read} of {self.rows.num_rows} records "
                f"and wrote {total.written} rows of {run.rows} offsets",
                hint="is an offset in quarantine twice? compare (topic_id, partition, offset)",
            )
        return run


def chunks_of(quarantine: Table, choose: Choice, options: ReplayOptions) -> Iterator[Chunk]:
    """The quarantine of one version, oldest files first; a file that a removal replaces is read to its end."""
    rows: Limit[pa.Table] = Limit(lambda piece: piece.num_rows, options.run_rows_max, firm=True)
    size: Limit[pa.Table] = Limit(lambda piece: piece.nbytes, options.run_bytes_max)
    for pieces in gather(_pieces(quarantine, choose, options), rows, size):
        yield from map(_chunk, _split_incarnations(pa.concat_tables(pieces)))


def _pieces(quarantine: Table, choose: Choice, options: ReplayOptions) -> Iterator[pa.Table]:
    """The chosen rows, cut so that a piece fits into a run."""
    for rows in read_rows(quarantine):
        if options.error_contains:
            rows = rows.filter(pc.match_substring(rows.column("error"), options.error_contains))
        chosen = choose(rows)
        for start in range(0, chosen.num_rows, options.run_rows_max):
            yield chosen.slice(start, options.run_rows_max)


def _split_incarnations(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows, apart where a topic was recreated: the tasks of a batch know a topic by its name alone."""
    while rows.num_rows:
        first_ids = rows.group_by("topic").aggregate([("topic_id", "min")]).column("topic_id_min")
        is_first = pc.is_in(rows.column("topic_id"), value_set=first_ids)
        yield rows.filter(is_first)
        rows = rows.filter(pc.invert(is_first))


def _chunk(rows: pa.Table) -> Chunk:
    """The rows in the order of a log, without the columns that a log does not have."""
    spans = rows.group_by(["topic", "topic_id", "partition"]).aggregate([("offset", "min"), ("offset", "max")])
    slices = [
        Slice(Partition(topic, topic_id, number), first, last + 1, first)
        for topic, topic_id, number, first, last in zip(*spans.to_pydict().values(), strict=True)
    ]
    ordered = rows.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
    return Chunk(ordered.select(RECORD_SCHEMA.names), tuple(sorted(slices, key=lambda piece: piece.partition)))


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
        self.quarantine = quarantine

    @property
    @abstractmethod
    def runs(self) -> Runs: ...

    @abstractmethod
    def refresh(self) -> None:
        """Load the newest version of the table."""

    def choice(self, quarantine: Table) -> Choice:
        """Which records may be replayed, of the version that is loaded."""
        return lambda rows: rows

    def stage(self, chunk: Chunk, batch_id: str, number: int) -> StagedRun[F]:
        """Write the rows that fit; again if records brought columns that their table had to take first."""
        batch = Batch(batch_id, chunk.slices)
        for _ in range(STAGINGS_MAX):
            if (staged := self._staged(chunk, batch, number)) is not None:
                return staged
        raise TransientError(f"the columns of {self.job.table.path} changed {STAGINGS_MAX} times during a replay")

    @abstractmethod
    def _staged(self, chunk: Chunk, batch: Batch, number: int) -> StagedRun[F] | None:
        """Run the Spark job of a replay; None if columns had to be added first."""

    def commit(self, staged: StagedRun[F]) -> None:
        """Commit the run; raises `OvertakenError` if another one has its number."""
        if self._land(staged):
            return
        landed = self.runs.find(staged.run.number)
        if landed is None or landed.batch_id != staged.run.batch_id:
            raise OvertakenError(f"another replay committed run {staged.run.number} first")

    @abstractmethod
    def _land(self, staged: StagedRun[F]) -> bool:
        """Commit the run if its number is the next one; whether this call did it."""
