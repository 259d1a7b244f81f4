"""`bench rollup`: Telegraf metrics into windows of four lengths, us against Structured Streaming, in turn, medians.

Both sides read the same topic with the same lateness, and emit every window once, when it is closed. The last record of
each partition is days ahead: it closes all windows before it on both sides, and its own stay open on both.

python -m penstock.bench.rollup SIDE BOOTSTRAP TOPIC POINTS FOLDER: one side, measured after a warm-up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

from penstock.bench.meters import PeakMemory
from penstock.bench.result import BenchResult, Say
from penstock.bench.rollup_baseline import BASELINE_NAME, baseline, open_baseline_spark
from penstock.bench.sides import PARTITIONS, Comparison, compare_sides, measure, run_job
from penstock.embedded.sample import produce_keyed, produce_values
from penstock.embedded.sample_metrics import WINDOWS, MetricSample, end_markers, metric_records, rollup_job
from penstock.job.spec import SparkSpec
from penstock.spark.session import open_spark

RECORDS_PER_BATCH = 500_000
_FLUSH = f"flush: {{max_messages_per_batch: {RECORDS_PER_BATCH}, min_bytes_per_file: 1B, max_bytes_per_batch: 1B}}\n"
_TABLE = "windows"
_ENTRIES = pl.List(pl.Struct({"key": pl.String, "value": pl.String}))

Side = Callable[[SparkSession, str, str, Path], None]


def bench_rollup(records: int, series: int, rounds: int, say: Say) -> BenchResult:
    """Both sides roll up the same points, and their windows are equal in every value, or there is no result."""
    sample = MetricSample(records, series)

    def fill(bootstrap: str, topic: str) -> None:
        produce_keyed(bootstrap, topic, metric_records(sample))
        produce_values(bootstrap, topic, end_markers(sample, PARTITIONS), PARTITIONS)

    say(f"producing {records:,} records of {series:,} series")
    told = dict.fromkeys(SIDES, (sample.points,))
    compared = Comparison("rollup", "penstock.bench.rollup", BASELINE_NAME, records, told)
    result = compare_sides(compared, fill, rounds, say, series=series)
    speeds = {
        "records_per_s": round(records / result.penstock.wall_s),
        "records_per_cpu_s": round(records / result.penstock.cpu_s),
    }
    return replace(result, extra={**result.extra, **speeds})


def penstock(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    run_job(spark, folder, our_job(bootstrap, topic, str(folder / _TABLE)))


def our_job(bootstrap: str, topic: str, table: str) -> str:
    return rollup_job(bootstrap, topic, table, more=_FLUSH)


def spark_streaming(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    baseline(spark, bootstrap, topic, folder / _TABLE, folder / "checkpoint")


SIDES: dict[str, Side] = {"penstock": penstock, "baseline": spark_streaming}


def outcome(table: Path) -> dict[str, Any]:
    """What a table of windows says, whatever the order of its rows, files and tags: a digest and two counts."""
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


def main(arguments: list[str]) -> None:
    side, bootstrap, topic, points, folder = arguments
    # Each side as its user would have it: `penstock run` starts Spark so for a job like this.
    spark = (
        open_spark(SparkSpec(), "bench penstock", light=True) if side == "penstock" else open_baseline_spark("bench")
    )
    memory = PeakMemory()
    spent = measure(lambda place: SIDES[side](spark, bootstrap, topic, place), Path(folder), memory)
    found = outcome(Path(folder) / "measured" / _TABLE)
    # Every point is in one window of each length.
    if found["window_points"] != int(points) * len(WINDOWS):
        raise SystemExit(f"{side}: {found['window_points']} points in windows of {len(WINDOWS)} lengths, read {points}")
    print(json.dumps({**asdict(spent), "memory_bytes": memory.peak_bytes, "outcome": found}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
