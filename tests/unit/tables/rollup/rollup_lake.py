"""Both tables of a rollup on disk, filled with points batch by batch and closed without Spark, or on a real one."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from penstock.environment import Environment, new_batch_id
from penstock.events import Event
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.flow.write.names import staged_name
from penstock.job.spec import DecodeSpec, JobSpec, KafkaLogSpec
from penstock.lake.delta.files import active_files
from penstock.lake.delta.table import DeltaLog
from penstock.lake.proposal import Proposal, SlicePart, StartPart
from penstock.lake.state import Numbers
from penstock.logs.log import Partition, Slice
from penstock.tables.kind import View
from penstock.tables.rollup.closing import Closing
from penstock.tables.rollup.decide import BeginClose, Due
from penstock.tables.rollup.numbers import CLOSE, number_key
from penstock.tables.rollup.schema import EPOCH, written_schema
from penstock.tables.rollup.spec import Aggregates, RollupSpec, Window
from penstock.tables.rollup.table import open_partials, open_windows_table
from tests.scenarios.local_spark import local_session
from tests.support.memory_log import MemoryLog

TOKEN = 1
CHORES_MAX = 1000
MINUTE, TEN_MINUTES, HOUR = Window("1m", 60_000), Window("10m", 600_000), Window("1h", 3_600_000)


def partition(number: int) -> Partition:
    return Partition("metrics", "topic-id", number)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the series with this host."""

    host: str
    at_ms: int
    value: float


@dataclass(slots=True)
class Clock:
    at: float = 0.0

    def now(self) -> float:
        return self.at


@dataclass(slots=True)
class RecordedEvents:
    events: list[Event] = field(default_factory=list)

    def event(self, event: Event) -> None:
        self.events.append(event)


def rollup_job(folder: Path, windows: Sequence[Window], **stated: Any) -> JobSpec[RollupSpec]:
    spec = RollupSpec(
        str(folder / "rollups"),
        windows=tuple(windows),
        **{"lateness_ms": 0, "idle_after_ms": 60_000, **stated},
    )
    return JobSpec(
        name="rollups",
        log=KafkaLogSpec("nowhere:9092", topics=("metrics",), group="rollups"),
        decode=DecodeSpec("json"),
        schema=pa.schema([]),
        columns={},
        table=spec,
    )


