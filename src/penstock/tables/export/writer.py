"""The write step of an export: one Spark job for all types and days of a batch or of a replay, and replay's commits.

Each record is replayed once, into its type and day (RULES Q2). A run of number N begins with a commit to the job log,
refused if another run has that number. Then every type with rows of it commits them with N and their offsets; then they
are removed from quarantine, which takes the number N too. A run that was not finished is finished by the next process:
first every type's log takes N, so that the former process cannot land more of it, then what the types did land is
removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.environment import new_batch_id
from penstock.errors import TransientError
from penstock.events import ColumnsAdded, FieldsLeftOut
from penstock.flow.columns.fitting import new_paths
from penstock.flow.columns.read_fields import with_read_fields
from penstock.flow.columns.seen_types import addable, column_types, left_out
from penstock.flow.compile import fanout_job
from penstock.flow.route.fanout_flow import FanoutFlow, RoutedSlice, TypeFlow
from penstock.flow.stage import PART_BYTES_MAX
from penstock.flow.write.manifest import Counts, PartitionKey, Ranges, offsets_of, ranges_of
from penstock.flow.write.pool import PoolLimits
from penstock.flow.write.report import UNROUTED, Share
from penstock.job.spec import DAY_FOLDER
from penstock.lake.delta.files import check_staged
from penstock.lake.delta.keys import replay_key
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, DeltaLog
from penstock.lake.proposal import Proposal, SlicePart
from penstock.logs.log import Batch, Log, Partition, Piece, Slice
from penstock.quarantine.replay import (
    Chunk,
    OvertakenError,
    ReplayRun,
    StagedRun,
    TableRuns,
    Target,
    run_change,
    run_number,
)
from penstock.staging.batch_job import BatchJob, Records, stopping_nothing
from penstock.staging.reports import Gathered, Shares, check_conserved
from penstock.tables.export.catch_up import CatchUpBatch
from penstock.tables.export.commits import Roles, committed_files
from penstock.tables.export.export import Export, WrittenShares
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.names import output_name
from penstock.tables.export.spec import TypeSpec
from penstock.tables.export.state import ExportState
from penstock.tables.kind import SchemaChanged

RunShares = Mapping[Partition, Mapping[str, Share]]
"""The shares that a run staged, by partition and type."""
RunJob = Callable[[Batch, Mapping[PartitionKey, RoutedSlice], int, Records], Shares | None]

_NO_END = 2**63 - 1


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
        main, roles = not isinstance(batch, CatchUpBatch), self.table.roles(batch)
        # As large as the parts of the tasks: concatenating batches would copy them.
        records = self._batch_job.log_records(max(PART_BYTES_MAX, self._job.limits.arrow_batch_bytes_max))
        pieces = records.source(batch.slices).pieces
        slices = {_key(piece): _routed(piece, roles[piece.partition], main, pieces) for piece in batch.slices}
        flow = fanout_flow(self._logs, batch.id, slices, self.table.quarantine.url)
        result = self._batch_job.run(batch, flow, records)
        self._batch_job.check(batch, result, counted=main)
        return WrittenShares(result, roles, started_at) if self._complete(flow, result) else SchemaChanged()

    def replay_target(self) -> ExportTarget:
        return ExportTarget(self.table, self._spark, self.replay)

    def replay(
        self, batch: Batch, slices: Mapping[PartitionKey, RoutedSlice], run: int, records: Records
    ) -> Shares | None:
        """Run the Spark job of a replay over records out of quarantine. None if a type first had to get its columns."""
        flow = fanout_flow(self._logs, batch.id, slices, self.table.quarantine.url)
        flow = replace(flow, on=stopping_nothing(flow.on), replay_run=run)
        result = self._batch_job.run(batch, flow, records)
        return result.shares if self._complete(flow, result) else None

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
            types = column_types(fields)
            if spec.decoded is None:
                types = with_read_fields(types, spec.event_time, self._job.columns.values())
            columns = addable(types, [*before.names, *self._job.columns, DAY_FOLDER], before.names)
            ignored = left_out(fields, columns)
            if ignored:
                reason = "they cannot be names of new columns"
                self._listener.event(FieldsLeftOut(type=name, fields=ignored, reason=reason))
            if spec.decoded is None or len(columns):
                self._logs.add_columns(name, columns)
                self._listener.event(ColumnsAdded(type=name, columns=new_paths(before, columns)))
                added = True
        return added


def fanout_flow(
    logs: ExportLogs, batch_id: str, slices: Mapping[PartitionKey, RoutedSlice], quarantine_url: str
) -> FanoutFlow:
    """The flow that the tasks of a batch run."""
    job, environment = logs.job, logs.environment
    return FanoutFlow(
        job=job.name,
        batch_id=batch_id,
        decode=job.decode,
        on=job.on,
        route=job.table.route,
        types={name: _type_flow(logs, spec) for name, spec in job.table.types.items()},
        columns=job.columns,
        days=job.table.days,
        now_ms=int(environment.now() * 1000),
        root_url=job.table.path,
        staged_folder=logs.places.staged if logs.is_plain else "",
        quarantine_url=quarantine_url,
        slices=slices,
        failpoint=environment.failpoint,
        storage_options=dict(job.table.storage_options),
        compression=job.table.compression,
        statistics=not logs.is_plain,
        limits=PoolLimits(
            open_writers_max=job.limits.open_writers_max, row_group_bytes_max=job.limits.row_group_bytes_max
        ),
    )


def _type_flow(logs: ExportLogs, spec: TypeSpec) -> TypeFlow:
    # The descriptor states the fields of a message; a JSON record may have fields for every column of the log.
    decoded = logs.decoded_of(spec.name) if logs.job.decode.format == "json" else spec.schema
    return TypeFlow(
        name=spec.name,
        values=spec.values,
        decoded=decoded,
        target=logs.columns_of(spec.name),
        event_time=spec.event_time,
        message=spec.message,
    )


def _routed(piece: Slice, roles: Roles, main: bool, pieces: Sequence[Piece]) -> RoutedSlice:
    starts = tuple(part.start for part in pieces if (part.topic, part.partition) == _key(piece))
    counts, takes = dict(roles.takes), dict(roles.taken_from)
    return RoutedSlice(piece.partition.topic_id, piece.start, piece.end, starts, takes, counts, main, after=roles.after)


def _key(piece: Slice) -> PartitionKey:
    return piece.partition.topic, piece.partition.number


# replay


@dataclass(frozen=True, slots=True)
class ExportRuns:
    """The replay runs of an export: only the last one can still have rows in quarantine."""

    logs: ExportLogs

    def last(self) -> int:
        log = self.logs.job_log
        log.refresh()
        return run_number(log)

    def unfinished(self, removed: int) -> tuple[int, ...]:
        last = self.last()
        return (last,) if last > removed else ()

    def find(self, number: int) -> ReplayRun | None:
        """The offsets of a run that types landed; types are fenced first, so none lands more of it."""
        offsets: dict[Partition, Ranges] = {}
        for log in self.logs.type_logs().values():
            log.swap(lambda log=log: _fence(log, number))  # type: ignore[misc]
            run = TableRuns(log).find(number)
            for partition, ranges in (run.offsets if run is not None else {}).items():
                offsets[partition] = ranges_of([*offsets_of(offsets.get(partition, ())), *offsets_of(ranges)])
        for name, reason in sorted(self.logs.unreadable.items()):
            # It may hold rows of the run: they would stay in quarantine, and another run would write them again.
            raise TransientError(
                f"replay run {number} cannot be finished: type {name} cannot be read",
                detail=reason,
                hint="make its log readable and replay again",
            )
        begun = TableRuns(self.logs.job_log).find(number)
        return None if begun is None else ReplayRun(number, begun.batch_id, offsets)


def _fence(log: DeltaLog, number: int) -> Change | None:
    if run_number(log) >= number:
        return None
    return Change([], {replay_key(log.job): number}, Provenance(kind="fence", job=log.job).metadata)


class ExportTarget(Target[RunShares]):
    """Stages and commits the runs of an export."""

    def __init__(self, export: Export, spark: SparkSession, run_job: RunJob) -> None:
        super().__init__(export.job, export.environment, export.quarantine)
        self._export = export
        self._logs = export.logs
        self._spark = spark
        self._run_job = run_job

    @property
    def runs(self) -> ExportRuns:
        return ExportRuns(self._logs)

    def refresh(self) -> None:
        self._logs.type_logs(refresh=True)
        self._export.finish_renames()

    def _staged(self, chunk: Chunk, batch: Batch, number: int) -> StagedRun[RunShares] | None:
        state = self._logs.state()
        slices = {(piece.partition.topic, piece.partition.number): self._slice(piece, state) for piece in chunk.slices}
        shares = self._run_job(batch, slices, number, chunk.records(self._spark))
        if shares is None:
            return None
        self._refuse_failed(shares)
        total = sum((share.counts for named in shares.values() for share in named.values()), Counts())
        offsets = {
            key: [offset for share in named.values() for offset in offsets_of(share.replayed)]
            for key, named in shares.items()
        }
        keys = {(piece.partition.topic, piece.partition.number): piece.partition for piece in chunk.slices}
        written = {
            keys[key]: {name: share for name, share in named.items() if share.files} for key, named in shares.items()
        }
        return StagedRun(chunk.run(number, batch.id, offsets, total), total, written)

    def _slice(self, piece: Slice, state: ExportState) -> RoutedSlice:
        partition, names = piece.partition, self._logs.export.types
        unread = {name: unread_offsets(state, partition, name) for name in names}
        takes = {name: piece.start for name in names if name not in self._logs.unreadable}
        after = self._logs.files_ends(takes, partition)
        return RoutedSlice(partition.topic_id, piece.start, piece.end, (piece.start,), takes, left=unread, after=after)

    def _refuse_failed(self, shares: Shares) -> None:
        """A type that cannot be written stops the replay before anything of the run is committed."""
        for named in shares.values():
            for name, share in named.items():
                if name == UNROUTED:
                    continue
                self._logs.find_type_log(name)
                if reason := share.failed or (share.files and self._export.finishing.probe(name)):
                    raise TransientError(
                        f"records of type {name} cannot be replayed: {reason}",
                        hint="make its folder writable and replay again; the records are still in quarantine",
                    )

    def _land(self, staged: StagedRun[RunShares]) -> bool:
        """Begin the run in the job log, then land every type. If one fails, the next process finishes the run."""
        run, log = staged.run, self._logs.job_log

        def begin() -> Change | None:
            return run_change(log, replace(run, offsets={}), ()) if run_number(log) == run.number - 1 else None

        if not log.swap(begin) and not _has_run(log, run):
            raise OvertakenError(f"another replay committed run {run.number} first")
        self.environment.at_step("replay_begun")
        for name in sorted({name for named in staged.files.values() for name in named}):
            self._land_type(
                name, run, {partition: named[name] for partition, named in staged.files.items() if name in named}
            )
        return True

    def _land_type(self, name: str, run: ReplayRun, shares: Mapping[Partition, Share]) -> None:
        log = self._logs.find_type_log(name)
        assert log is not None, f"type {name} has files and no log"
        days, markers = {day for share in shares.values() for day in share.days}, self._export.markers
        staged = [file for share in shares.values() for file in share.files]
        finals = [output_name("replayed", self.job.name, run.number, uuid.uuid4().hex) for _ in staged]
        files = committed_files(self._logs, name, staged, finals)
        landed = replace(run, offsets={partition: share.replayed for partition, share in shares.items()})
        before = self._logs.days_of(name)
        _pass(log, landed)

        def decide() -> Change | None:
            if run_number(log) >= run.number:
                return None
            markers.hide(name, days)
            check_staged(self._logs.storage, staged)
            change = run_change(log, landed, files)
            return replace(change, transactions={**change.transactions, **markers.late_numbers(name, days)})

        if not log.swap(decide) and not _has_run(log, run):
            raise OvertakenError(f"another process finished replay run {run.number} before type {name} was written")
        self.environment.at_step("type_committed")
        markers.report_late(name, before)
        self._export.finishing.finish(self._export.finishing.renames_of(name, files))


def _has_run(log: DeltaLog, run: ReplayRun) -> bool:
    """Whether a log has this run: the response to a commit may have been lost."""
    landed = TableRuns(log).find(run.number)
    return landed is not None and landed.batch_id == run.batch_id


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


def unread_offsets(state: ExportState, partition: Partition, name: str) -> Ranges:
    """Offsets of a partition that a type has yet to read from the log: their quarantined records are not replayed.

    A lagging type has some. So have all types if the job log was restored and starts over.
    """
    return ((state.of(partition).position_of(name) or 0, _NO_END),)
