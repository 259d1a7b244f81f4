"""`bench keyed-sparse`: few random updates into large tables, against MERGE INTO with deletion vectors.

Each side has a table of so many rows, and reads batches of updates from a topic. After a batch that warms up, some are
measured: from one commit to another, so that neither start nor end counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks import sides
from benchmarks.apart import run_apart
from benchmarks.keyed.compare import BASELINE_SPARK, SCHEMA
from benchmarks.keyed.measurements import job_text, rows_of, write_files
from benchmarks.meters import Meter, Report
from penstock.embedded.broker import Cluster
from penstock.embedded.sample import create_topic, produce_values
from penstock.environment import Environment
from penstock.events import BatchCommitted, Event
from penstock.job.spec import SparkSpec
from penstock.spark.jars import JarSet
from penstock.spark.session import open_spark
from penstock.tables.kind import CompactRequest
from penstock.tables.registry import kind_of

BATCHES = 3
BUCKETS = 16
ROWS_PER_LOAD = 1_000_000
SEED = 20260302


@dataclass(frozen=True, slots=True)
class Cost:
    """What a batch cost, on average."""

    rows: int
    updates: int
    side: str
    wall_s: float
    cpu_s: float
    written_mb: float
    read_mb: float
    files: float
    """Data files that a commit takes out of the table, or marks."""


def bench_sparse(sizes: Sequence[int], updates: Sequence[int], report: Report) -> Iterator[Cost]:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Cluster.start(Path(folder) / "kafka") as cluster,
    ):
        for rows in sizes:
            for count in updates:
                create_topic(cluster.bootstrap, topic_of(rows, count), 1)
                values = _updates(rows, count * (1 + BATCHES))
                produce_values(cluster.bootstrap, topic_of(rows, count), values, 1)
            for side in sides.SIDES:
                report(f"{rows:,} rows: {side}")
                place = Path(folder) / f"{side}-{rows}"
                for cost in run_apart(_measure_side, side, cluster.bootstrap, place, rows, list(updates)):
                    report(str(cost))
                    yield Cost(**cost)


def topic_of(rows: int, count: int) -> str:
    return f"updates-{rows}-{count}"


def _updates(rows: int, count: int) -> list[bytes]:
    numbers = np.random.default_rng(SEED).integers(0, rows, count)
    return rows_of(numbers, rows).write_ndjson().encode().splitlines()


def _measure_side(side: str, bootstrap: str, folder: Path, rows: int, updates: Sequence[int]) -> list[dict[str, Any]]:
    folder.mkdir()
    is_ours = side == sides.SIDES[0]
    if is_ours:
        spark = open_spark(SparkSpec(), "bench keyed-sparse", light=True)
    else:
        spark = open_spark(BASELINE_SPARK, "bench keyed-sparse", (JarSet.DELTA, JarSet.KAFKA_SOURCE))
    way = _Penstock(spark, bootstrap, folder) if is_ours else _Merge(spark, bootstrap, folder)
    way.load(rows)
    result = []
    for count in updates:
        marks = Marks(folder / "table")
        way.take(topic_of(rows, count), count, marks)
        result.append(asdict(marks.cost(rows, count, side)))
    table = pl.scan_delta(str(folder / "table")).select(pl.len(), pl.col("seq").max()).collect()
    sides.check_rows(side, table["len"].item(), rows)
    spark.stop()
    return result


@dataclass(slots=True)
class Marks:
    """Notes after each commit what was spent until then."""

    table: Path
    _meter: Meter = field(default_factory=Meter)
    _marks: list[tuple[float, float, int, dict[Path, int]]] = field(default_factory=list)

    def event(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            self.note()

    def note(self) -> None:
        spent = self._meter.spent()
        files = {path: path.stat().st_size for path in self.table.rglob("*") if path.is_file()}
        self._marks.append((spent.wall_s, spent.cpu_s, _read_bytes(), files))

    def cost(self, rows: int, updates: int, side: str) -> Cost:
        first, last = self._marks[0], self._marks[-1]
        new = {path: size for path, size in last[3].items() if path not in first[3]}
        entries = (path for path in new if path.parent.name == "_delta_log" and path.suffix == ".json")
        removed = sum('"remove"' in line for path in entries for line in path.read_text().splitlines())
        count = len(self._marks) - 1
        numbers = (last[0] - first[0], last[1] - first[1], sum(new.values()) / 1e6, (last[2] - first[2]) / 1e6, removed)
        return Cost(rows, updates, side, *(round(number / count, 3) for number in numbers))


def _read_bytes() -> int:
    tree = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(process.io_counters().read_chars for process in tree)


@dataclass(slots=True)
class _Penstock:
    spark: SparkSession
    bootstrap: str
    folder: Path

    def load(self, rows: int) -> None:
        load = sides.loader(self.spark, sides.written_job(self.folder, self._text("nowhere", 1)))
        for number, first in enumerate(range(0, rows, ROWS_PER_LOAD)):
            numbers = np.arange(first, min(rows, first + ROWS_PER_LOAD))
            load(write_files(rows_of(numbers, first), self.folder / f"files-{number}", 2))
        job = sides.written_job(self.folder, self._text("nowhere", 1))
        # As the chore of the job does after enough commits.
        kind_of(job).compact(job, CompactRequest(target_bytes=128 * sides.MIB), Environment(), None)

    def take(self, topic: str, count: int, marks: Marks) -> None:
        sides.run_job(self.spark, self.folder, self._text(topic, count), marks)

    def _text(self, topic: str, count: int) -> str:
        text = job_text(self.bootstrap, count, self.folder / "table", BUCKETS)
        return text.replace(f"topics: [{sides.TOPIC}]", f"topics: [{topic}]")


@dataclass(slots=True)
class _Merge:
    """The table is sorted by key, so that files and row groups can be skipped."""

    spark: SparkSession
    bootstrap: str
    folder: Path

    def load(self, rows: int) -> None:
        for number, first in enumerate(range(0, rows, ROWS_PER_LOAD)):
            numbers = np.arange(first, min(rows, first + ROWS_PER_LOAD))
            write_files(rows_of(numbers, first), self.folder / f"files-{number}", 2)
        files = [str(path) for path in self.folder.glob("files-*")]
        keys = ["device", "at"]
        sorted_rows = self.spark.read.parquet(*files).repartitionByRange(BUCKETS, *keys).sortWithinPartitions(*keys)
        vectors = {"delta.enableDeletionVectors": "true"}
        sorted_rows.write.format("delta").options(**vectors).save(str(self.folder / "table"))

    def take(self, topic: str, count: int, marks: Marks) -> None:
        table = f"delta.`{self.folder / 'table'}`"
        newest = Window.partitionBy("device", "at").orderBy(F.col("seq").desc())

        def merge(rows: DataFrame, number: int) -> None:
            rows = rows.withColumn("place", F.row_number().over(newest)).filter("place = 1").drop("place").persist()
            rows.createOrReplaceTempView("updates")
            rows.sparkSession.sql(
                f"MERGE INTO {table} t USING updates s ON t.device = s.device AND t.at = s.at "
                "WHEN MATCHED AND s.seq > t.seq THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
            rows.unpersist()
            marks.note()

        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        source = self.spark.readStream.format("kafka").options(**sides.SOURCE_TUNING, **options)
        records = source.option("maxOffsetsPerTrigger", count).load()
        rows = records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("record")).select("record.*")
        folder = self.folder / topic
        folder.mkdir()
        sides.run_to_end(rows.writeStream.foreachBatch(merge), folder)
