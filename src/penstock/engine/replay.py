"""Replay: quarantined records through the job as it is now; those that fit land once, the others stay (RULES Q2).

A run has a number and four steps, each of which can be the last before a crash:

    1. finish     what an earlier run owes: its rows are taken out of quarantine
    2. stage      a bounded set of quarantined records goes through the job's flow
    3. commit     the rows that fit, with the run's number and offsets; refused if another run came first
    4. remove     the same offsets from quarantine, with the same number

After a crash behind 2 there are staged files that no commit names. Behind 3, step 1 of whoever comes next removes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.engine.events import Listener
from penstock.engine.pipeline import Pipeline
from penstock.engine.reports import Written, gather
from penstock.engine.session import open_spark
from penstock.engine.writing import Records
from penstock.errors import InvariantError, TransientError, UserError
from penstock.flow.compile import Source
from penstock.flow.manifest import Counts, TaskReport
from penstock.flow.ranges import Ranges, count_of, offsets_of, ranges_of
from penstock.flow.task import Flow
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.log.offsets import Batch, Partition, Slice
from penstock.tables.delta.keys import replay_key, total_key
from penstock.tables.delta.table import Change, SchemaMovedError, Table
from penstock.tables.environment import Environment, new_batch_id
from penstock.tables.quarantine_rows import count_rows, own_files, own_rows, partitions_of
from penstock.tables.replayed import ReplayRun, find_run, finish_replay, remove_run, run_number, run_record
from penstock.tables.staged import check_staged

PASSES_MAX = 20
"""How often a pass over the quarantine begins anew because a rival or a new column came between."""
_KAFKA_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_PAUSE_SECONDS_MAX = 1.0


class OvertakenError(TransientError):
    """Another replay committed first: what was read of the quarantine may be in the table by now."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Which records to replay, and how many in one run."""

    error_contains: str = ""
    """A text that the record's error must have."""
    run_rows_max: int = 50_000
    run_bytes_max: int = 32 * 1024 * 1024
    """Passed by at most one row group; Spark sends a run's records to its tasks inside a message."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay did: rows finished for an earlier run, rows of its own, and what stays in quarantine."""

    runs: int = 0
    finished: int = 0
    replayed: int = 0
    still_bad: int = 0
    filtered: int = 0
    """Records that would be rows, but that the job's filter drops: they stay, so that the counts stay true (I3)."""
    remaining: int = 0
    """Rows in quarantine afterwards, those that were not chosen included."""


def replay(
    job: JobSpec,
    listener: Listener | None = None,
    options: ReplayOptions | None = None,
    *,
    environment: Environment | None = None,
    spark: SparkSession | None = None,
) -> ReplayReport:
    """Decode the quarantined records of a job again.

    Safe beside a running process of the job and beside another replay. Without `spark` a session is opened and stopped.
    Raises `UserError` for a job that cannot be replayed.
    """
    _refuse_export(job)
    session = spark or open_spark(job.spark, name=f"penstock replay {job.name}")
    try:
        pipeline = Pipeline(job, session, environment, listener)
        try:
            return _Replay(pipeline, options or ReplayOptions()).run()
        finally:
            pipeline.close()
    finally:
        if spark is None:
            session.stop()


