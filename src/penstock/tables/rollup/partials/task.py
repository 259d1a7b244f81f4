"""What a task of a rollup does with its records: decode points, aggregate them, write staged files of partials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import polars as pl
import pyarrow as pa

from penstock.flow.points.batch import DecodedPoints, PointsDecoder
from penstock.flow.points.decoder import points_decoder
from penstock.flow.rows import BadRows, bad_rows, in_parts
from penstock.flow.stage import Batches, Stage, TaskFlow, log_parts, run_task, without_poison
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import PartitionKey
from penstock.flow.write.names import owner_tag
from penstock.flow.write.report import UNROUTED, TaskReport
from penstock.flow.write.tally import Owner, Staged, Tallies, Tally
from penstock.logs.log import EpochMark
from penstock.tables.rollup.partials.aggregate import aggregate_points, merge_points
from penstock.tables.rollup.partials.schema import written_schema
from penstock.tables.rollup.spec import Aggregates

ROWS_PER_PART = 50_000
"""Records that are decoded together, if they are not too large for that."""
WAITING_ROWS_MAX = 1_000_000
"""Partials that wait in memory, of one partition, before they are merged, and written if that did not help."""
_INSTANT = pl.Datetime("us", "UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialsFlow(TaskFlow):
    """Everything that a task of a rollup needs to know."""

    finest_ms: int
    aggregates: Aggregates
    earliest_ms: int
    latest_ms: int
    """Event times that are believed: `[earliest_ms, latest_ms]`."""
    table: WriteOptions
    quarantine: WriteOptions


@dataclass(slots=True)
class _Lane:
    """What a task has of one partition: files, and partials that wait to be written."""

    rows: StagedWriter
    bad: StagedWriter
    waiting: list[pl.DataFrame] = field(default_factory=list)
    waiting_rows: int = 0


class PartialsTask:
    """The whole way of a record: points, partials, files."""

    def __init__(self, flow: PartialsFlow) -> None:
        self._flow = flow
        self._decoder: PointsDecoder = points_decoder(flow.decode, flow.on)
        self._schema = written_schema(flow.aggregates)
        self._lanes: dict[PartitionKey, _Lane] = {}
        self._tallies = Tallies(flow)

    def take(self, key: PartitionKey, part: pa.RecordBatch) -> None:
        part, poisoned = without_poison(part, self._flow.poison.get(key, {}))
        self._quarantine(key, poisoned)
        rest = part
        for decoded in in_parts(self._decoder.decode, part):
            taken = rest.num_rows - (decoded.rest.num_rows if decoded.rest is not None else 0)
            self._take(key, rest.slice(0, taken), decoded)
            rest = rest.slice(taken)

    def _take(self, key: PartitionKey, part: pa.RecordBatch, decoded: DecodedPoints) -> None:
        points, outside = self._within(part, decoded.points)
        tally = self._tallies.of(Owner(key, UNROUTED))
        self._quarantine(key, decoded.bad)
        self._quarantine(key, outside)
        written = part.num_rows - decoded.bad.kafka.num_rows - outside.kafka.num_rows - decoded.filtered
        tally.count(read=written + decoded.filtered, written=written, filtered=decoded.filtered)
        counts = decoded.counts
        tally.add(
            points=points.height,
            blacklisted=counts.blacklisted,
            non_numeric=counts.non_numeric,
            non_finite=counts.non_finite,
            future=self._future(decoded.points),
        )
        if not points.height:
            return
        tally.seen(points.select(pl.col("at_ms").max()).item())
        if self._flow.replay_run is not None:
            self._note_replayed(tally, part, points)
        self._wait(key, aggregate_points(points, self._flow.finest_ms, self._flow.aggregates))

    def _within(self, part: pa.RecordBatch, points: pl.DataFrame) -> tuple[pl.DataFrame, BadRows]:
        """The points of records whose times are all believed, and the other records."""
        earliest, latest = self._flow.earliest_ms, self._flow.latest_ms
        outside = points.filter(~pl.col("at_ms").is_between(earliest, latest))
        if not outside.height:
            return points, bad_rows(part, {})
        errors = {row: self._outside(at_ms) for row, at_ms in outside.select("row", "at_ms").iter_rows()}
        kept = points.filter(~pl.col("row").is_in(outside["row"].unique().implode()))
        return kept, bad_rows(part, errors)

    def _future(self, points: pl.DataFrame) -> int:
        """Records with a point too far ahead; in quarantine they were counted when they came there."""
        if self._flow.replay_run is not None:
            return 0
        return points.filter(pl.col("at_ms") > self._flow.latest_ms)["row"].n_unique()

    def _outside(self, at_ms: int) -> str:
        shown = _shown(at_ms)
        if at_ms > self._flow.latest_ms:
            return f"the timestamp {shown} is too far in the future (table.rollup.future_cutoff)"
        return f"the timestamp {shown} is before {_shown(self._flow.earliest_ms)} (table.rollup.not_before)"

    def _quarantine(self, key: PartitionKey, bad: BadRows) -> None:
        owner = Owner(key, UNROUTED)
        self._tallies.of(owner).count(read=len(bad.errors))
        if (rows := self._tallies.quarantined(owner, bad)) is not None:
            self._lane(key).bad.write(rows)

    @staticmethod
    def _note_replayed(tally: Tally, part: pa.RecordBatch, points: pl.DataFrame) -> None:
        rows = points["row"].unique().to_list()
        tally.replayed.update(part.column("offset").take(pa.array(rows, pa.int64())).to_pylist())

    def note_mark(self, key: PartitionKey, mark: EpochMark) -> None:
        self._tallies.note_mark(key, mark)

    def _wait(self, key: PartitionKey, partials: pl.DataFrame) -> None:
        """Keep partials until the end of the task; where they are too many, they become a file before."""
        if self._flow.dry:
            return
        lane = self._lane(key)
        lane.waiting.append(partials)
        lane.waiting_rows += partials.height
        if lane.waiting_rows > WAITING_ROWS_MAX:
            merged = merge_points(pl.concat(lane.waiting), self._flow.aggregates)
            lane.waiting, lane.waiting_rows = [merged], merged.height
            if merged.height > WAITING_ROWS_MAX // 2:
                self._write(lane)

    def _write(self, lane: _Lane) -> None:
        if not lane.waiting:
            return
        partials = lane.waiting[0]
        if len(lane.waiting) > 1:
            partials = merge_points(pl.concat(lane.waiting), self._flow.aggregates)
        lane.waiting, lane.waiting_rows = [], 0
        start = (pl.col("window_ms") * 1000).cast(_INSTANT)
        series = self._decoder.series.frame().sort("bucket", "metric", "tags").with_row_index("rank")
        rows = (
            partials.join(series, on="series")
            .sort("rank", "window_ms")
            .with_columns(start.alias("window_start"), start.dt.date().alias("day"))
            .select(self._schema.names)
        )
        for batch in rows.to_arrow().cast(self._schema).to_batches():
            lane.rows.write(batch)

    def finish(self) -> TaskReport:
        staged = {}
        for key, lane in self._lanes.items():
            self._write(lane)
            staged[Owner(key, UNROUTED)] = Staged(list(lane.rows.finish()), list(lane.bad.finish()))
        return self._tallies.report(staged, {})

    def abandon(self) -> None:
        for lane in self._lanes.values():
            lane.rows.abandon()
            lane.bad.abandon()

    def _lane(self, key: PartitionKey) -> _Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(
                StagedWriter(self._flow.table, lambda: self._name(key), *key),
                StagedWriter(self._flow.quarantine, lambda: self._name(key, owner_tag(self._flow.job)), *key),
            )
        return lane

    def _name(self, key: PartitionKey, owner: str | None = None) -> str:
        return self._flow.new_file_name(key, self._flow.slices[key].start, owner)


def partials_stage(flow: PartialsFlow) -> Stage:
    """Decode, aggregate and write in one pass over Arrow batches."""

    def run(batches: Iterable[pa.RecordBatch]) -> Batches:
        task = PartialsTask(flow)
        return run_task(task, log_parts(batches, task.note_mark, ROWS_PER_PART), flow.failpoint)

    return run


def _shown(at_ms: int) -> str:
    """An instant as people write it; one that no calendar has, as its number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
