"""The write step of a routed job: one Spark job for all types and days of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.flow.columns.fitting import new_paths
from penstock.flow.columns.new_fields import addable, left_out
from penstock.flow.columns.read_fields import with_read_fields
from penstock.flow.columns.seen_types import column_types, from_json, merged
from penstock.flow.compile import Source
from penstock.flow.route.fanout import PART_BYTES_MAX, fanout_stage
from penstock.flow.route.type_counts import FanoutFlow, FanoutReport, RoutedSlice, Share, TypeFlow, decode_fanout
from penstock.flow.task import REPORT_SCHEMA
from penstock.flow.write.manifest import Counts, Marks, PartitionKey, gathered_marks
from penstock.flow.write.reasons import merged_reasons
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.logs.log import Batch, EpochMark, Log, Partition, Slice
from penstock.logs.log import Source as LogSource
from penstock.spark.failures import spark_errors
from penstock.staging.policies import stopping_nothing
from penstock.staging.read_checks import ReadChecks
from penstock.tables.export.ledger.routing import Routing, parse_routing
from penstock.tables.export.ledger.state import Cause, LedgerState
from penstock.tables.export.spec import ExportSpec, TypeSpec
from penstock.tables.export.table import ExportTable

DAY_COLUMN = "day"
"""The name under which readers see the folders: no column may have it."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Who is written in a slice: the types that take part, each from an offset, and why the others do not."""

    takes: Mapping[str, int]
    behind: Mapping[str, Cause] = field(default_factory=dict)
    taken_from: Mapping[str, int] = field(default_factory=dict)
    """Further offsets where a type's own table is ahead: it has what lies between already."""


@dataclass(frozen=True, slots=True)
class WrittenShares:
    """What the Spark job of a batch left behind, by partition and type."""

    shares: Mapping[PartitionKey, Mapping[str, Share]]
    roles: Mapping[Partition, Roles]
    main: bool
    staged_at: float
    marks: Marks = field(default_factory=dict)

    def mark_of(self, partition: Partition) -> EpochMark | None:
        return max(self.marks.get((partition.topic, partition.number), ()), default=None)

    def of(self, partition: Partition) -> Mapping[str, Share]:
        return self.shares.get((partition.topic, partition.number), {})


