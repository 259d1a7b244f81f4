"""The two sides of `bench ingest`, each run in a process of its own: one ingestion, measured after a warm-up.

python -m penstock.bench.ingest_sides SIDE BOOTSTRAP TOPIC ROWS FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.bench.cpu import Meter
from penstock.embedded.sample import job_file
from penstock.engine.loop import Loop, Retries, Stop
from penstock.engine.round import open_rounds
from penstock.events import NullListener
from penstock.spark.delta_spark import open_delta_spark
from penstock.spark.jars import JarSet
from penstock.tables.registry import load_job

BASELINE_NAME = "Spark Structured Streaming from_json to Delta, availableNow"
_SCHEMA = (
    "meta STRUCT<producer: STRUCT<timestamp: STRING>>, method STRING, session_id STRING, status INT, "
    "url STRING, uuid STRING"
)
MIB = 1024 * 1024
SOURCE_TUNING = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 * MIB),
    "kafka.fetch.max.bytes": str(16 * MIB),
    "kafka.receive.buffer.bytes": str(MIB),
    "kafka.request.timeout.ms": "15000",
    "kafka.default.api.timeout.ms": "20000",
}
"""Fetch settings of Spark's Kafka source, so that the baseline is not slowed by Kafka's defaults."""

Side = Callable[[SparkSession, str, str, Path], None]


def penstock(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    """Our way: the loop of `run --once`."""
    job_path = folder / "job.yaml"
    job_path.write_text(job_file(bootstrap, topic, str(folder / "table"), bad_share="100%"))
    job = load_job(job_path)
    Loop(lambda: open_rounds(job, spark), once=True, stop=Stop(), retries=Retries(0), listener=NullListener()).run()


def baseline(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    """The way of a good Spark engineer: one streaming query, everything that is there, fetch settings as ours.

    What `from_json` cannot read becomes null, without a word of why: that is its mode PERMISSIVE.
    """
    records = (
        spark.readStream.format("kafka")
        .options(**SOURCE_TUNING)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = (
        records.select(
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
    for part in ("warm-up", "measured"):
        (Path(folder) / part).mkdir(parents=True)
    # The same ingestion once before: a running job is measured, not the JVM's first minute.
    SIDES[side](spark, bootstrap, topic, Path(folder) / "warm-up")
    meter = Meter()
    SIDES[side](spark, bootstrap, topic, Path(folder) / "measured")
    spent = meter.spent()
    rows = spark.read.format("delta").load(str(Path(folder) / "measured" / "table")).count()
    if rows != int(rows_expected):
        raise SystemExit(f"{side} wrote {rows} rows of {rows_expected}")
    tree = [psutil.Process(), *psutil.Process().children(recursive=True)]
    memory = {"python" if "python" in each.name() else "jvm": 0 for each in tree}
    for each in tree:
        memory["python" if "python" in each.name() else "jvm"] += each.memory_info().rss
    print(json.dumps({"wall_s": spent.wall_s, "cpu_s": spent.cpu_s, "memory_bytes": memory}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
