"""Replay: records of the quarantine in runs of a bounded size, the record of a run, and its removal (RULES Q2).

The data commit of run N decides. The removal from quarantine follows from it alone, so any process can repeat it while
the quarantine's own number is lower. `engine.replay` has the steps of a run.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.errors import InvariantError, TransientError
from penstock.flow.compile import RecordFrame
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import Counts, PartitionKey, Ranges, StagedFile, count_of, offsets_of, ranges_of
from penstock.flow.write.names import replayed_name
from penstock.job.kafka_types import RECORD_SCHEMA
from penstock.job.spec import JobSpec
from penstock.lake.compaction import Limit, gather, write_rows
from penstock.lake.delta.entry import Action
from penstock.lake.delta.files import ActiveFile, check_staged
from penstock.lake.delta.keys import field_key, replay_key
from penstock.lake.delta.provenance import Provenance, ReplayedOffsets, placed
from penstock.lake.delta.table import Change, DeltaLog
from penstock.lake.proposal import RemovedFile
from penstock.logs.log import Batch, Partition, Slice
from penstock.quarantine.rows import PLACE, at_places, files_of, may_hold, read_file, read_rows, where
from penstock.quarantine.table import Quarantine
from penstock.staging.batch_job import Records

STAGINGS_MAX = 20
"""How often the records of a run are written again because they have columns that the table had to add first."""
REPLAY = "replay"
"""The kind of the commits of runs."""

F = TypeVar("F")
"""The staged result that a run passes to its commit."""


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """What one replay run wrote to the data table; `batch_id` distinguishes runs of the same number."""

    number: int
    batch_id: str
    offsets: Mapping[Partition, Ranges]

    @property
    def rows(self) -> int:
        return sum(count_of(ranges) for ranges in self.offsets.values())


class Runs(Protocol):
    """The data commits of a job's replay runs."""

    def last(self) -> int:
        """The number of the last run; 0 before the first."""

    def unfinished(self, removed: int) -> Iterable[int]:
        """The runs whose rows may still be in a quarantine from which `removed` was the last run to be removed."""

    def find(self, number: int) -> ReplayRun | None: ...


@dataclass(frozen=True, slots=True)
class TableRuns:
    """The runs of a job with one Delta table, as of the loaded version."""

    data: DeltaLog

    def last(self) -> int:
        return run_number(self.data)

    def unfinished(self, removed: int) -> Iterable[int]:
        return range(removed + 1, self.last() + 1)

    def find(self, number: int) -> ReplayRun | None:
        for commit in self.data.commits():
            if commit.kind == REPLAY and commit.run == number:
                return ReplayRun(number, commit.batch, {offsets.place: offsets.ranges for offsets in commit.offsets})
        return None


def run_number(table: DeltaLog) -> int:
    """The number of the last run, as of the loaded version; 0 before the first."""
    return table.transaction(replay_key(table.job)) or 0


def run_change(
    table: DeltaLog, run: ReplayRun, files: Sequence[StagedFile], removed: Sequence[RemovedFile] = ()
) -> Change:
    """The commit of a run to a table: its files, its number and offsets, and what it adds to the counts."""
    if not table.spec.files_url:
        check_staged(table.storage(), files)
    added = {field_key(table.job, place, "replayed"): count_of(ranges) for place, ranges in run.offsets.items()}
    numbers = {key: (table.transaction(key) or 0) + count for key, count in added.items()}
    numbers[replay_key(table.job)] = run.number
    record = Provenance(
        kind=REPLAY,
        job=table.job,
        batch=run.batch_id,
        run=run.number,
        offsets=tuple(ReplayedOffsets(*placed(place), ranges) for place, ranges in run.offsets.items()),
        rows=run.rows,
        size_bytes=sum(file.written_bytes for file in files),
    )
    return Change([*map(table.remove_action, removed), *map(table.add_action, files)], numbers, record.metadata)


def finish_replay(runs: Runs, quarantine: DeltaLog | None) -> int:
    """Remove the records of runs that stopped between commit and removal; returns how many rows were removed."""
    if quarantine is None:
        return 0
    removed = 0
    for number in runs.unfinished(run_number(quarantine)):
        run = runs.find(number)
        if run is None:
            raise InvariantError(
                f"replay run {number} of {quarantine.job} is not finished and no longer in the table's history",
                detail=f"records that it wrote to the table may still be in {quarantine.spec.path}",
                hint="restore the table's log: without it a replay could write records twice",
            )
        removed += remove_run(quarantine, run)
    return removed


