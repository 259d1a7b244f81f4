"""A task of a rollup decodes points, aggregates them, and writes staged files of partials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time

import polars as pl
import pyarrow as pa

from penstock.environment import Environment
from penstock.flow.compile import named_slices, quarantine_options, write_options
from penstock.flow.points.decoder import DecodedPoints, PointsDecoder
from penstock.flow.points.metrics import PointCounts
from penstock.flow.rows import BadRows, bad_rows, in_parts
from penstock.flow.stage import Batches, Stage, log_parts, run_task, without_poison
from penstock.flow.task import StagingTask, TableFlow
from penstock.flow.write.manifest import PartitionKey, Ranges, ranges_of
from penstock.flow.write.report import UNROUTED, Share, TaskReport
from penstock.flow.write.tally import TypeKey
from penstock.job.spec import JobSpec
from penstock.logs.log import Batch
from penstock.tables.rollup.aggregate import MILLI, Merging, aggregate_points
from penstock.tables.rollup.schema import PARTIALS_GROUP_ROWS_MAX, written_schema
from penstock.tables.rollup.spec import Aggregates, RollupSpec, Window

ROWS_PER_PART = 50_000
"""Records that are decoded together, if they are not too large."""
MERGED_ROWS_MAX = 500_000
"""Merged partials of one partition in memory; more are written before the end of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialsFlow(TableFlow):
    """The input of a task of a rollup."""

    finest: Window
    aggregates: Aggregates
    earliest_ms: int
    latest_ms: int
    """Event times that are accepted: `[earliest_ms, latest_ms]`."""


def partials_flow(
    spec: RollupSpec, job: JobSpec, batch: Batch, environment: Environment, quarantine_url: str
) -> PartialsFlow:
    """The input of the tasks of a batch; the job is that of the partials."""
    table = write_options(job, written_schema(spec.aggregates), ("day",))
    return PartialsFlow(
        job=job.name,
        batch_id=batch.id,
        decode=job.decode,
        columns={},
        on=job.on,
        slices=named_slices(batch),
        failpoint=environment.failpoint,
        finest=spec.finest,
        aggregates=spec.aggregates,
        earliest_ms=int(datetime.combine(spec.not_before, time(), UTC).timestamp() * 1000),
        latest_ms=int(environment.now() * 1000) + spec.future_cutoff_ms,
        table=replace(table, row_group_rows_max=PARTIALS_GROUP_ROWS_MAX),
        quarantine=quarantine_options(job, quarantine_url),
    )


class PartialsTask(StagingTask[PartialsFlow]):
    """Decodes records to points, aggregates them to partials and writes these to files."""

    def __init__(self, flow: PartialsFlow) -> None:
        super().__init__(flow)
        self._decoder = PointsDecoder(flow.decode, flow.on)
        self._schema = written_schema(flow.aggregates)
        self._waiting: dict[PartitionKey, Merging] = {}
        """Partials of each partition that wait to be written."""

    def take(self, key: PartitionKey, part: pa.RecordBatch) -> None:
        part, poisoned = without_poison(part, self._flow.poison.get(key, {}))
        self.quarantine(key, poisoned)
        remaining = part
        for decoded in in_parts(self._decoder.decode, part):
            taken = remaining.num_rows - (decoded.rest.num_rows if decoded.rest is not None else 0)
            self._take(key, remaining.slice(0, taken), decoded)
            remaining = remaining.slice(taken)

    def _take(self, key: PartitionKey, part: pa.RecordBatch, decoded: DecodedPoints) -> None:
        points, outside = self._within(part, decoded.points)
        self.quarantine(key, decoded.bad)
        self.quarantine(key, outside)
        written = part.num_rows - decoded.bad.kafka.num_rows - outside.kafka.num_rows - decoded.filtered
        self._count(key, read=written + decoded.filtered, written=written, filtered=decoded.filtered)
        counts = decoded.counts - self._counts_of(outside.kafka)
        sums = {
            "points": points.height,
            "blacklisted": counts.blacklisted,
            "non_numeric": counts.non_numeric,
            "non_finite": counts.non_finite,
        }
        self._tallies.add(TypeKey(key, UNROUTED), Share(sums=sums))
        if not points.height:
            return
        replayed: Ranges = ()
        if self._flow.replay_run is not None:
            rows = points["row"].unique().to_list()
            replayed = ranges_of(part.column("offset").take(pa.array(rows, pa.int64())).to_pylist())
        event_ms_max = points.select(pl.col("at_ms").max()).item()
        self._tallies.add(TypeKey(key, UNROUTED), Share(event_ms_max=event_ms_max, replayed=replayed))
        self._wait(key, aggregate_points(points, self._flow.finest.millis, self._flow.aggregates))

    def _within(self, part: pa.RecordBatch, points: pl.DataFrame) -> tuple[pl.DataFrame, BadRows]:
        """The points of records whose times are all accepted, and the other records."""
        outside = points.filter(~pl.col("at_ms").is_between(self._flow.earliest_ms, self._flow.latest_ms))
        if not outside.height:
            return points, bad_rows(part, {})
        errors = {row: self._outside(at_ms) for row, at_ms in outside.select("row", "at_ms").iter_rows()}
        kept = points.filter(~pl.col("row").is_in(outside["row"].unique().implode()))
        return kept, bad_rows(part, errors)

    def _counts_of(self, records: pa.RecordBatch) -> PointCounts:
        """The counts of records that were decoded before: fields of quarantined records do not count."""
        pieces = in_parts(self._decoder.decode, records) if records.num_rows else ()
        return sum((piece.counts for piece in pieces), PointCounts())

    def _outside(self, at_ms: int) -> str:
        shown = _shown(at_ms)
        if at_ms > self._flow.latest_ms:
            return f"the timestamp {shown} is too far in the future (table.rollup.future_cutoff)"
        return f"the timestamp {shown} is before {_shown(self._flow.earliest_ms)} (table.rollup.not_before)"

    def _wait(self, key: PartitionKey, partials: pl.DataFrame) -> None:
        """Keep partials until the end of the task, or write them if they are too many."""
        if self._flow.dry:
            return
        waiting = self._waiting.setdefault(key, Merging(self._flow.finest, self._flow.aggregates, ("series",)))
        waiting.add(partials)
        if waiting.rows > MERGED_ROWS_MAX:
            self._write(key)

    def _write(self, key: PartitionKey) -> None:
        series = self._decoder.series.frame().sort("bucket", "metric", "tags").with_row_index("rank")
        # A sort by two columns takes three times as long as by one number.
        window = pl.col("window_start").to_physical() // (self._flow.finest.millis * MILLI)
        window -= window.min()
        rows = (
            self._waiting.pop(key)
            .merged()
            .join(series, on="series")
            .sort(pl.col("rank").cast(pl.Int64) * (window.max() + 1) + window)
            .with_columns(pl.col("window_start").dt.date().alias("day"))
            .select(self._schema.names)
        )
        with self._tallies.writing:
            for batch in rows.to_arrow().cast(self._schema).to_batches():
                self._lane(key).rows.write(batch)

    def finish(self) -> TaskReport:
        for key in list(self._waiting):
            self._write(key)
        return super().finish()


def partials_stage(flow: PartialsFlow) -> Stage:
    """Decode, aggregate and write in one pass over Arrow batches."""

    def run(batches: Iterable[pa.RecordBatch]) -> Batches:
        task = PartialsTask(flow)
        return run_task(task, log_parts(batches, task.note_mark, ROWS_PER_PART), flow.failpoint)

    return run


def _shown(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
