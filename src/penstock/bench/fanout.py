"""`bench fanout`: one topic of many types into Parquet by type and day, us against foreachBatch, in turn, medians.

python -m penstock.bench.fanout SIDE BOOTSTRAP TOPIC RECORDS TYPES FOLDER: one side, measured after a warm-up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.bench.meters import PeakMemory
from penstock.bench.result import BenchResult, Say
from penstock.bench.sides import Comparison, compare_sides, in_turn, kafka_source, measure, run_job
from penstock.embedded.sample_events import EventSample, events, export_job, type_names, type_schema
from penstock.job.spec import SparkSpec
from penstock.spark.delta_spark import open_delta_spark
from penstock.spark.jars import JarSet
from penstock.spark.session import open_spark

BASELINE_NAME = "Spark Structured Streaming, foreachBatch: a cached batch, one filtered write per type"
RECORDS_PER_BATCH = 500_000
_FLUSH = f"flush: {{max_messages_per_batch: {RECORDS_PER_BATCH}, min_bytes_per_file: 1B, max_bytes_per_batch: 1B}}\n"
_SPARK_TYPES = {"string": "STRING", "int": "INT", "long": "BIGINT", "double": "DOUBLE", "boolean": "BOOLEAN"}

Side = Callable[[SparkSession, str, str, int, Path], None]


def bench_fanout(records: int, types: int, rounds: int, say: Say) -> BenchResult:
    """Both sides export the same events."""
    say(f"producing {records:,} events of {types} types")
    told = dict.fromkeys(SIDES, (records, types))
    compared = Comparison("fanout", "penstock.bench.fanout", BASELINE_NAME, records, told)
    return compare_sides(compared, in_turn(events(EventSample(records, types))), rounds, say, types=types)


def penstock(spark: SparkSession, bootstrap: str, topic: str, types: int, folder: Path) -> None:
    run_job(spark, folder, export_job(bootstrap, topic, str(folder / "root"), types, more=_FLUSH))


def baseline(spark: SparkSession, bootstrap: str, topic: str, types: int, folder: Path) -> None:
    """The way of a good Spark engineer: the type is looked up once, the batch is cached, each type filters it."""
    records = kafka_source(spark, bootstrap, topic).option("maxOffsetsPerTrigger", RECORDS_PER_BATCH).load()
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
    memory = PeakMemory()
    spent = measure(lambda place: SIDES[side](spark, bootstrap, topic, int(types), place), Path(folder), memory)
    root = Path(folder) / "measured" / "root"
    rows = sum(spark.read.parquet(str(root / name)).count() for name in type_names(int(types)))
    if rows != int(records):
        raise SystemExit(f"{side} wrote {rows} rows of {records}")
    print(json.dumps({**asdict(spent), "memory_bytes": memory.peak_bytes}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
