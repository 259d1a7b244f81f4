"""Windows for people, as Spark's data frames: those that are closed, and those that are still open.

The session has to know Delta.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.job.loader import load_job
from penstock.job.spec import JobSpec, job_of
from penstock.logs.registry import SECTIONS
from penstock.spark.delta_spark import delta_frame
from penstock.tables.rollup.decide import Span
from penstock.tables.rollup.open_windows import unclosed
from penstock.tables.rollup.section import RollupSection
from penstock.tables.rollup.spec import Aggregates, RollupSpec

_MILLI = 1000
"""Microseconds."""


def closed_windows(spark: SparkSession, job: JobSpec | Path | str) -> DataFrame:
    """The closed windows of a job, given as it is or by its job file."""
    return delta_frame(spark, _spec(job).table.path)


def open_windows(spark: SparkSession, job: JobSpec | Path | str) -> DataFrame:
    """The windows that are not closed yet, with what is committed of them so far; quantiles are left out.

    A view of one version of the partials: windows that close later stay in it.
    """
    rollup = _spec(job)
    view = unclosed(rollup)
    rows = delta_frame(spark, rollup.table.partials_path, view.partials.version)
    return reduce(DataFrame.unionByName, (_open(rows, span, rollup.table.aggregates) for span in view.spans))


def _spec(job: JobSpec | Path | str) -> JobSpec[RollupSpec]:
    if isinstance(job, JobSpec):
        return job_of(job, RollupSpec)
    return job_of(load_job(Path(job), [RollupSection()], SECTIONS), RollupSpec)


def _open(rows: DataFrame, span: Span, aggregates: Aggregates) -> DataFrame:
    """The windows of one interval that end after the last close."""
    length = span.window.millis * _MILLI
    micros = F.unix_micros("window_start")
    start = F.timestamp_micros(micros - F.pmod(micros, F.lit(length)))
    grouped = (
        rows.where(micros >= span.emitted_from_ms * _MILLI)
        .groupBy("metric", F.col("tags").alias("tags_text"), start.alias("window_start"))
        .agg(*_aggregated(aggregates))
    )
    return grouped.select(
        F.concat("metric", "tags_text").alias("series"),
        "metric",
        F.from_json("tags_text", "map<string,string>").alias("tags"),
        F.lit(span.window.name).alias("interval"),
        "window_start",
        F.timestamp_micros(F.unix_micros("window_start") + length).alias("window_end"),
        *(each for each in grouped.columns if each not in ("metric", "tags_text", "window_start")),
    )


def _aggregated(aggregates: Aggregates) -> list[Column]:
    columns = [F.sum("count").alias("count"), F.sum("sum").alias("sum"), F.min("min").alias("min")]
    columns.append(F.max("max").alias("max"))
    if aggregates.ends:
        columns.append(F.min(F.struct("first_ms", "first"))["first"].alias("first"))
        columns.append(F.max(F.struct("last_ms", "last"))["last"].alias("last"))
    if aggregates.mean:
        columns.append((F.sum("sum") / F.sum("count")).alias("mean"))
    return columns
