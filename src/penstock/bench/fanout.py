"""`bench fanout`: one topic of many types into Parquet by type and day, us against foreachBatch, in turn, medians.

python -m penstock.bench.fanout SIDE BOOTSTRAP TOPIC RECORDS TYPES FOLDER: one side, measured after a warm-up.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.bench import sides
from penstock.bench.meters import BenchResult, PeakMemory, Say
from penstock.embedded.sample_events import EventSample, events, export_job, type_names, type_schema
from penstock.job.spec import SparkSpec
from penstock.spark.delta_spark import DELTA_SETTINGS

BASELINE_NAME = "Spark Structured Streaming, foreachBatch: a cached batch, one filtered write per type"
RECORDS_PER_BATCH = 500_000
_FLUSH = f"flush: {{max_messages_per_batch: {RECORDS_PER_BATCH}, min_bytes_per_file: 1B, max_bytes_per_batch: 1B}}\n"
_SPARK_TYPES = {"string": "STRING", "int": "INT", "long": "BIGINT", "double": "DOUBLE", "boolean": "BOOLEAN"}


def bench_fanout(records: int, types: int, rounds: int, say: Say) -> BenchResult:
    """Both sides export the same events."""
    say(f"producing {records:,} events of {types} types")
    compared = sides.Comparison("fanout", "penstock.bench.fanout", BASELINE_NAME, records, (records, types))
    return sides.compare_sides(compared, sides.in_turn(events(EventSample(records, types))), rounds, say, types=types)


def penstock(spark: SparkSession, bootstrap: str, topic: str, types: int, folder: Path) -> None:
    sides.run_job(spark, folder, export_job(bootstrap, topic, str(folder / "root"), types, more=_FLUSH))


def baseline(spark: SparkSession, bootstrap: str, topic: str, types: int, folder: Path) -> None:
    """The way of a good Spark engineer: the type is looked up once, the batch is cached, each type filters it."""
    records = sides.kafka_source(spark, bootstrap, topic).option("maxOffsetsPerTrigger", RECORDS_PER_BATCH).load()
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

    sides.run_to_end(typed.writeStream.foreachBatch(write_types), folder)


def main(arguments: list[str]) -> None:
    side, bootstrap, topic, records, types, folder = arguments
    spark = sides.open_side_spark(side, SparkSpec(conf=DELTA_SETTINGS))
    run = penstock if side == "penstock" else baseline
    memory = PeakMemory()
    spent = sides.measure(lambda place: run(spark, bootstrap, topic, int(types), place), Path(folder), memory)
    root = Path(folder) / "measured" / "root"
    rows = sum(spark.read.parquet(str(root / name)).count() for name in type_names(int(types)))
    sides.check_rows(side, rows, int(records))
    sides.tell(spent, memory.peak_bytes)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
