"""`bench ingest`: a JSON topic into a Delta table by day, us against Structured Streaming, in turn, medians.

python -m penstock.bench.ingest SIDE BOOTSTRAP TOPIC ROWS FOLDER: one side, measured after a warm-up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.bench.meters import resident_bytes
from penstock.bench.result import BenchResult, Say
from penstock.bench.sides import Comparison, compare_sides, in_turn, kafka_source, measure, run_job
from penstock.embedded.sample import Sample, job_file, web_requests
from penstock.spark.delta_spark import open_delta_spark
from penstock.spark.jars import JarSet

BASELINE_NAME = "Spark Structured Streaming from_json to Delta, availableNow"
_SCHEMA = (
    "meta STRUCT<producer: STRUCT<timestamp: STRING>>, method STRING, session_id STRING, status INT, "
    "url STRING, uuid STRING"
)

Side = Callable[[SparkSession, str, str, Path], None]


def bench_ingest(records: int, rounds: int, say: Say, bad_share: float = 0.0) -> BenchResult:
    """Both sides ingest the same records.

    Of bad records, the share `bad_share`, we write none as a row, and the baseline each as one with nulls.
    """
    sample = Sample(records, bad_every=round(1 / bad_share) if bad_share else 0)
    rows = {"penstock": [records - sample.bad_records], "baseline": [records]}
    say(f"producing {records:,} records")
    compared = Comparison("ingest", "penstock.bench.ingest", BASELINE_NAME, records, rows)
    return compare_sides(compared, in_turn(web_requests(sample)), rounds, say, bad_records=sample.bad_records)


def penstock(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    run_job(spark, folder, job_file(bootstrap, topic, str(folder / "table"), bad_share="100%"))


def baseline(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    """The way of a good Spark engineer: one streaming query, everything that is there, fetch settings as ours.

    What `from_json` cannot read becomes null, without a word of why: that is its mode PERMISSIVE.
    """
    rows = (
        kafka_source(spark, bootstrap, topic)
        .load()
        .select(
            F.from_json(F.col("value").cast("string"), _SCHEMA, {"mode": "PERMISSIVE"}).alias("record"),
            "partition",
            "offset",
        )
        .select("record.*", "partition", "offset")
        .withColumn("date", F.to_date(F.col("meta.producer.timestamp").cast("timestamp")))
    )
    query = (
        rows.writeStream.format("delta")
        .partitionBy("date")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    query.awaitTermination()


SIDES: dict[str, Side] = {"penstock": penstock, "baseline": baseline}


def main(arguments: list[str]) -> None:
    side, bootstrap, topic, rows_expected, folder = arguments
    spark = open_delta_spark(f"bench {side}", JarSet.KAFKA_SOURCE)
    spent = measure(lambda place: SIDES[side](spark, bootstrap, topic, place), Path(folder))
    rows = spark.read.format("delta").load(str(Path(folder) / "measured" / "table")).count()
    if rows != int(rows_expected):
        raise SystemExit(f"{side} wrote {rows} rows of {rows_expected}")
    print(json.dumps({**asdict(spent), "memory_bytes": resident_bytes()}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
