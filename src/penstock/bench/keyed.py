"""`bench keyed`: updates by key into a Delta table, us against MERGE INTO by Spark, in turn, medians.

Measurements of 1,000 devices in the order of time; some records correct one of the newest tenth. Both sides read the
same topic in batches of the same size. Then, of us alone, the rows are loaded from Parquet files into a new table, once
more (`reload`), and a third time from files of other names (`same_rows`).

python -m penstock.bench.keyed SIDE BOOTSTRAP TOPIC ROWS BATCH FOLDER: one side, measured after a warm-up.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import polars as pl
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from penstock.bench.meters import Meter, resident_bytes
from penstock.bench.result import BenchResult, Say
from penstock.bench.sides import Comparison, compare_sides, in_turn, kafka_source, measure, run_job
from penstock.environment import Environment
from penstock.job.spec import SparkSpec
from penstock.spark.delta_spark import open_delta_spark
from penstock.spark.jars import JarSet
from penstock.spark.session import open_spark
from penstock.tables.kind import Loading, LoadWish, SaveMode
from penstock.tables.registry import kind_of, load_job

BASELINE_NAME = "Spark Structured Streaming, foreachBatch: newest of each key, Delta MERGE INTO with a range predicate"
DEVICES = 1_000
NEWEST_SHARE = 0.1
_SCHEMA = "device STRING, at BIGINT, temperature DOUBLE, humidity DOUBLE, status STRING, seq BIGINT"
_JOB = """\
job: {name}
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}], start: earliest}}
decode: json
schema: {{device: string, at: long, temperature: double, humidity: double, status: string, seq: long}}
table:
  keyed: {{path: {table}, partition_keys: [device], row_keys: [at], sequence: seq, buckets: {buckets}}}
flush: {{max_messages_per_batch: {batch}, min_bytes_per_file: 1B, max_bytes_per_batch: 1B}}
"""
LOADS = ("load_wall_s", "reload_wall_s", "same_rows_wall_s")
FILES = 8
BUCKETS = 4
"""Twice the cores of a small machine."""

Side = Callable[[SparkSession, str, str, int, Path], None]


@dataclass(frozen=True, slots=True)
class Measurements:
    """How many records, and how many of them correct an earlier one."""

    records: int
    update_share: float
    seed: int = 20260301

    def values(self) -> Iterator[bytes]:
        rng = random.Random(self.seed)
        rows = 0
        for seq in range(self.records):
            number = rows
            if rows and rng.random() < self.update_share:
                number = rng.randrange(int(rows * (1 - NEWEST_SHARE)), rows)
            else:
                rows += 1
            yield (
                f'{{"device": "device-{number % DEVICES:04}", "at": {number // DEVICES}, '
                f'"temperature": {rng.uniform(-20, 40):.3f}, "humidity": {rng.random():.4f}, '
                f'"status": "{rng.choice(("ok", "ok", "ok", "low battery"))}", "seq": {seq}}}'
            ).encode()

    @property
    def rows(self) -> int:
        """How many keys there are."""
        return len({value[: value.index(b', "temperature')] for value in self.values()})


def bench_keyed(rows: int, update_share: float, batch: int, rounds: int, say: Say) -> BenchResult:
    """Both sides bring the same records into a table with one row for each key."""
    sample = Measurements(rows, update_share)
    say(f"producing {rows:,} records, {update_share:.0%} of them updates")
    arguments = dict.fromkeys(SIDES, (sample.rows, batch))
    compared = Comparison("keyed", "penstock.bench.keyed", BASELINE_NAME, rows, arguments)
    result = compare_sides(compared, in_turn(sample.values()), rounds, say, update_share=update_share, batch=batch)
    first, again, same = (result.extra[name] for name in LOADS)
    told = {"wall_s": again, "ratio_wall": round(first / again, 2), "same_rows_ratio_wall": round(first / same, 2)}
    return replace(result, extra={**result.extra, "reload": told})


def penstock(spark: SparkSession, bootstrap: str, topic: str, batch: int, folder: Path) -> None:
    run_job(spark, folder, _job(bootstrap, topic, batch, folder / "table"))


def _job(bootstrap: str, topic: str, batch: int, table: Path) -> str:
    path = json.dumps(str(table))
    return _JOB.format(name="bench", bootstrap=bootstrap, topic=topic, table=path, batch=batch, buckets=BUCKETS)


def loads(spark: SparkSession, folder: Path) -> dict[str, float]:
    """Load the rows of the measured table from files: for the first time, again, and from files of other names."""
    rows = pl.read_delta(str(folder / "table")).drop("_sequence", "_bucket")
    (folder / "files").mkdir()
    for number, piece in enumerate(rows.iter_slices(-(-len(rows) // FILES))):
        piece.write_parquet(folder / "files" / f"{number}.parquet")
    job_path = folder / "load.yaml"
    job_path.write_text(_job("nowhere:9092", "bench", 1, folder / "loaded"))
    job = load_job(job_path)
    kind = kind_of(job)
    assert isinstance(kind, Loading)
    shutil.copytree(folder / "files", folder / "copies")
    found = {}
    for name, source in zip(LOADS, ("files", "files", "copies"), strict=True):
        meter = Meter()
        kind.load(job, LoadWish((str(folder / source),), SaveMode.APPEND), spark, Environment())
        found[name] = meter.spent().wall_s
    return found


def baseline(spark: SparkSession, bootstrap: str, topic: str, batch: int, folder: Path) -> None:
    """The way of a good Spark engineer: one row for each key, and a condition by which the merge skips files."""
    table = f"delta.`{folder / 'table'}`"
    spark.sql(f"CREATE TABLE {table} ({_SCHEMA}) USING delta")
    newest = Window.partitionBy("device", "at").orderBy(F.col("seq").desc())

    def merge(rows: DataFrame, number: int) -> None:
        rows = rows.withColumn("place", F.row_number().over(newest)).filter("place = 1").drop("place").persist()
        first, last = rows.agg(F.min("at"), F.max("at")).first() or (0, 0)
        rows.createOrReplaceTempView("updates")
        rows.sparkSession.sql(
            f"MERGE INTO {table} t USING updates s "
            f"ON t.device = s.device AND t.at = s.at AND t.at >= {first} AND t.at <= {last} "
            "WHEN MATCHED AND s.seq > t.seq THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        rows.unpersist()

    records = kafka_source(spark, bootstrap, topic).option("maxOffsetsPerTrigger", batch).load()
    query = (
        records.select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("record"))
        .select("record.*")
        .writeStream.foreachBatch(merge)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


SIDES: dict[str, Side] = {"penstock": penstock, "baseline": baseline}


def main(arguments: list[str]) -> None:
    side, bootstrap, topic, rows_expected, batch, folder = arguments
    # Each side as its user would have it: `penstock run` starts Spark so for a job like this.
    spark = (
        open_spark(SparkSpec(), "bench penstock", light=True)
        if side == "penstock"
        else open_delta_spark("bench", JarSet.KAFKA_SOURCE)
    )
    spent = measure(lambda place: SIDES[side](spark, bootstrap, topic, int(batch), place), Path(folder))
    measured = Path(folder) / "measured"
    memory = resident_bytes()
    rows = pl.scan_delta(str(measured / "table")).select(pl.len()).collect().item()
    if rows != int(rows_expected):
        raise SystemExit(f"{side} has {rows} rows of {rows_expected}")
    more = {"further": loads(spark, measured)} if side == "penstock" else {}
    print(json.dumps({**asdict(spent), "memory_bytes": memory, **more}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
