"""The write step of an export: one Spark job for all types and days of a batch, or of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.events import ColumnsAdded, FieldsLeftOut
from penstock.flow.columns.fitting import new_paths
from penstock.flow.columns.read_fields import with_read_fields
from penstock.flow.columns.seen_types import addable, column_types, left_out
from penstock.flow.compile import fanout_job
from penstock.flow.route.fanout_flow import FanoutFlow, RoutedSlice, TypeFlow
from penstock.flow.stage import PART_BYTES_MAX
from penstock.flow.write.manifest import PartitionKey
from penstock.flow.write.pool import PoolLimits
from penstock.job.spec import DAY_FOLDER, NewColumnPolicy
from penstock.logs.log import Batch, Log, Piece, Slice
from penstock.staging.batch_job import BatchJob, Records, stopping_nothing
from penstock.staging.reports import Gathered, Shares, check_conserved
from penstock.tables.export.catch_up import CatchUpBatch
from penstock.tables.export.commits import Roles
from penstock.tables.export.export import Export, WrittenShares
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.replay import ExportTarget
from penstock.tables.export.spec import TypeSpec
from penstock.tables.kind import SchemaChanged


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
        # As large as the parts that the tasks make of them: to put batches together is to copy them.
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
        """Fix the columns of types that were met for the first time, and add those that records brought."""
        added = False
        for name, spec in flow.types.items():
            fields = gathered.new_fields(name)
            if not fields or (spec.decoded is not None and self._job.on.new_column is not NewColumnPolicy.ADD):
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
    """What the tasks of a batch must know."""
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
    # What a message gives is in its descriptor; a JSON record can be read for every column that there is.
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
