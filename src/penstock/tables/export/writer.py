"""The write step of an export: one Spark job for all types and days of a batch or of a replay, and replay's commits.

Each record is replayed once, into its type and day (RULES Q2). One commit to the job log decides on run N and lists its
files; it is refused if another run has that number. Every type with rows of the run then commits them with N, and they
are removed from quarantine, which takes the number N too. Any process finishes a run, any number of times.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.environment import new_batch_id
from penstock.errors import PenstockError, TransientError
from penstock.events import ColumnsAdded, FieldsLeftOut
from penstock.flow.columns.fitting import new_paths
from penstock.flow.columns.seen_types import left_out
from penstock.flow.compile import fanout_job
from penstock.flow.route.fanout_flow import FanoutFlow, RoutedSlice
from penstock.flow.stage import PART_BYTES_MAX
from penstock.flow.write.manifest import Counts, Ranges, offsets_of, ranges_of
from penstock.job.spec import DAY_FOLDER
from penstock.lake.delta.files import check_staged
from penstock.lake.delta.keys import replay_key
from penstock.lake.delta.provenance import Provenance, ReplayedOffsets, placed
from penstock.lake.delta.table import Change, DeltaLog
from penstock.lake.proposal import Proposal, SlicePart
from penstock.logs.log import Batch, Log, Partition, Slice
from penstock.quarantine.replay import REPLAY, Chunk, ReplayRun, StagedRun, Target, run_change, run_number
from penstock.staging.batch_job import BatchJob
from penstock.staging.reports import Gathered, check_conserved
from penstock.tables.export.commits import committed_files
from penstock.tables.export.export import Export, ExportTable, WrittenShares
from penstock.tables.export.flow import fanout_flow, new_columns
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.names import output_name
from penstock.tables.kind import SchemaChanged

Listed = tuple[ReplayedOffsets, ...]
"""The files of a run and the offsets of their rows, by type and partition."""


class ExportWriter:
    """Writes batches of an export to staged files of its types."""

    def __init__(self, table: Export, spark: SparkSession, log: Log) -> None:
        self.table = table
        self._logs = table.logs
        self._job = table.job
        self._spark = spark
        self._listener = table.environment.listener
        self._batch_job = BatchJob(table.job, spark, log, table.environment, fanout_job)

    def stage(self, batch: Batch) -> WrittenShares | SchemaChanged:
        """Run the batch's Spark job, unless a type first had to get its columns: the batch is planned again."""
        started_at = self.table.environment.now()
        # As large as the parts of the tasks: concatenating batches would copy them.
        records = self._batch_job.log_records(max(PART_BYTES_MAX, self._job.limits.arrow_batch_bytes_max))
        routed = self.table.routed(batch, records.source(batch.slices).pieces)
        flow = fanout_flow(self._logs, batch.id, routed, self.table.quarantine.url)
        types = [name for name, spec in flow.types.items() if spec.decoded is not None]
        result = self._batch_job.run(batch, flow, records, types)
        self._batch_job.checks.check(batch, result)
        return WrittenShares(result, routed, started_at) if self._complete(flow, result) else SchemaChanged()

    def replay_target(self) -> ExportTarget:
        return ExportTarget(self.table, self.replay)

    def replay(self, chunk: Chunk, batch: Batch, run: int) -> Gathered | None:
        """Run the Spark job of a replay over records out of quarantine. None if a type first had to get its columns."""
        self._logs.state()
        slices = {piece.partition: replayed_slice(self._logs, piece) for piece in chunk.slices}
        flow = replace(fanout_flow(self._logs, batch.id, slices, self.table.quarantine.url), replay_run=run)
        result = self._batch_job.run(batch, flow, chunk.records(self._spark))
        return result if self._complete(flow, result) else None

    def _complete(self, flow: FanoutFlow, gathered: Gathered) -> bool:
        """Whether the types had all columns that they need; if so, every record must be accounted for."""
        if self._added_columns(flow, gathered):
            self._logs.enter_types()
            return False
        check_conserved(flow, gathered)
        return True

    def _added_columns(self, flow: FanoutFlow, gathered: Gathered) -> bool:
        """Create the columns of types with their first records, and add columns that records brought."""
        added = False
        for name, spec in flow.types.items():
            fields = gathered.new_fields(name)
            if not fields or (spec.decoded is not None and self._job.on.new_column != "add"):
                continue
            before = spec.decoded if spec.decoded is not None else pa.schema([])
            columns = new_columns(self._job, spec, fields)
            ignored = left_out(fields, columns)
            if ignored:
                reason = "they cannot be names of new columns"
                self._listener.event(FieldsLeftOut(type=name, fields=ignored, reason=reason))
            if spec.decoded is None or len(columns):
                self._logs.add_columns(name, columns)
                self._listener.event(ColumnsAdded(type=name, columns=new_paths(before, columns)))
                added = True
        return added


# replay


