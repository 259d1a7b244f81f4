"""Open windows as a data frame of Spark; the session has to know Delta."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.job.loader import load_job
from penstock.job.spec import JobSpec, job_of
from penstock.logs.registry import SECTIONS
from penstock.spark.delta_spark import delta_frame
from penstock.tables.rollup.aggregate import MILLI
from penstock.tables.rollup.decide import Span
from penstock.tables.rollup.open_windows import unclosed
from penstock.tables.rollup.section import RollupSection
from penstock.tables.rollup.spec import Aggregates, RollupSpec


def open_windows(spark: SparkSession, job: JobSpec | Path | str) -> DataFrame:
    """The windows of a job or job file that are not closed yet, with what is committed of them; without quantiles.

    A view of one version of the partials: windows that close later stay in it.
    """
    loaded = job if isinstance(job, JobSpec) else load_job(Path(job), [RollupSection()], SECTIONS)
    rollup = job_of(loaded, RollupSpec)
    partials, spans = unclosed(rollup)
    rows = delta_frame(spark, rollup.table.partials_path, partials.version)
    return reduce(DataFrame.unionByName, (_open(rows, span, rollup.table.aggregates) for span in spans))


def _open(rows: DataFrame, span: Span, aggregates: Aggregates) -> DataFrame:
    """The windows of one interval that end after the last close."""
    columns = [F.sum("count").alias("count"), F.sum("sum").alias("sum"), F.min("min").alias("min")]
    columns.append(F.max("max").alias("max"))
    if aggregates.ends:
        columns.append(F.min(F.struct("first_ms", "first"))["first"].alias("first"))
        columns.append(F.max(F.struct("last_ms", "last"))["last"].alias("last"))
    if aggregates.mean:
        columns.append((F.sum("sum") / F.sum("count")).alias("mean"))
    grouped = (
        rows.where(F.unix_micros("window_start") >= span.emitted_from_ms * MILLI)
        .withColumnRenamed("tags", "tags_text")
        .groupBy("metric", "tags_text", F.window("window_start", f"{span.window.millis} milliseconds"))
        .agg(*columns)
    )
    return grouped.select(
        F.concat("metric", "tags_text").alias("series"),
        "metric",
        F.from_json("tags_text", "map<string,string>").alias("tags"),
        F.lit(span.window.name).alias("interval"),
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        *grouped.drop("metric", "tags_text", "window").columns,
    )
