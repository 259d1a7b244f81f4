"""`bench fanout`: one topic of many types into Parquet by type and day, us against foreachBatch, in turn, medians."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import sides
from benchmarks.events import events, export_job, type_names, type_schema
from benchmarks.meters import BenchResult, Report
from penstock.job.spec import SparkSpec
from penstock.spark.delta_spark import DELTA_SETTINGS

BASELINE_NAME = "Spark Structured Streaming, foreachBatch: a cached batch, one filtered write per type"
RECORDS_PER_BATCH = 500_000
_FLUSH = f"flush: {{max_messages_per_batch: {RECORDS_PER_BATCH}, min_bytes_per_file: 1B, max_bytes_per_batch: 1B}}\n"
_SPARK_TYPES = {"string": "STRING", "int": "INT", "long": "BIGINT", "double": "DOUBLE", "boolean": "BOOLEAN"}


def bench_fanout(records: int, types: int, rounds: int, report: Report) -> BenchResult:
    """Both sides export the same events."""
    report(f"producing {records:,} events of {types} types")
    ours, theirs = partial(penstock, types), partial(baseline, types)
    read_result = partial(_read_result, records, types)
    spark = SparkSpec(conf=DELTA_SETTINGS)
    compared = sides.Comparison("fanout", records, ours, theirs, BASELINE_NAME, spark, read_result)
    return sides.compare_sides(compared, sides.in_turn(events(records, types)), rounds, report, types=types)


def penstock(types: int, spark: SparkSession, bootstrap: str, folder: Path) -> None:
    sides.run_job(spark, folder, export_job(bootstrap, sides.TOPIC, str(folder / "root"), types, more=_FLUSH))


def baseline(types: int, spark: SparkSession, bootstrap: str, folder: Path) -> None:
    """The way of a good Spark engineer: the type is looked up once, the batch is cached, each type filters it."""
    records = sides.kafka_source(spark, bootstrap).option("maxOffsetsPerTrigger", RECORDS_PER_BATCH).load()
    text = F.col("value").cast("string")
    route = F.get_json_object(text, "$.type").alias("route")
    typed = records.select(route, text.alias("text"), *sides.place_columns())

    def write_types(batch: DataFrame, number: int) -> None:
        batch.persist()
        for name in type_names(types):
            fields = ", ".join(f"{field} {_SPARK_TYPES[kind]}" for field, kind in type_schema(name).items())
            rows = (
                batch.filter(F.col("route") == name)
                .select(F.from_json("text", fields).alias("event"), *sides.PLACE)
                .select("event.*", *sides.PLACE)
                .withColumn("day", F.to_date(F.col("at").cast("timestamp")))
            )
            rows.write.mode("append").partitionBy("day").parquet(str(folder / "root" / name))
        batch.unpersist()

    sides.run_to_end(typed.writeStream.foreachBatch(write_types), folder)


def _read_result(records: int, types: int, spark: SparkSession, side: str, folder: Path) -> dict[str, Any]:
    rows = sum(spark.read.parquet(str(folder / "root" / name)).count() for name in type_names(types))
    sides.check_rows(side, rows, records)
    return {}