def _refuse_export(job: JobSpec) -> None:
    """Raise `UserError` for a routed job: nothing but a slice of the log moves the positions of its types."""
    if job.export is not None:
        raise UserError(
            f"the quarantined records of {job.name} cannot be replayed yet: it is an export",
            detail="they stay in quarantine, whole; the log has them too, as long as it keeps them",
            hint="for an unknown type: name it under `types` with `start: beginning`; "
            "for records that did not fit: export them again with a new job and another table.export.path",
        )


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The records of one run; a topic has one life among them."""

    rows: pa.Table
    slices: tuple[Slice, ...]
    """From the first to the last of the records of each partition; most offsets between may not be there."""

    def within(self, slices: Sequence[Slice]) -> pa.Table:
        wanted = pa.chunked_array([pa.repeat(False, self.rows.num_rows)])
        for each in slices:
            wanted = pc.or_(wanted, _inside(self.rows, each))
        return self.rows.filter(wanted)


@dataclass(slots=True)
class _Gathering:
    """Pieces of the quarantine on their way into a chunk."""

    options: ReplayOptions
    pieces: list[pa.Table] = field(default_factory=list)
    lives: dict[str, str] = field(default_factory=dict)

    def takes(self, piece: pa.Table, lives: dict[str, str]) -> bool:
        rows = piece.num_rows + sum(each.num_rows for each in self.pieces)
        size_bytes = sum(each.nbytes for each in self.pieces)
        one_life = all(self.lives.get(topic, topic_id) == topic_id for topic, topic_id in lives.items())
        return not self.pieces or (
            rows <= self.options.run_rows_max and size_bytes < self.options.run_bytes_max and one_life
        )

    def add(self, piece: pa.Table, lives: dict[str, str]) -> None:
        self.pieces.append(piece)
        self.lives |= lives

    def chunk(self) -> _Chunk:
        rows = pa.concat_tables(self.pieces)
        return _Chunk(rows.select(_KAFKA_COLUMNS), tuple(_span(rows, each) for each in partitions_of(rows)))


class _Replay:
    """One call of `replay`."""

    def __init__(self, pipeline: Pipeline, options: ReplayOptions) -> None:
        self._pipeline = pipeline
        self._options = options
        self._data = pipeline.table
        self._runs = 0
        self._finished = 0
        self._replayed = 0
        self._left = Counts()

    def run(self) -> ReplayReport:
        quarantine = self._pipeline.quarantine.table()
        if quarantine is None:
            return ReplayReport()
        for _ in range(PASSES_MAX):
            try:
                self._pass(quarantine)
                return self._report(quarantine)
            except (OvertakenError, SchemaMovedError) as error:
                self._pipeline.listener.event("replay begins anew", reason=error.primary)
                self._pause()
        raise TransientError(f"gave up after {PASSES_MAX} passes: other replays of {self._data.job} came first")

    def _pass(self, quarantine: Table) -> None:
        """Every chosen record once. The number is read before the quarantine: a rival that commits later refuses us."""
        self._left = Counts()
        self._data.refresh()
        number = run_number(self._data)
        self._finish(quarantine)
        for chunk in self._chunks(quarantine):
            if self._carry(quarantine, chunk, number + 1):
                number += 1

    def _finish(self, quarantine: Table) -> None:
        quarantine.refresh()
        removed = finish_replay(self._data, quarantine)
        if removed:
            self._finished += removed
            self._pipeline.listener.event("replay finished", run=run_number(self._data), rows=removed)

    def _carry(self, quarantine: Table, chunk: _Chunk, number: int) -> bool:
        """One run; whether it committed anything."""
        batch_id = new_batch_id()
        written, run = self._stage(chunk, batch_id, number)
        total = written.total
        if run.rows:
            self._pipeline.reach("replay_staged")
            self._commit(run, written)
            self._pipeline.reach("replay_committed")
            remove_run(quarantine, run)
            self._runs += 1
            self._replayed += run.rows
            self._pipeline.listener.event("replay committed", run=number, rows=run.rows, still_bad=total.quarantined)
        self._left += Counts(quarantined=total.quarantined, filtered=total.filtered)
        return run.rows > 0

    # stage

    def _chunks(self, quarantine: Table) -> Iterator[_Chunk]:
        """The quarantine of one version, oldest files first; a file that a removal replaces is read to its end."""
        gathering = _Gathering(self._options)
        for file in own_files(quarantine):
            for rows in own_rows(quarantine, file):
                for piece, lives in _pieces(self._chosen(rows), self._options.run_rows_max):
                    if not gathering.takes(piece, lives):
                        yield gathering.chunk()
                        gathering = _Gathering(self._options)
                    gathering.add(piece, lives)
        if gathering.pieces:
            yield gathering.chunk()

    def _chosen(self, rows: pa.Table) -> pa.Table:
        if not self._options.error_contains:
            return rows
        return rows.filter(pc.match_substring(rows.column("error"), self._options.error_contains))

    def _stage(self, chunk: _Chunk, batch_id: str, number: int) -> tuple[Written, ReplayRun]:
        """Write the rows that fit; anew if records brought columns that the table had to take first."""
        batch = Batch(batch_id, chunk.slices)
        for _ in range(PASSES_MAX):
            staged_at = self._pipeline.environment.now()
            decoded, visible, target = self._pipeline.writer.schemas()
            flow = self._flow(batch, number, decoded, target)
            reports = self._pipeline.writer.run_flow(batch, flow, visible, self._reader(chunk))
            written = gather(batch, reports, staged_at, target)
            if not self._pipeline.writer.added_columns(written):
                run = ReplayRun(number, batch_id, _replayed(chunk, reports))
                _check(chunk, run, written)
                return written, run
        raise TransientError(f"the columns of {self._data.spec.path} changed {PASSES_MAX} times during a replay")

    def _reader(self, chunk: _Chunk) -> Records:
        return lambda slices: Source(self._pipeline.spark.createDataFrame(chunk.within(slices)))

    def _flow(self, batch: Batch, number: int, decoded: pa.Schema, target: pa.Schema) -> Flow:
        flow = replace(self._pipeline.writer.flow(batch, decoded, target), replay_run=number)
        if flow.on.new_column is NewColumnPolicy.FAIL:
            # A record that would stop the job stays where it is and stops nothing.
            return replace(flow, on=replace(flow.on, new_column=NewColumnPolicy.QUARANTINE))
        return flow

    # commit

    def _commit(self, run: ReplayRun, written: Written) -> None:
        def decide() -> Change | None:
            if run_number(self._data) != run.number - 1:
                return None
            self._check_schema(written.schema)
            check_staged(self._data.storage(), written.files)
            return Change(
                actions=[self._data.add_action(each) for each in written.files],
                transactions={replay_key(self._data.job): run.number, **self._totals(run)},
                metadata=run_record(self._data.job, run, written.files),
            )

        if self._data.swap(decide):
            return
        landed = find_run(self._data, run.number)
        if landed is None or landed.batch_id != run.batch_id:
            raise OvertakenError(f"another replay committed run {run.number} first")

    def _totals(self, run: ReplayRun) -> dict[str, int]:
        keys = {each: total_key(self._data.job, each, "replayed") for each in run.offsets}
        return {
            key: (self._data.transaction(key) or 0) + count_of(run.offsets[partition])
            for partition, key in keys.items()
        }

    def _check_schema(self, written_with: pa.Schema) -> None:
        there = {each.name: each.type for each in self._data.schema}
        if any(there.get(each.name) != each.type for each in written_with):
            raise SchemaMovedError(f"the columns of {self._data.spec.path} changed during a replay")

    # what the steps share

    def _report(self, quarantine: Table) -> ReplayReport:
        quarantine.refresh()
        return ReplayReport(
            runs=self._runs,
            finished=self._finished,
            replayed=self._replayed,
            still_bad=self._left.quarantined,
            filtered=self._left.filtered,
            remaining=count_rows(quarantine),
        )

    def _pause(self) -> None:
        environment = self._pipeline.environment
        environment.sleep(environment.chance.uniform(0, _PAUSE_SECONDS_MAX))


def _pieces(rows: pa.Table, rows_max: int) -> Iterator[tuple[pa.Table, dict[str, str]]]:
    """Rows cut so that a piece fits into a run and has one life per topic."""
    lives = rows.select(["topic", "topic_id"]).group_by(["topic", "topic_id"]).aggregate([]).to_pylist()
    for life in lives:
        same = pc.and_(
            pc.equal(rows.column("topic"), life["topic"]), pc.equal(rows.column("topic_id"), life["topic_id"])
        )
        mine = rows if len(lives) == 1 else rows.filter(same)
        for start in range(0, mine.num_rows, rows_max):
            yield mine.slice(start, rows_max), {life["topic"]: life["topic_id"]}


def _span(rows: pa.Table, partition: Partition) -> Slice:
    mine = pc.and_(
        pc.equal(rows.column("topic"), partition.topic), pc.equal(rows.column("partition"), partition.number)
    )
    ends = pc.min_max(rows.filter(mine).column("offset")).as_py()
    return Slice(partition, ends["min"], ends["max"] + 1, ends["min"])


def _inside(rows: pa.Table, piece: Slice) -> pa.ChunkedArray:
    offsets = rows.column("offset")
    placed = pc.and_(
        pc.equal(rows.column("topic"), piece.partition.topic),
        pc.equal(rows.column("partition"), piece.partition.number),
    )
    return pc.and_(placed, pc.and_(pc.greater_equal(offsets, piece.read_from), pc.less(offsets, piece.end)))


def _replayed(chunk: _Chunk, reports: Sequence[TaskReport]) -> dict[Partition, Ranges]:
    found: dict[tuple[str, int], list[int]] = {}
    for report in reports:
        for key, ranges in report.replayed.items():
            found.setdefault(key, []).extend(offsets_of(ranges))
    by_key = {(each.partition.topic, each.partition.number): each.partition for each in chunk.slices}
    return {by_key[key]: ranges_of(offsets) for key, offsets in found.items()}


def _check(chunk: _Chunk, run: ReplayRun, written: Written) -> None:
    """An offset that is in quarantine twice would be in the table twice: rather no replay at all."""
    if written.total.read != chunk.rows.num_rows or written.total.written != run.rows:
        raise InvariantError(
            f"replay run {run.number} read {written.total.read} of {chunk.rows.num_rows} records "
            f"and wrote {written.total.written} rows of {run.rows} offsets",
            hint="is an offset in quarantine twice? compare (topic_id, partition, offset)",
        )
