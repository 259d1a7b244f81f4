"""`bench rollup`: Telegraf metrics into windows of four lengths, us against Structured Streaming, in turn, medians.

Both sides read the same topic with the same lateness, and emit every window once, when it is closed. The last record of
each partition is days ahead: it closes all windows before it on both sides, and its own stay open on both.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import sides
from benchmarks.meters import BenchResult, Report
from penstock.embedded.sample import (
    WINDOWS,
    MetricSample,
    end_markers,
    metric_records,
    produce_keyed,
    produce_values,
    rollup_job,
)
from penstock.job.spec import SparkSpec
from penstock.spark.delta_spark import DELTA_SETTINGS

RECORDS_PER_BATCH = 1_000_000
_FLUSH = f"flush: {{max_messages_per_batch: {RECORDS_PER_BATCH}, min_bytes_per_file: 1B, max_bytes_per_batch: 1B}}\n"
_TABLE = "windows"
_ENTRIES = pl.List(pl.Struct({"key": pl.String, "value": pl.String}))
BASELINE_NAME = "Spark Structured Streaming, from_json and windows in append mode to Delta, availableNow"
BASELINE_SPARK = SparkSpec(conf={**DELTA_SETTINGS, "spark.driver.memory": "4g", "spark.sql.session.timeZone": "UTC"})
_RECORD = "name STRING, tags STRING, fields MAP<STRING, DOUBLE>, timestamp BIGINT"
_LATENESS_SECONDS = 120
_SECONDS = {"1m": 60, "10m": 600, "1h": 3_600, "24h": 86_400}
_WINDOW = ("metric", "tags", "interval", "window_start", "window_end")
_MERGED_BY = {"count": F.sum, "sum": F.sum, "min": F.min, "max": F.max}


def bench_rollup(records: int, series: int, rounds: int, report: Report) -> BenchResult:
    """Both sides roll up the same points, and their windows are equal in every value, or there is no result."""
    sample = MetricSample(records, hosts=max(1, series // 3))

    def fill(bootstrap: str) -> None:
        produce_keyed(bootstrap, sides.TOPIC, metric_records(sample))
        produce_values(bootstrap, sides.TOPIC, end_markers(sample, sides.PARTITIONS), sides.PARTITIONS)

    report(f"producing {records:,} records of {sample.series:,} series")
    read_result = partial(_read_result, sample.points)
    compared = sides.Comparison("rollup", records, penstock, baseline, BASELINE_NAME, BASELINE_SPARK, read_result)
    result = sides.compare_sides(compared, fill, rounds, report, series=sample.series)
    speeds = {
        "records_per_s": round(records / result.penstock.wall_s),
        "records_per_cpu_s": round(records / result.penstock.cpu_s),
    }
    return replace(result, extra={**result.extra, **speeds})


def penstock(spark: SparkSession, bootstrap: str, folder: Path) -> None:
    sides.run_job(spark, folder, our_job(bootstrap, sides.TOPIC, str(folder / _TABLE)))


def our_job(bootstrap: str, topic: str, table: str) -> str:
    return rollup_job(bootstrap, topic, table, more=_FLUSH)


def outcome(table: Path) -> dict[str, Any]:
    """The content of a table of windows, independent of the order of rows, files and tags: a digest and two counts."""
    tag = pl.concat_str(pl.element().struct.field("key"), pl.element().struct.field("value"), separator="=")
    columns = (
        "metric",
        pl.col("tags").cast(_ENTRIES).list.eval(tag).list.sort().list.join(","),
        pl.col("window_start", "window_end").dt.epoch("ms"),
        *("count", "sum", "min", "max"),
    )
    windows, points, digest = 0, 0, sha256()
    for interval in WINDOWS:
        rows = pl.scan_delta(str(table)).filter(pl.col("interval") == interval).select(*columns).collect()
        windows += rows.height
        points += int(rows["count"].sum())
        digest.update(interval.encode())
        digest.update(rows.sort("metric", "tags", "window_start").write_csv().encode())
    return {"windows": windows, "window_points": points, "digest": digest.hexdigest()}


def _read_result(points: int, spark: SparkSession, side: str, folder: Path) -> dict[str, Any]:
    result = outcome(folder / _TABLE)
    # Every point is in one window of each length.
    if result["window_points"] != points * len(WINDOWS):
        raise SystemExit(
            f"{side}: {result['window_points']} points in windows of {len(WINDOWS)} lengths, read {points}"
        )
    return {"outcome": result}


def baseline(spark: SparkSession, bootstrap: str, folder: Path) -> None:
    """One query: windows of a minute first, and from those, once closed, the windows of every length.

    The second aggregation sees a row for each series and minute instead of every point four times. In append mode each
    window is emitted once, when the watermark has passed its end; the batch without data that `availableNow` runs last
    emits what the end markers close.

    Measured with 2,000,000 records of 16,000 series, once each on a busy machine: 67 s and 47 s of CPU time. All points
    four times over into one aggregation took 92 s and 50 s. Other batch sizes and RocksDB have not been compared yet.
    """
    points = _points(sides.kafka_source(spark, bootstrap).load())
    value = F.col("value")
    finest = points.groupBy("metric", "tags", F.window("at", "1 minute")).agg(
        F.count(value).alias("count"), F.sum(value).alias("sum"), F.min(value).alias("min"), F.max(value).alias("max")
    )
    closed = (
        _in_all_windows(finest.withColumn("at", F.window_time("window")))
        .groupBy(*_WINDOW)
        .agg(*(by(name).alias(name) for name, by in _MERGED_BY.items()))
    )
    rows = closed.withColumn("tags", F.from_json("tags", "MAP<STRING, STRING>")).withColumn(
        "day", F.to_date("window_start")
    )
    writer = rows.writeStream.format("delta").outputMode("append").partitionBy("interval", "day")
    sides.run_to_end(writer, folder, folder / _TABLE)


def _points(records: DataFrame) -> DataFrame:
    """One row for each field. Tags stay text, which serves as a key of groups because Telegraf sorts them."""
    return (
        records.select(F.from_json(F.col("value").cast("string"), _RECORD).alias("record"))
        .select("record.*", F.explode("record.fields").alias("field", "value"))
        .select(
            F.timestamp_seconds("timestamp").alias("at"),
            F.concat("name", F.lit("."), "field").alias("metric"),
            "tags",
            "value",
        )
        .withWatermark("at", f"{_LATENESS_SECONDS} seconds")
    )


def _in_all_windows(rows: DataFrame) -> DataFrame:
    """Each row once for each length of window, by arithmetic, because a query may call `window()` only once.

    The metadata is how Spark knows a column of event time; it gets lost on the way through `explode`.
    """
    lengths = F.array(
        *(
            F.struct(F.lit(name).alias("interval"), F.lit(seconds).cast("bigint").alias("seconds"))
            for name, seconds in _SECONDS.items()
        )
    )
    start = F.unix_seconds("at") - F.unix_seconds("at") % F.col("length.seconds")
    end = F.timestamp_seconds(start + F.col("length.seconds"))
    return rows.withColumn("length", F.explode(lengths)).select(
        "metric",
        "tags",
        "length.interval",
        F.timestamp_seconds(start).alias("window_start"),
        end.alias("window_end", metadata={"spark.watermarkDelayMs": _LATENESS_SECONDS * 1000}),
        *_MERGED_BY,
    )
