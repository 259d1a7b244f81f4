"""The two sides of `bench fanout`, each run in a process of its own: one export, measured after a warm-up.

python -m penstock.bench.fanout_sides SIDE BOOTSTRAP TOPIC RECORDS TYPES FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.bench.cpu import Meter
from penstock.bench.ingest_sides import SOURCE_TUNING
from penstock.bench.memory import PeakMemory
from penstock.embedded.sample_events import export_job, type_names, type_schema
from penstock.engine.loop import Loop, Retries, Stop
from penstock.engine.round import open_rounds
from penstock.events import NullListener
from penstock.job.spec import SparkSpec
from penstock.spark.delta_spark import open_delta_spark
from penstock.spark.jars import JarSet
from penstock.spark.session import open_spark
from penstock.tables.registry import load_job

BASELINE_NAME = "Spark Structured Streaming, foreachBatch: a cached batch, one filtered write per type"
RECORDS_PER_BATCH = 500_000
_FLUSH = f"flush: {{max_messages_per_batch: {RECORDS_PER_BATCH}, min_bytes_per_file: 1B, max_bytes_per_batch: 1B}}\n"
_SPARK_TYPES = {"string": "STRING", "int": "INT", "long": "BIGINT", "double": "DOUBLE", "boolean": "BOOLEAN"}

Side = Callable[[SparkSession, str, str, int, Path], None]


def penstock(spark: SparkSession, bootstrap: str, topic: str, types: int, folder: Path) -> None:
    """Our way: the loop of `run --once`."""
    job_path = folder / "job.yaml"
    job_path.write_text(export_job(bootstrap, topic, str(folder / "root"), types, more=_FLUSH))
    job = load_job(job_path)
    Loop(lambda: open_rounds(job, spark), once=True, stop=Stop(), retries=Retries(0), listener=NullListener()).run()


def baseline(spark: SparkSession, bootstrap: str, topic: str, types: int, folder: Path) -> None:
    """The way of a good Spark engineer: the type is looked up once, the batch is cached, each type filters it."""
    records = (
        spark.readStream.format("kafka")
        .options(**SOURCE_TUNING)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_PER_BATCH)
        .load()
    )
    text = F.col("value").cast("string")
    typed = records.select(F.get_json_object(text, "$.type").alias("route"), text.alias("text"), "partition", "offset")

    def write_types(batch: DataFrame, number: int) -> None:
        batch.persist()
        for name in type_names(types):
            fields = ", ".join(f"{field} {_SPARK_TYPES[kind]}" for field, kind in type_schema(name).items())
            rows = (
                batch.filter(F.col("route") == name)
                .select(F.from_json("text", fields).alias("event"), "partition", "offset")
                .select("event.*", F.col("partition").alias("kafka_partition"), F.col("offset").alias("kafka_offset"))
                .withColumn("day", F.to_date(F.col("at").cast("timestamp")))
            )
            rows.write.mode("append").partitionBy("day").parquet(str(folder / "root" / name))
        batch.unpersist()

    query = (
        typed.writeStream.foreachBatch(write_types)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


SIDES: dict[str, Side] = {"penstock": penstock, "baseline": baseline}


def main(arguments: list[str]) -> None:
    side, bootstrap, topic, records, types, folder = arguments
    # Each side as its user would have it: `penstock run` starts Spark so for a job like this.
    spark = (
        open_spark(SparkSpec(), "bench penstock", light=True)
        if side == "penstock"
        else open_delta_spark("bench", JarSet.KAFKA_SOURCE)
    )
    for part in ("warm-up", "measured"):
        (Path(folder) / part).mkdir(parents=True)
    # The same export once before: a running job is measured, not the JVM's first minute.
    SIDES[side](spark, bootstrap, topic, int(types), Path(folder) / "warm-up")
    with PeakMemory() as memory:
        meter = Meter()
        SIDES[side](spark, bootstrap, topic, int(types), Path(folder) / "measured")
        spent = meter.spent()
    root = Path(folder) / "measured" / "root"
    rows = sum(spark.read.parquet(str(root / name)).count() for name in type_names(int(types)))
    if rows != int(records):
        raise SystemExit(f"{side} wrote {rows} rows of {records}")
    print(json.dumps({"wall_s": spent.wall_s, "cpu_s": spent.cpu_s, "memory_bytes": memory.peak_bytes}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