@dataclass(frozen=True, slots=True)
class ExportRuns:
    """The replay runs of an export: the job log lists the files of a run, and every type takes its own from there."""

    table: ExportTable

    def last(self) -> int:
        log = self.table.logs.job_log
        log.refresh()
        return run_number(log)

    def unfinished(self, removed: int) -> tuple[int, ...]:
        """Only the last run can have rows in quarantine: the next one begins after it is finished."""
        last = self.last()
        return (last,) if last > removed else ()

    def find(self, number: int) -> ReplayRun | None:
        """A run that the job log has, once every type has its rows of it."""
        for commit in self.table.logs.job_log.commits():
            if commit.kind == REPLAY and commit.run == number:
                run = ReplayRun(number, commit.batch, _offsets(commit.offsets))
                self.finish(run, commit.offsets)
                return run
        return None

    def finish(self, run: ReplayRun, listed: Listed) -> None:
        """Land what a run lists in every type that does not have it."""
        for name in sorted({rows.type for rows in listed}):
            try:
                self._land_type(name, run, [rows for rows in listed if rows.type == name])
            except PenstockError as error:
                raise TransientError(
                    f"replay run {run.number} cannot be finished: type {name} cannot be written",
                    detail=error.primary,
                    hint="make its folder writable; the next replay finishes this run first",
                ) from error

    def _land_type(self, name: str, run: ReplayRun, listed: Sequence[ReplayedOffsets]) -> None:
        logs, markers = self.table.logs, self.table.markers
        log = logs.find_type_log(name)
        if log is None:
            raise TransientError(logs.unreadable.get(name, "its log is missing"))
        run = replace(run, offsets={rows.place: rows.ranges for rows in listed})
        staged = [file for rows in listed for file in rows.files]
        finals = [output_name("replayed", log.job, run.number, uuid.uuid4().hex) for _ in staged]
        files = committed_files(logs, name, staged, finals)
        days = {str(file.partition_values[DAY_FOLDER]) for file in files}
        _pass(log, run)

        def decide() -> Change | None:
            if run_number(log) >= run.number:
                return None
            markers.hide(name, days)
            change = run_change(log, run, files)
            return replace(change, transactions={**change.transactions, **markers.late_numbers(name, days)})

        if log.swap(decide):
            self.table.environment.at_step("type_committed")
        self.table.finish_renames([name])


class ExportTarget(Target[Listed]):
    """Stages and commits the runs of an export."""

    def __init__(self, export: Export, replay: Callable[[Chunk, Batch, int], Gathered | None]) -> None:
        super().__init__(export.job, export.environment, export.quarantine)
        self._export = export
        self._replay = replay

    @property
    def runs(self) -> ExportRuns:
        return ExportRuns(self._export)

    def refresh(self) -> None:
        self._export.logs.type_logs(refresh=True)
        self._export.finish_renames()

    def _staged(self, chunk: Chunk, batch: Batch, number: int) -> StagedRun[Listed] | None:
        gathered = self._replay(chunk, batch, number)
        if gathered is None:
            return None
        listed = []
        for partition in [piece.partition for piece in chunk.slices]:
            for name, share in gathered.of(partition).items():
                if reason := share.failed or self._export.logs.unreadable.get(name):
                    raise TransientError(
                        f"records of type {name} cannot be replayed: {reason}",
                        hint="make its folder writable and replay again; the records are still in quarantine",
                    )
                if share.files:
                    listed.append(ReplayedOffsets(*placed(partition), share.replayed, name, share.files))
        offsets = {(place.topic, place.number): offsets_of(ranges) for place, ranges in _offsets(listed).items()}
        return StagedRun(chunk.run(number, batch.id, offsets, gathered.total), gathered.total, tuple(listed))

    def _land(self, staged: StagedRun[Listed]) -> bool:
        """List the run in the job log, then land every type. If one fails, the next process finishes the run."""
        run, log = staged.run, self._export.logs.job_log

        def begin() -> Change | None:
            if run_number(log) != run.number - 1:
                return None
            check_staged(self._export.logs.storage, [file for rows in staged.files for file in rows.files])
            record = Provenance(
                kind=REPLAY, job=log.job, batch=run.batch_id, run=run.number, offsets=staged.files, rows=run.rows
            )
            return Change([], {replay_key(log.job): run.number}, record.metadata)

        if not log.swap(begin):
            return False
        self.environment.at_step("replay_begun")
        self.runs.finish(run, staged.files)
        return True


def replayed_slice(logs: ExportLogs, piece: Slice) -> RoutedSlice:
    """A slice for all types; records that a type has yet to read from the log stay in quarantine.

    A lagging type has some. So have all types if the job log was restored and starts over.
    """
    partition, names, state = piece.partition, logs.export.types, logs.cached_state()
    left = {name: state.of(partition).position_of(name) or 0 for name in names}
    takes = {name: piece.start for name in names if name not in logs.unreadable}
    after = logs.files_ends(takes, partition)
    return RoutedSlice(partition.topic_id, piece.start, piece.end, 1, takes, left=left, after=after)


def _offsets(listed: Iterable[ReplayedOffsets]) -> dict[Partition, Ranges]:
    offsets: dict[Partition, list[int]] = {}
    for rows in listed:
        offsets.setdefault(rows.place, []).extend(offsets_of(rows.ranges))
    return {partition: ranges_of(of_partition) for partition, of_partition in offsets.items()}


def _pass(log: DeltaLog, run: ReplayRun) -> None:
    """Move the position of a type beyond replayed rows; by the job log it has passed them, so it skips no record.

    So a job log that is restored from the logs of types does not go back behind them.
    """
    parts = []
    for partition, ranges in run.offsets.items():
        position, end = log.cached_state([partition]).of(partition).position, ranges[-1][1]
        start = ranges[0][0] if position is None else position
        if start < end:
            parts.append(SlicePart(Slice(partition, start, end, start), 0, Counts(), begins=position is None))
    log.commit(Proposal(log.job, new_batch_id(), tuple(parts)))
