"""`bench ingest`: a JSON topic into a Delta table by day, us against Structured Streaming, in turn, medians."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks import sides
from benchmarks.meters import BenchResult, Report
from penstock.embedded.sample import SampleSize, job_file, web_requests
from penstock.job.spec import SparkSpec
from penstock.spark.delta_spark import DELTA_SETTINGS

BASELINE_NAME = "Spark Structured Streaming from_json to Delta, availableNow"
_SCHEMA = (
    "meta STRUCT<producer: STRUCT<timestamp: STRING>>, method STRING, session_id STRING, status INT, "
    "url STRING, uuid STRING"
)


def bench_ingest(records: int, rounds: int, report: Report, bad_share: float = 0.0) -> BenchResult:
    """Both sides ingest the same records.

    Of bad records, the share `bad_share`, we write none as a row, and the baseline each as one with nulls.
    """
    sample = SampleSize(records, bad_every=round(1 / bad_share) if bad_share else 0)
    report(f"producing {records:,} records")
    spark, read_result = SparkSpec(conf=DELTA_SETTINGS), partial(_read_result, sample)
    compared = sides.Comparison(
        "ingest", records, penstock, baseline, BASELINE_NAME, spark, read_result, same_spark=True
    )
    return sides.compare_sides(
        compared, sides.in_turn(web_requests(sample)), rounds, report, bad_records=sample.bad_records
    )


def penstock(spark: SparkSession, bootstrap: str, folder: Path) -> None:
    sides.run_job(spark, folder, job_file(bootstrap, sides.TOPIC, str(folder / "table"), bad_share="1"))


def baseline(spark: SparkSession, bootstrap: str, folder: Path) -> None:
    """The way of a good Spark engineer: one streaming query, everything that is there, fetch settings as ours.

    What `from_json` cannot read becomes null without a reason: that is its mode PERMISSIVE.
    """
    rows = (
        sides.kafka_source(spark, bootstrap)
        .load()
        .select(
            F.from_json(F.col("value").cast("string"), _SCHEMA, {"mode": "PERMISSIVE"}).alias("record"),
            *sides.place_columns(),
        )
        .select("record.*", *sides.PLACE)
        .withColumn("date", F.to_date(F.col("meta.producer.timestamp").cast("timestamp")))
    )
    sides.run_to_end(rows.writeStream.format("delta").partitionBy("date"), folder, folder / "table")


def _read_result(sample: SampleSize, spark: SparkSession, side: str, folder: Path) -> dict[str, Any]:
    rows = spark.read.format("delta").load(str(folder / "table")).count()
    sides.check_rows(side, rows, sample.records - (sample.bad_records if side == "penstock" else 0))
    return {}
