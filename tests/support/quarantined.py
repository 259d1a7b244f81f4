"""A job that takes records with an `id` and nothing else, its fixed form, and what is in its two tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.job.spec import DecodeSpec, JobSpec, KafkaLogSpec, Policies, kafka_of
from penstock.job.sql_text import parse_expression as parse
from penstock.lake.delta.opening import open_table
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import DeltaLog
from penstock.lake.state import Totals
from penstock.tables.delta.spec import DeltaSpec
from tests.support.quarantine_url import quarantine_of

GOOD = '{"id": 1}'
EXTRA = '{"id": 2, "extra": "x"}'
"""Bad for the job, good for the fixed one."""
BROKEN = '{"id": 3'

Place = tuple[int, int]
AtStep = Callable[[str], None]


def orders(bootstrap: str, topic: str, folder: Path) -> JobSpec:
    return JobSpec(
        name="orders",
        log=KafkaLogSpec(bootstrap, topics=(topic,), group="orders"),
        decode=DecodeSpec("json"),
        schema=pa.schema([("id", pa.int64())]),
        columns={"partition": parse("kafka.partition"), "offset": parse("kafka.offset")},
        table=DeltaSpec(str(folder / "orders")),
        on=Policies(new_column="quarantine"),
    )


def job_text(job: JobSpec, *more: str, new_column: str = "quarantine") -> str:
    """The job file of `orders`; `more` are further fields of its schema."""
    return f"""
job: {job.name}
log:
  kafka: {{bootstrap: "{kafka_of(job).bootstrap}", topics: [{job.log.topics[0]}], group: {job.log.group}}}
decode: json
schema: {{{", ".join(["id: long", *more])}}}
columns: {{partition: kafka.partition, offset: kafka.offset}}
table:
  delta: {{path: {job.table.path}}}
on: {{new_column: {new_column}}}
spark: {{master: "local[2,4]"}}
"""


def with_extra_column(job: JobSpec) -> JobSpec:
    """The same job once its user has added `extra` to the schema."""
    schema = pa.schema([("id", pa.int64()), ("extra", pa.string())])
    return replace(job, schema=schema, on=replace(job.on, new_column="add"))


def run_once(job: JobSpec, spark: SparkSession, at_step: AtStep | None = None) -> None:
    """A process of the job from its start to the present end of the topic."""
    pipeline = open_rounds(job, spark, Environment(at_step=at_step) if at_step else None)
    try:
        while not pipeline.round(flush_now=True).done:
            pass
    finally:
        pipeline.close()


def written(job: JobSpec) -> list[Place]:
    return places(job.table.path)


def quarantined(job: JobSpec) -> list[Place]:
    return places(quarantine_of(job))


def places(path: str) -> list[Place]:
    return sorted(pl.read_delta(path).select("partition", "offset").iter_rows())


def totals(job: JobSpec, spark: SparkSession) -> Totals:
    pipeline = open_rounds(job, spark)
    try:
        (partition,) = pipeline.log.partitions()
        return pipeline.table.state([partition]).of(partition).totals
    finally:
        pipeline.close()


def tables(job: JobSpec) -> tuple[DeltaLog, DeltaLog]:
    return open_table(job.table, job.name), open_table(TablePlace(path=quarantine_of(job)), job.name)
