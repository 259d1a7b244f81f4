"""`bench ingest`: a JSON topic into a Delta table by day, us against Structured Streaming, in turn, medians.

python -m penstock.bench.ingest SIDE BOOTSTRAP TOPIC RECORDS BAD FOLDER: one side, measured after a warm-up.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.bench import sides
from penstock.bench.meters import BenchResult, Say, resident_bytes
from penstock.embedded.sample import Sample, job_file, web_requests
from penstock.spark.delta_spark import open_delta_spark
from penstock.spark.jars import JarSet

BASELINE_NAME = "Spark Structured Streaming from_json to Delta, availableNow"
_SCHEMA = (
    "meta STRUCT<producer: STRUCT<timestamp: STRING>>, method STRING, session_id STRING, status INT, "
    "url STRING, uuid STRING"
)


def bench_ingest(records: int, rounds: int, say: Say, bad_share: float = 0.0) -> BenchResult:
    """Both sides ingest the same records.

    Of bad records, the share `bad_share`, we write none as a row, and the baseline each as one with nulls.
    """
    sample = Sample(records, bad_every=round(1 / bad_share) if bad_share else 0)
    say(f"producing {records:,} records")
    compared = sides.Comparison(
        "ingest", "penstock.bench.ingest", BASELINE_NAME, records, (records, sample.bad_records)
    )
    return sides.compare_sides(
        compared, sides.in_turn(web_requests(sample)), rounds, say, bad_records=sample.bad_records
    )


def penstock(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    sides.run_job(spark, folder, job_file(bootstrap, topic, str(folder / "table"), bad_share="100%"))


def baseline(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    """The way of a good Spark engineer: one streaming query, everything that is there, fetch settings as ours.

    What `from_json` cannot read becomes null, without a word of why: that is its mode PERMISSIVE.
    """
    rows = (
        sides.kafka_source(spark, bootstrap, topic)
        .load()
        .select(
            F.from_json(F.col("value").cast("string"), _SCHEMA, {"mode": "PERMISSIVE"}).alias("record"),
            "partition",
            "offset",
        )
        .select("record.*", "partition", "offset")
        .withColumn("date", F.to_date(F.col("meta.producer.timestamp").cast("timestamp")))
    )
    sides.run_to_end(rows.writeStream.format("delta").partitionBy("date"), folder, folder / "table")


def main(arguments: list[str]) -> None:
    side, bootstrap, topic, records, bad, folder = arguments
    spark = open_delta_spark(f"bench {side}", JarSet.KAFKA_SOURCE)
    run, rows_expected = (penstock, int(records) - int(bad)) if side == "penstock" else (baseline, int(records))
    spent = sides.measure(lambda place: run(spark, bootstrap, topic, place), Path(folder))
    rows = spark.read.format("delta").load(str(Path(folder) / "measured" / "table")).count()
    sides.check_rows(side, rows, rows_expected)
    sides.tell(spent, resident_bytes())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
