"""The write step of an export: one Spark job for all types and days of a batch, or of a replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.events import ColumnsAdded, FieldsLeftOut
from penstock.flow.columns.fitting import new_paths
from penstock.flow.columns.read_fields import with_read_fields
from penstock.flow.columns.seen_types import addable, column_types, left_out
from penstock.flow.compile import fanout_job
from penstock.flow.route.fanout_flow import FanoutFlow, RoutedSlice, TypeFlow
from penstock.flow.stage import PART_BYTES_MAX
from penstock.flow.write.manifest import Counts, PartitionKey
from penstock.flow.write.offset_ranges import offsets_of
from penstock.flow.write.pool import PoolLimits
from penstock.flow.write.report import Share
from penstock.job.spec import DAY_FOLDER, NewColumnPolicy
from penstock.lake.delta.table import Table
from penstock.logs.log import Batch, Log, Piece, Slice
from penstock.staging.batch_job import BatchJob, Records, stopping_nothing
from penstock.staging.reports import Gathered, Shares, check_conserved
from penstock.tables.export.chores import CatchUpBatch
from penstock.tables.export.events import RecordsAreInQuarantineTwice, TypeCannotBeWritten
from penstock.tables.export.export import Export, Roles, WrittenShares
from penstock.tables.export.ledger.routing import Routing, parse_routing
from penstock.tables.export.ledger.state import LedgerState
from penstock.tables.export.replays import LedgerRuns, RunShares, land_replay, left_to_log, raise_run
from penstock.tables.export.spec import TypeSpec, quarantine_url
from penstock.tables.export.table import ExportTable
from penstock.tables.kind import SchemaChanged
from penstock.tables.quarantine.replay import Choice, Chunk, StagedRun, Target, run_number
from penstock.tables.quarantine.rows import at_places, repeated_places


class ExportWriter:
    """Writes batches of an export to staged files of its types."""

    def __init__(self, files: ExportTable, spark: SparkSession, log: Log) -> None:
        self.table = Export(files, log)
        self._files = files
        self._job = files.job
        self._spark = spark
        self._listener = files.environment.listener
        self._batch_job = BatchJob(files.job, spark, log, files.environment, fanout_job)

    def stage(self, batch: Batch) -> WrittenShares | SchemaChanged:
        """Run the batch's Spark job, unless a type first had to get its columns: the batch is planned again."""
        started_at = self._files.environment.now()
        main, roles = not isinstance(batch, CatchUpBatch), self.table.roles(batch)
        # The routing of the job file, unless a catch-up needs another.
        stated = self._files.state().routings.get(batch.routing) if isinstance(batch, CatchUpBatch) else None
        # As large as the parts that the tasks make of them: to put batches together is to copy them.
        records = self._batch_job.log_records(max(PART_BYTES_MAX, self._job.limits.arrow_batch_bytes_max))
        pieces = records.source(batch.slices).pieces
        slices = {_key(piece): _routed(piece, roles[piece.partition], main, pieces) for piece in batch.slices}
        routing = self._files.routing if stated is None else parse_routing(stated)
        flow = fanout_flow(self._files, routing, batch.id, slices)
        found = self._batch_job.run(batch, flow, records)
        self._batch_job.check(batch, found, counted=main)
        return WrittenShares(found, roles, main, started_at) if self._complete(flow, found) else SchemaChanged()

    def replay_target(self) -> ExportTarget:
        return ExportTarget(self, self._spark)

    def replay(
        self, batch: Batch, slices: Mapping[PartitionKey, RoutedSlice], run: int, records: Records
    ) -> Shares | None:
        """Run the Spark job of a replay over records out of quarantine. None if a type first had to get its columns."""
        flow = fanout_flow(self._files, self._files.routing, batch.id, slices)
        flow = replace(flow, on=stopping_nothing(flow.on), replay_run=run)
        found = self._batch_job.run(batch, flow, records)
        return found.shares if self._complete(flow, found) else None

    def _complete(self, flow: FanoutFlow, found: Gathered) -> bool:
        """Whether the types had all columns that they need; if so, every record must be accounted for."""
        if self._added_columns(flow, found):
            return False
        check_conserved(flow, found)
        return True

    def _added_columns(self, flow: FanoutFlow, found: Gathered) -> bool:
        """Fix the columns of types that were met for the first time, and add those that records brought."""
        added = False
        for name, spec in flow.types.items():
            fields = found.new_fields(name)
            if not fields or (spec.decoded is not None and self._job.on.new_column is not NewColumnPolicy.ADD):
                continue
            before = spec.decoded if spec.decoded is not None else pa.schema([])
            types = column_types(fields, self._job.on.mixed_types)
            if spec.decoded is None:
                types = with_read_fields(types, spec.event_time, self._job.columns.values())
            columns = addable(types, [*before.names, *self._job.columns, DAY_FOLDER], before.names)
            ignored = left_out(fields, columns)
            if ignored:
                reason = "they cannot be names of new columns"
                self._listener.event(FieldsLeftOut(type=name, fields=ignored, reason=reason))
            if spec.decoded is None or len(columns):
                self._files.change_schema(name, columns)
                self._listener.event(ColumnsAdded(type=name, columns=new_paths(before, columns)))
                added = True
        return added


