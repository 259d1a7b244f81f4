"""The write step of a routed job: one Spark job for all types and days of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.engine.events import Listener
from penstock.engine.read_checks import ReadChecks
from penstock.engine.task_errors import task_error
from penstock.engine.writing import BatchFailedError, last_cause
from penstock.errors import PenstockError
from penstock.failpoints import Failpoint
from penstock.flow.compile import Source
from penstock.flow.fanout import fanout_stage
from penstock.flow.manifest import PartitionKey
from penstock.flow.new_fields import addable, merge, unpack
from penstock.flow.shares import FanoutFlow, FanoutReport, RoutedSlice, Share, TypeFlow, decode_fanout
from penstock.flow.task import REPORT_SCHEMA
from penstock.job.spec import ExportSpec, JobSpec, NewColumnPolicy, TypeSpec
from penstock.log.kafka import KafkaLog
from penstock.log.offsets import Batch, Partition, Slice
from penstock.log.reader import PieceReader
from penstock.log.source import source_error
from penstock.tables.parquet.routing import Routing, parse_routing
from penstock.tables.parquet.schemas import schema_of
from penstock.tables.parquet.state import Cause, LedgerState
from penstock.tables.parquet.table import ExportTable

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

    def of(self, partition: Partition) -> Mapping[str, Share]:
        return self.shares.get((partition.topic, partition.number), {})


class ExportWriter:
    """Writes batches of a routed job to staged files of its types."""

    def __init__(
        self,
        job: JobSpec,
        export: ExportSpec,
        spark: SparkSession,
        table: ExportTable,
        log: KafkaLog,
        listener: Listener,
        failpoint: Failpoint | None,
    ) -> None:
        self._job = job
        self._export = export
        self._spark = spark
        self._table = table
        self._log = log
        self._listener = listener
        self._failpoint = failpoint
        self.checks = ReadChecks(job, log)

    def write(
        self, batch: Batch, roles: Mapping[Partition, Roles], main: bool, routing: str = ""
    ) -> WrittenShares | None:
        """Run the batch's Spark job. None if a type first had to get its columns: the batch is planned again.

        `routing` is the id of the one that a catch-up needs; empty: that of the job file.
        """
        started_at = self._table.environment.now()
        state = self._table.state()
        tasks_min = self._spark.sparkContext.defaultParallelism
        reader = PieceReader.of(self._job.log, batch.slices, tasks_min, self._job.limits.arrow_batch_bytes_max)
        flow = self._flow(batch, state, roles, main, reader, self._routing(state, routing))
        count = len(reader.pieces)
        source = Source(self._spark.range(0, count, 1, max(1, count)), reader)
        try:
            rows = source.map(fanout_stage(flow), REPORT_SCHEMA).collect()
        except (PySparkException, Py4JError) as error:
            raise _failure(error) from error
        reports = [decode_fanout(row["report"]) for row in rows]
        written = WrittenShares(_gathered(reports), roles, main, started_at)
        self._check(batch, written, reports)
        return None if self._added_columns(flow, reports) else written

    def _routing(self, state: LedgerState, routing: str) -> Routing:
        return parse_routing(state.routings[routing]) if routing in state.routings else self._table.routing

    def _flow(
        self,
        batch: Batch,
        state: LedgerState,
        roles: Mapping[Partition, Roles],
        main: bool,
        reader: PieceReader,
        routing: Routing,
    ) -> FanoutFlow:
        export, job = self._export, self._job
        return FanoutFlow(
            job=job.name,
            batch_id=batch.id,
            decode=replace(job.decode, payload=routing.payload),
            on=replace(job.on, tombstone=routing.tombstone),
            route=routing.route,
            types={name: self._type_flow(spec, state, routing) for name, spec in export.all_types.items()},
            columns=job.columns,
            days=export.days,
            now_ms=int(self._table.environment.now() * 1000),
            root_url=job.table.path,
            staged_folder="" if export.format == "delta" else self._table.places.staged,
            quarantine_url=job.table.quarantine_path,
            slices={
                (piece.partition.topic, piece.partition.number): _routed(piece, roles[piece.partition], main, reader)
                for piece in batch.slices
            },
            storage_options=dict(job.table.storage_options),
            compression=export.compression,
            statistics=export.format == "delta",
            open_writers_max=job.limits.open_writers_max,
            row_group_bytes_max=job.limits.row_group_bytes_max,
            failpoint=self._failpoint,
        )

    def _type_flow(self, spec: TypeSpec, state: LedgerState, routing: Routing) -> TypeFlow:
        fixed = schema_of(state, spec.name)
        raw = routing.is_unknown(spec.name)
        # What a message gives is in its descriptor; a JSON record can be read for every column that there is.
        decoded = fixed if self._job.decode.format == "json" and not raw else spec.schema
        return TypeFlow(
            name=spec.name,
            values=routing.values.get(spec.name, ()),
            decoded=decoded,
            target=self._table.columns_of(spec.name),
            event_time=spec.event_time,
            message=spec.message,
            raw=raw,
        )

    def _check(self, batch: Batch, written: WrittenShares, reports: list[FanoutReport]) -> None:
        self.checks.refuse_bad_record(next((report.first_error for report in reports if report.first_error), ""))
        for piece in batch.slices if written.main else ():
            read = sum(share.counts.read for share in written.of(piece.partition).values())
            self.checks.check_count(piece, read)

    def _added_columns(self, flow: FanoutFlow, reports: list[FanoutReport]) -> bool:
        """Fix the columns of types that were met for the first time, and add those that records brought."""
        added = False
        for name, spec in flow.types.items():
            found = [
                unpack(share.new_fields)
                for report in reports
                for named in report.shares.values()
                if (share := named.get(name)) is not None and share.new_fields
            ]
            if not found or (spec.decoded is not None and self._job.on.new_column is not NewColumnPolicy.ADD):
                continue
            taken = [*(spec.decoded.names if spec.decoded is not None else ()), *self._job.columns, DAY_COLUMN]
            columns = addable(merge(found), taken)
            if spec.decoded is None or len(columns):
                self._table.change_schema(name, columns)
                self._listener.event("columns added", type=name, columns=columns.names)
                added = True
        return added


def _routed(piece: Slice, roles: Roles, main: bool, reader: PieceReader) -> RoutedSlice:
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


def _failure(error: Exception) -> PenstockError:
    return (
        source_error(error)
        or task_error(error)
        or BatchFailedError(
            "the Spark job of a batch failed", detail=last_cause(error), hint="the batch will be planned again"
        )
    )