class RollupLake:
    """A rollup with a log in memory; `land` is what a batch does, `work` what the chores do."""

    def __init__(
        self,
        folder: Path,
        windows: Sequence[Window] = (MINUTE,),
        partitions: int = 1,
        spark: SparkSession | None = None,
        **stated: Any,
    ) -> None:
        self.folder = folder
        self.spark = spark or local_session()
        self.clock, self.recorded = Clock(), RecordedEvents()
        self.log = MemoryLog(values={partition(number): {} for number in range(partitions)})
        self.landed: list[tuple[int, Point]] = []
        """Every point with the number of closes begun before its commit."""
        self.untils: list[int] = []
        """Of each close that was begun."""
        self.reopen(windows, **stated)
        for number in range(partitions):
            self.start(number)

    def reopen(self, windows: Sequence[Window], **stated: Any) -> None:
        """As another process with this job file would."""
        self.job = rollup_job(self.folder, windows, **stated)
        self.environment = Environment(now=self.clock.now, listener=self.recorded)
        self.partials = open_partials(self.job, self.environment)
        self.windows = open_windows_table(self.job, self.environment)
        self.closing = self.another_process()

    def another_process(self, **more: Any) -> Closing:
        environment = Environment(now=self.clock.now, listener=self.recorded, **more)
        return Closing(
            self.job,
            open_partials(self.job, environment),
            open_windows_table(self.job, environment),
            self.spark,
            self.log,
        )

    def start(self, number: int) -> None:
        moved = Numbers(peaks=dict.fromkeys(("moved_ms", "last_point_ms"), int(self.clock.at * 1000)))
        part = StartPart(partition(number), 0, TOKEN, moved)
        self.partials.commit(Proposal(self.job.name, new_batch_id(), (part,)))

    def land(self, points: Sequence[Point], number: int = 0) -> None:
        """Append a record per point to the log, and commit them as one batch."""
        self.log.append(partition(number), *(b"point" for _ in points))
        self.commit(points, number)

    def commit(self, points: Sequence[Point], number: int = 0) -> None:
        """Commit the next records of a partition, which hold these points."""
        start = self.partials.state([partition(number)]).of(partition(number)).position or 0
        files = self._staged(points, number, start)
        piece = Slice(partition(number), start, start + len(points), start)
        now_ms = int(self.clock.at * 1000)
        peaks = {"event_ms": max(point.at_ms for point in points), "moved_ms": now_ms, "last_point_ms": now_ms}
        numbers = Numbers({"points": len(points)}, peaks)
        part = SlicePart(piece, TOKEN, Counts(len(points), len(points)), files, numbers=numbers)
        stamps = {EPOCH: number_key(self.job.name, CLOSE)}
        outcome = self.partials.commit(Proposal(self.job.name, new_batch_id(), (part,), stamps=stamps))
        assert not outcome.refused
        epoch = self.partials.transaction(number_key(self.job.name, CLOSE)) or 0
        self.landed += [(epoch, item) for item in points]

    def _staged(self, points: Sequence[Point], number: int, start: int) -> tuple[StagedFile, ...]:
        schema = written_schema(self.job.table.aggregates)
        options = WriteOptions(self.job.table.partials_path, schema, partition_by=("day",))
        end = start + len(points)
        writer = StagedWriter(
            options, lambda: staged_name("topic-id", number, start, end, uuid.uuid4().hex), "metrics", number
        )
        rows = partial_rows(points, self.job.table.finest, self.job.table.aggregates)
        writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
        return writer.finish()

    def view(self, **stated: Any) -> View:
        own = stated.pop("own", self.log.partitions())
        return View(dict.fromkeys(own, TOKEN), self.log.bounds(own), self.clock.at, 100.0, **stated)

    def due(self, closing: Closing | None = None, **stated: Any) -> Due | None:
        chores = (closing or self.closing).chores(self.view(flush_now=True, **stated))
        return chores[0] if chores else None

    def work(self, closing: Closing | None = None, **stated: Any) -> list[Due]:
        """Perform chores until none is due."""
        done: list[Due] = []
        while (chore := self.due(closing, **stated)) is not None:
            self.perform(chore, closing)
            done.append(chore)
            assert len(done) < CHORES_MAX
        return done

    def perform(self, chore: Due, closing: Closing | None = None) -> None:
        (closing or self.closing).perform(chore)
        if isinstance(chore, BeginClose) and len(self.untils) < chore.close:
            self.untils.append(chore.until_ms)

    def close_all(self, at_ms: int, number: int = 0) -> None:
        """Let event time pass an instant by a point of a series of its own, and close what is due."""
        self.land([Point("clock", at_ms, 0.0)], number)
        self.work()

    def rows(self) -> list[dict[str, Any]]:
        """The closed windows."""
        self.windows.refresh()
        return sorted(table_rows(self.windows), key=lambda row: (row["interval"], row["series"], row["window_start"]))

    def values(self, *columns: str) -> dict[tuple[str, str, int], tuple[Any, ...]]:
        """Columns of the closed windows of all series but the clock's, by interval, host and start."""
        result: dict[tuple[str, str, int], tuple[Any, ...]] = {}
        for row in self.rows():
            host = dict(row["tags"])["host"]
            key = row["interval"], host, int(row["window_start"].timestamp() * 1000)
            assert key not in result, f"{key} is there twice"
            result[key] = tuple(row.get(name) for name in columns)
        return {key: item for key, item in result.items() if key[1] != "clock"}

    def number(self, name: str) -> int:
        """An app transaction of either table, 0 if there is none."""
        self.windows.refresh()
        self.partials.refresh()
        key = f"{self.job.name}#{name}"
        return {**self.partials.transactions(), **self.windows.transactions()}.get(key, 0)

    def partial_points(self) -> int:
        """The points that partials hold now."""
        self.partials.refresh()
        return sum(row["count"] for row in table_rows(self.partials))


def table_rows(table: DeltaLog) -> Iterable[dict[str, Any]]:
    for file in active_files(table.handle):
        values = dict(zip(table.spec.partition_by, (scalar.as_py() for scalar in file.scalars), strict=True))
        for row in pq.ParquetFile(f"{table.spec.path}/{file.path}").read().to_pylist():
            yield {**row, **values}


def bucket_of(host: str) -> int:
    return zlib.crc32(host.encode()) % 256


def partial_rows(points: Sequence[Point], finest: Window, aggregates: Aggregates) -> list[dict[str, Any]]:
    """The rows of partials of a batch, computed point by point."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        groups.setdefault((point.host, point.at_ms - point.at_ms % finest.millis), []).append(point)
    rows = []
    for (host, start_ms), group in groups.items():
        start = datetime.fromtimestamp(start_ms / 1000, UTC)
        row = {
            "metric": "load",
            "tags": json.dumps({"host": host}, ensure_ascii=False, separators=(",", ":")),
            "bucket": bucket_of(host),
            "window_start": start,
            "day": start.date(),
            **plain_values(group),
        }
        rows.append(row)
    return sorted(rows, key=lambda row: (row["bucket"], row["metric"], row["tags"], row["window_start"]))


def plain_values(points: Sequence[Point]) -> dict[str, Any]:
    """The aggregates of points, worked out the plain way."""
    values = [point.value for point in points]
    first_ms, last_ms = min(point.at_ms for point in points), max(point.at_ms for point in points)
    return {
        "count": len(values),
        "sum": sum(values),
        "min": min(values),
        "max": max(values),
        "first_ms": first_ms,
        "first": min(point.value for point in points if point.at_ms == first_ms),
        "last_ms": last_ms,
        "last": max(point.value for point in points if point.at_ms == last_ms),
    }