class ExportTarget(Target[RunShares]):
    """Replay of an export: each record once, into its type and day, by an entry of the ledger (RULES Q2)."""

    def __init__(self, writer: ExportWriter, spark: SparkSession) -> None:
        export = writer.table
        super().__init__(export.job, export.environment, export.quarantine)
        self._export = export
        self._writer = writer
        self._spark = spark
        self._table = export.files

    @property
    def runs(self) -> LedgerRuns:
        return LedgerRuns(self._table)

    def refresh(self) -> None:
        self._table.complete()
        quarantine = self.quarantine.table()
        raise_run(self._table, max(self._table.runs_taken(), run_number(quarantine) if quarantine is not None else 0))

    def choice(self, quarantine: Table) -> Choice:
        """All but those that are there twice: a type that began at the beginning read them again, and they were bad."""
        repeated = repeated_places(quarantine)
        if not len(repeated):
            return lambda rows: rows
        self.listener.event(RecordsAreInQuarantineTwice(records=len(repeated)))
        return lambda rows: rows.filter(pc.invert(at_places(rows, repeated)))

    def _staged(self, chunk: Chunk, batch: Batch, number: int) -> StagedRun[RunShares] | None:
        state = self._table.state()
        slices = {_key(each): self._slice(each, state) for each in chunk.slices}
        found = self._writer.replay(batch, slices, number, chunk.records(self._spark))
        return None if found is None else self._writable(chunk, batch.id, number, found)

    def _slice(self, piece: Slice, state: LedgerState) -> RoutedSlice:
        names = self._export.spec.all_types
        left = {name: ranges for name in names if (ranges := left_to_log(state, piece.partition, name))}
        takes = dict.fromkeys(names, piece.start)
        return RoutedSlice(piece.partition.topic_id, piece.start, piece.end, (piece.start,), takes, left=left)

    def _writable(
        self, chunk: Chunk, batch_id: str, number: int, found: Mapping[PartitionKey, Mapping[str, Share]]
    ) -> StagedRun[RunShares]:
        """What can be committed: a type that cannot be written now leaves its records where they are."""
        stuck = dict(self._stuck(found, number))
        for name, reason in stuck.items():
            self.listener.event(TypeCannotBeWritten(type=name, reason=reason))
        total, waiting = Counts(), 0
        kept: dict[PartitionKey, dict[str, Share]] = {}
        for key, named in found.items():
            for name, share in named.items():
                bad = name in stuck
                total += Counts(read=share.counts.read, quarantined=share.counts.read) if bad else share.counts
                waiting += share.counts.read if bad else 0
                if share.files and not bad:
                    kept.setdefault(key, {})[name] = share
        offsets = {
            key: [offset for share in named.values() for offset in offsets_of(share.replayed)]
            for key, named in kept.items()
        }
        run = chunk.run(number, batch_id, offsets, total)
        shares = {each.partition: kept[_key(each)] for each in chunk.slices if _key(each) in kept}
        return StagedRun(run, total, shares, waiting)

    def _stuck(self, found: Mapping[PartitionKey, Mapping[str, Share]], number: int) -> Iterator[tuple[str, str]]:
        days: dict[str, set[str]] = {}
        for named in found.values():
            for name, share in named.items():
                if share.failed:
                    yield name, share.failed
                elif share.files:
                    days.setdefault(name, set()).update(share.days)
        for name, wanted in days.items():
            if (reason := self._table.replay_refusal(name, wanted, number)) is not None:
                yield name, reason

    def _land(self, staged: StagedRun[RunShares]) -> bool:
        landed = land_replay(self._table, staged.run, staged.files)
        self._export.telling.days()
        return landed


def fanout_flow(
    table: ExportTable, routing: Routing, batch_id: str, slices: Mapping[PartitionKey, RoutedSlice]
) -> FanoutFlow:
    """What the tasks of a batch must know."""
    job = table.job
    return FanoutFlow(
        job=job.name,
        batch_id=batch_id,
        decode=replace(job.decode, payload=routing.payload),
        on=replace(job.on, tombstone=routing.tombstone),
        route=routing.route,
        types={name: _type_flow(table, routing, spec) for name, spec in job.table.all_types.items()},
        columns=job.columns,
        days=job.table.days,
        now_ms=int(table.environment.now() * 1000),
        root_url=job.table.path,
        staged_folder="" if job.table.format == "delta" else table.places.staged,
        quarantine_url=quarantine_url(job),
        slices=slices,
        failpoint=table.environment.failpoint,
        storage_options=dict(job.table.storage_options),
        compression=job.table.compression,
        statistics=job.table.format == "delta",
        limits=PoolLimits(
            open_writers_max=job.limits.open_writers_max, row_group_bytes_max=job.limits.row_group_bytes_max
        ),
    )


def _type_flow(table: ExportTable, routing: Routing, spec: TypeSpec) -> TypeFlow:
    raw = routing.is_unknown(spec.name)
    # What a message gives is in its descriptor; a JSON record can be read for every column that there is.
    decoded = table.decoded_of(spec.name) if table.job.decode.format == "json" and not raw else spec.schema
    return TypeFlow(
        name=spec.name,
        values=routing.values.get(spec.name, ()),
        decoded=decoded,
        target=table.columns_of(spec.name),
        event_time=spec.event_time,
        message=spec.message,
        stated=pa.schema([]) if spec.schema is None else spec.schema,
        raw=raw,
    )


def _routed(piece: Slice, roles: Roles, main: bool, pieces: Sequence[Piece]) -> RoutedSlice:
    starts = tuple(each.start for each in pieces if (each.topic, each.partition) == _key(piece))
    takes = {**roles.takes, **roles.taken_from}
    return RoutedSlice(piece.partition.topic_id, piece.start, piece.end, starts, takes, dict(roles.takes), main)


def _key(piece: Slice) -> PartitionKey:
    return piece.partition.topic, piece.partition.number
