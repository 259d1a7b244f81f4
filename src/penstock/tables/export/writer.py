"""The write step of an export: one Spark job for all types and days of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.events import ColumnsAdded, FieldsLeftOut
from penstock.flow.columns.fitting import new_paths
from penstock.flow.columns.read_fields import with_read_fields
from penstock.flow.columns.seen_types import addable, column_types, left_out
from penstock.flow.compile import fanout_job
from penstock.flow.route.fanout_flow import FanoutFlow, RoutedSlice, TypeFlow
from penstock.flow.stage import PART_BYTES_MAX
from penstock.flow.write.manifest import Marks, PartitionKey
from penstock.flow.write.pool import PoolLimits
from penstock.job.spec import NewColumnPolicy
from penstock.logs.log import Batch, Log, Partition, Piece, Slice
from penstock.staging.batch_job import BatchJob, Records, stopping_nothing
from penstock.staging.reports import Gathered, Shares, check_conserved
from penstock.tables.export.ledger.routing import Routing, parse_routing
from penstock.tables.export.ledger.state import Cause
from penstock.tables.export.spec import TypeSpec
from penstock.tables.export.table import ExportTable

DAY_COLUMN = "day"
"""The name under which readers see the folders: no column may have it."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Who is written in a slice: the types that take part, each from an offset, and why the others do not."""

    takes: Mapping[str, int]
    lagging: Mapping[str, Cause] = field(default_factory=dict)
    taken_from: Mapping[str, int] = field(default_factory=dict)
    """Further offsets where a type's own table is ahead: it has what lies between already."""


@dataclass(frozen=True, slots=True)
class WrittenShares:
    """A batch of all types, ready for its commit."""

    found: Gathered
    roles: Mapping[Partition, Roles]
    main: bool
    staged_at: float

    @property
    def marks(self) -> Marks:
        return self.found.marks


class ExportWriter:
    """Writes batches of an export to staged files of its types."""

    def __init__(self, table: ExportTable, spark: SparkSession, log: Log) -> None:
        self._job = table.job
        self._table = table
        self._listener = table.environment.listener
        self._failpoint = table.environment.failpoint
        self._batch_job = BatchJob(table.job, spark, log, table.environment, fanout_job)

    def write(
        self, batch: Batch, roles: Mapping[Partition, Roles], main: bool, routing: str = ""
    ) -> WrittenShares | None:
        """Run the batch's Spark job. None if a type first had to get its columns: the batch is planned again.

        `routing` is the id of the one that a catch-up needs; empty: that of the job file.
        """
        started_at = self._table.environment.now()
        stated = self._table.state().routings.get(routing)
        # As large as the parts that the tasks make of them: to put batches together is to copy them.
        records = self._batch_job.log_records(max(PART_BYTES_MAX, self._job.limits.arrow_batch_bytes_max))
        pieces = records.source(batch.slices).pieces
        slices = {
            (piece.partition.topic, piece.partition.number): _routed(piece, roles[piece.partition], main, pieces)
            for piece in batch.slices
        }
        flow = self._flow(batch, slices, self._table.routing if stated is None else parse_routing(stated))
        found = self._batch_job.run(batch, flow, records)
        self._batch_job.check(batch, found, counted=main)
        if self._added_columns(flow, found):
            return None
        check_conserved(flow, found)
        return WrittenShares(found, roles, main, started_at)

    def replay(
        self, batch: Batch, slices: Mapping[PartitionKey, RoutedSlice], run: int, records: Records
    ) -> Shares | None:
        """Run the Spark job of a replay over records out of quarantine. None if a type first had to get its columns."""
        flow = self._flow(batch, slices, self._table.routing)
        flow = replace(flow, on=stopping_nothing(flow.on), replay_run=run)
        found = self._batch_job.run(batch, flow, records)
        if self._added_columns(flow, found):
            return None
        check_conserved(flow, found)
        return found.shares

    def _flow(self, batch: Batch, slices: Mapping[PartitionKey, RoutedSlice], routing: Routing) -> FanoutFlow:
        return replace(fanout_flow(self._table, routing, batch.id, slices), failpoint=self._failpoint)

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
            columns = addable(types, [*before.names, *self._job.columns, DAY_COLUMN], before.names)
            ignored = left_out(fields, columns)
            if ignored:
                reason = "they cannot be names of new columns"
                self._listener.event(FieldsLeftOut(type=name, fields=ignored, reason=reason))
            if spec.decoded is None or len(columns):
                self._table.change_schema(name, columns)
                self._listener.event(ColumnsAdded(type=name, columns=new_paths(before, columns)))
                added = True
        return added


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
        quarantine_url=job.table.quarantine_path,
        slices=slices,
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
    place = (piece.partition.topic, piece.partition.number)
    starts = tuple(each.start for each in pieces if (each.topic, each.partition) == place)
    takes = {**roles.takes, **roles.taken_from}
    return RoutedSlice(piece.partition.topic_id, piece.start, piece.end, starts, takes, dict(roles.takes), main)