class ExportWriter:
    """Writes batches of a routed job to staged files of its types."""

    def __init__(
        self,
        job: JobSpec[ExportSpec],
        spark: SparkSession,
        table: ExportTable,
        log: Log,
        environment: Environment,
    ) -> None:
        self._job = job
        self._spark = spark
        self._table = table
        self._log = log
        self._listener = environment.listener
        self._failpoint = environment.failpoint
        self.checks = ReadChecks(job, log)

    def write(
        self, batch: Batch, roles: Mapping[Partition, Roles], main: bool, routing: str = ""
    ) -> WrittenShares | None:
        """Run the batch's Spark job. None if a type first had to get its columns: the batch is planned again.

        `routing` is the id of the one that a catch-up needs; empty: that of the job file.
        """
        started_at = self._table.environment.now()
        state = self._table.state()
        with spark_errors(self._spark):
            tasks_min = self._spark.sparkContext.defaultParallelism
            # As large as the parts that the tasks make of them: to put batches together is to copy them.
            batch_bytes = max(PART_BYTES_MAX, self._job.limits.arrow_batch_bytes_max)
            reader = self._log.source(batch.slices, tasks_min, batch_bytes)
            flow = self._flow(batch, roles, main, reader, self._routing(state, routing))
            count = len(reader.pieces)
            source = Source(self._spark.range(0, count, 1, max(1, count)), reader, tasks=count)
            reports = [
                decode_fanout(report) for report in source.reports(source.map(fanout_stage(flow), REPORT_SCHEMA))
            ]
        marks = gathered_marks(report.marks for report in reports)
        written = WrittenShares(_gathered(reports), roles, main, started_at, marks)
        self._check(batch, written, reports)
        return None if self._added_columns(flow, reports) else written

    def replay(
        self, batch: Batch, slices: Mapping[PartitionKey, RoutedSlice], run: int, records: Source
    ) -> Mapping[PartitionKey, Mapping[str, Share]] | None:
        """Run the Spark job of a replay over records out of quarantine. None if a type first had to get its columns."""
        flow = fanout_flow(self._job, self._table, self._table.routing, batch.id, slices)
        flow = replace(flow, on=stopping_nothing(flow.on), failpoint=self._failpoint, replay_run=run)
        with spark_errors(self._spark):
            reports = [
                decode_fanout(report) for report in records.reports(records.map(fanout_stage(flow), REPORT_SCHEMA))
            ]
        return None if self._added_columns(flow, reports) else _gathered(reports)

    def _routing(self, state: LedgerState, routing: str) -> Routing:
        return parse_routing(state.routings[routing]) if routing in state.routings else self._table.routing

    def _flow(
        self, batch: Batch, roles: Mapping[Partition, Roles], main: bool, reader: LogSource, routing: Routing
    ) -> FanoutFlow:
        slices = {
            (piece.partition.topic, piece.partition.number): _routed(piece, roles[piece.partition], main, reader)
            for piece in batch.slices
        }
        flow = fanout_flow(self._job, self._table, routing, batch.id, slices)
        return replace(flow, failpoint=self._failpoint)

    def _check(self, batch: Batch, written: WrittenShares, reports: list[FanoutReport]) -> None:
        self.checks.refuse_bad_record(next((report.first_error for report in reports if report.first_error), ""))
        counts = (share.counts for named in written.shares.values() for share in named.values())
        reasons = merged_reasons(each for report in reports for each in report.reasons)
        self.checks.refuse_bad_share(sum(counts, Counts()), reasons)
        for piece in batch.slices if written.main else ():
            read = sum(share.counts.read for share in written.of(piece.partition).values())
            self.checks.check_count(piece, read)

    def _added_columns(self, flow: FanoutFlow, reports: list[FanoutReport]) -> bool:
        """Fix the columns of types that were met for the first time, and add those that records brought."""
        added = False
        for name, spec in flow.types.items():
            found = merged(
                from_json(share.new_fields)
                for report in reports
                for named in report.shares.values()
                if (share := named.get(name)) is not None
            )
            if not found or (spec.decoded is not None and self._job.on.new_column is not NewColumnPolicy.ADD):
                continue
            taken = [*(spec.decoded.names if spec.decoded is not None else ()), *self._job.columns, DAY_COLUMN]
            types = column_types(found, self._job.on.mixed_types)
            if spec.decoded is None:
                types = with_read_fields(types, spec.event_time, self._job.columns.values())
            columns = addable(types, taken, () if spec.decoded is None else spec.decoded.names)
            ignored = left_out(found, columns)
            if ignored:
                reason = "they cannot be names of new columns"
                self._listener.event("fields left out", type=name, fields=ignored, reason=reason)
            if spec.decoded is None or len(columns):
                before = spec.decoded if spec.decoded is not None else pa.schema([])
                self._table.change_schema(name, columns)
                self._listener.event("columns added", type=name, columns=new_paths(before, columns))
                added = True
        return added


def fanout_flow(
    job: JobSpec[ExportSpec],
    table: ExportTable,
    routing: Routing,
    batch_id: str,
    slices: Mapping[PartitionKey, RoutedSlice],
) -> FanoutFlow:
    """What the tasks of a batch must know."""
    return FanoutFlow(
        job=job.name,
        batch_id=batch_id,
        decode=replace(job.decode, payload=routing.payload),
        on=replace(job.on, tombstone=routing.tombstone),
        route=routing.route,
        types={name: _type_flow(job, table, routing, spec) for name, spec in job.table.all_types.items()},
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
        open_writers_max=job.limits.open_writers_max,
        row_group_bytes_max=job.limits.row_group_bytes_max,
    )


def _type_flow(job: JobSpec, table: ExportTable, routing: Routing, spec: TypeSpec) -> TypeFlow:
    raw = routing.is_unknown(spec.name)
    # What a message gives is in its descriptor; a JSON record can be read for every column that there is.
    decoded = table.decoded_of(spec.name) if job.decode.format == "json" and not raw else spec.schema
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


def _routed(piece: Slice, roles: Roles, main: bool, reader: LogSource) -> RoutedSlice:
    place = (piece.partition.topic, piece.partition.number)
    starts = tuple(each.start for each in reader.pieces if (each.topic, each.partition) == place)
    takes = {**roles.takes, **roles.taken_from}
    return RoutedSlice(piece.partition.topic_id, piece.start, piece.end, starts, takes, dict(roles.takes), main)


def _gathered(reports: list[FanoutReport]) -> dict[PartitionKey, dict[str, Share]]:
    gathered: dict[PartitionKey, dict[str, Share]] = {}
    for report in reports:
        for key, named in report.shares.items():
            into = gathered.setdefault(key, {})
            for name, share in named.items():
                into[name] = into[name] + share if name in into else share
    return gathered
