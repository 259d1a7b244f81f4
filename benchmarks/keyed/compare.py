"""`bench keyed`: updates by key into a Delta table, us against MERGE INTO by Spark, in turn, medians.

Measurements of 1,000 devices in the order of time; some records correct one of the newest tenth. Both sides read the
same topic in batches of the same size. Then, of us alone, the rows are loaded from Parquet files into a new table, once
more (`reload`), and a third time from files of other names (`same_rows`).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks import sides
from benchmarks.keyed.measurements import Measurements, job_text, write_files
from benchmarks.meters import BenchResult, Meter, Report
from penstock.job.spec import SparkSpec
from penstock.spark.delta_spark import DELTA_SETTINGS
from penstock.tables.keyed.layout import HIDDEN

BASELINE_NAME = "Spark Structured Streaming, foreachBatch: newest of each key, Delta MERGE INTO with a range predicate"
BASELINE_SPARK = SparkSpec(conf={**DELTA_SETTINGS, "spark.driver.memory": "4g"})
"""Its rows pass through the JVM, which is given the memory for it."""
SCHEMA = "device STRING, at BIGINT, temperature DOUBLE, humidity DOUBLE, status STRING, seq BIGINT"
LOADS = ("load_wall_s", "reload_wall_s", "same_rows_wall_s")
FILES = 8


def bench_keyed(rows: int, update_share: float, batch: int, rounds: int, report: Report) -> BenchResult:
    """Both sides bring the same records into a table with one row for each key."""
    sample = Measurements(rows, update_share)
    report(f"producing {rows:,} records, {update_share:.0%} of them updates")
    ours, theirs, read_result = partial(penstock, batch), partial(baseline, batch), partial(_read_result, sample.rows)
    compared = sides.Comparison("keyed", rows, ours, theirs, BASELINE_NAME, BASELINE_SPARK, read_result)
    result = sides.compare_sides(
        compared, sides.in_turn(sample.values()), rounds, report, update_share=update_share, batch=batch
    )
    first, again, same = (result.extra[name] for name in LOADS)
    reload = {"wall_s": again, "ratio_wall": round(first / again, 2), "same_rows_ratio_wall": round(first / same, 2)}
    return replace(result, extra={**result.extra, "reload": reload})


def penstock(batch: int, spark: SparkSession, bootstrap: str, folder: Path) -> None:
    sides.run_job(spark, folder, job_text(bootstrap, batch, folder / "table"))


def loads(spark: SparkSession, folder: Path) -> dict[str, float]:
    """Load the rows of the measured table from files: for the first time, again, and from files of other names."""
    rows = pl.read_delta(str(folder / "table")).drop(HIDDEN, strict=False)
    write_files(rows, folder / "files", FILES)
    load = sides.loader(spark, sides.written_job(folder, job_text("nowhere:9092", 1, folder / "loaded")))
    shutil.copytree(folder / "files", folder / "copies")
    result = {}
    for name, source in zip(LOADS, ("files", "files", "copies"), strict=True):
        meter = Meter()
        load(folder / source)
        result[name] = meter.spent().wall_s
    return result


def baseline(batch: int, spark: SparkSession, bootstrap: str, folder: Path) -> None:
    """The way of a good Spark engineer: one row for each key, and a condition by which the merge skips files."""
    table = f"delta.`{folder / 'table'}`"
    spark.sql(f"CREATE TABLE {table} ({SCHEMA}) USING delta")
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

    records = sides.kafka_source(spark, bootstrap).option("maxOffsetsPerTrigger", batch).load()
    rows = records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("record")).select("record.*")
    sides.run_to_end(rows.writeStream.foreachBatch(merge), folder)


def _read_result(rows_expected: int, spark: SparkSession, side: str, folder: Path) -> dict[str, Any]:
    rows = pl.scan_delta(str(folder / "table")).select(pl.len()).collect().item()
    sides.check_rows(side, rows, rows_expected)
    return {"further": loads(spark, folder)} if side == "penstock" else {}