def remove_run(quarantine: DeltaLog, run: ReplayRun) -> int:
    """Remove a run's rows from quarantine; returns how many, 0 if another process has done it."""
    spans = [(place.number, ranges[0][0], ranges[-1][1] - 1) for place, ranges in run.offsets.items()]
    offsets = [(place, offset) for place, ranges in run.offsets.items() for offset in offsets_of(ranges)]
    places = pa.array([f"{place.topic_id}/{place.number}/{offset}" for place, offset in offsets], pa.string())
    rewrites: dict[str, tuple[int, tuple[StagedFile, ...]]] = {}

    def decide() -> Change | None:
        if run_number(quarantine) >= run.number:
            return None
        actions: list[Action] = []
        for file in files_of(quarantine):
            if not any(may_hold(file, *span) for span in spans):
                continue
            if file.path not in rewrites:
                rewrites[file.path] = _rewrite(quarantine, file, places, run.number)
            removed, files = rewrites[file.path]
            if removed:
                actions += [quarantine.remove_action(file), *map(quarantine.add_action, files)]
        record = Provenance(kind="replayed", job=quarantine.job, run=run.number)
        return Change(actions, {replay_key(quarantine.job): run.number}, record.metadata)

    landed = quarantine.swap(decide)
    quarantine.environment.at_step("replay_removed")
    return sum(removed for removed, _ in rewrites.values()) if landed else 0


def _rewrite(table: DeltaLog, file: ActiveFile, places: pa.Array, run: int) -> tuple[int, tuple[StagedFile, ...]]:
    """How many rows of a file are at these places, and the files that hold the others."""
    removed = sum(pc.sum(at_places(rows, places)).as_py() or 0 for rows in read_file(table, file, PLACE))
    if not removed:
        return 0, ()
    options = WriteOptions(table.spec.path, table.schema, dict(table.spec.storage_options))
    writer = StagedWriter(options, lambda: replayed_name(str(run), uuid.uuid4().hex), "", 0)
    kept = (rows.filter(pc.invert(at_places(rows, places))) for rows in read_file(table, file))
    return removed, write_rows(writer, (batch for rows in kept for batch in rows.to_batches()))


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Which records to replay, and how many in one run."""

    error_contains: str = ""
    """Only records whose error has this text."""
    run_rows_max: int = 50_000
    run_bytes_max: int = 32 * 1024 * 1024
    """Exceeded by at most one row group; Spark sends a run's records to its tasks inside a message."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The records of one run; a topic has one incarnation among them."""

    rows: pa.Table
    slices: tuple[Slice, ...]
    """From the first to the last record of each partition; many offsets between may be missing."""

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
        """The run that writes these offsets; refused if an offset is in quarantine twice."""
        partitions = {(piece.partition.topic, piece.partition.number): piece.partition for piece in self.slices}
        ranges = {partitions[key]: ranges_of(written) for key, written in offsets.items() if written}
        run = ReplayRun(number, batch_id, ranges)
        if total.read != self.rows.num_rows or total.written != run.rows:
            raise InvariantError(
                f"replay run {number} read {total.read} of {self.rows.num_rows} records "
                f"and wrote {total.written} rows of {run.rows} offsets",
                hint="look for duplicates of (topic_id, partition, offset) in the quarantine",
            )
        return run


def chunks_of(quarantine: DeltaLog, options: ReplayOptions) -> Iterator[Chunk]:
    """The records of one version of the quarantine in chunks, oldest files first."""
    rows: Limit[pa.Table] = Limit(lambda piece: piece.num_rows, options.run_rows_max, firm=True)
    size: Limit[pa.Table] = Limit(lambda piece: piece.nbytes, options.run_bytes_max)
    for pieces in gather(_pieces(quarantine, options), rows, size):
        yield from map(_chunk, _split_incarnations(pa.concat_tables(pieces)))


def _pieces(quarantine: DeltaLog, options: ReplayOptions) -> Iterator[pa.Table]:
    """The rows, cut so that a piece fits into a run."""
    for rows in read_rows(quarantine):
        if options.error_contains:
            rows = rows.filter(pc.match_substring(rows.column("error"), options.error_contains))
        for start in range(0, rows.num_rows, options.run_rows_max):
            yield rows.slice(start, options.run_rows_max)


def _split_incarnations(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows, split where a topic was recreated: the tasks of a batch identify a topic by its name alone."""
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
    """Another replay committed first: the records that were read may be in the table by now."""


@dataclass(frozen=True, slots=True)
class StagedRun(Generic[F]):
    """A run whose rows are written and not yet committed."""

    run: ReplayRun
    total: Counts
    files: F


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

    def stage(self, chunk: Chunk, batch_id: str, number: int) -> StagedRun[F]:
        """Write the records that are valid now; again if their table had to add columns first."""
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
