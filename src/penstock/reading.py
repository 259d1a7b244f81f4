"""`penstock.read`: what a job wrote, as a data frame in the caller's Spark session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.job.spec import JobSpec
from penstock.spark.delta_spark import delta_frame, table_properties
from penstock.tables.kind import ReadRequest, Recognised
from penstock.tables.registry import KINDS, kind_of, load_job

JOB_FILES = (".yaml", ".yml")


def read(
    spark: SparkSession,
    dataset: JobSpec | Path | str,
    *,
    keys: Mapping[str, object] | None = None,
    type: str | None = None,
) -> DataFrame:
    """The rows of a dataset: a job file, by its path, or a Delta table, by its path or URL.

    `keys` selects rows of a keyed table: for each key column a value, or a list of values; with all columns of the
    partition key, only files of their buckets are read. `type` is the event type of a dataset that has several.

    The session needs Delta, and reads with its own credentials. Raises `UserError` if the dataset cannot be read.
    """
    request = ReadRequest(dict(keys or {}), type)
    if isinstance(dataset, JobSpec):
        return kind_of(dataset).read(dataset, spark, request)
    if str(dataset).endswith(JOB_FILES):
        job = load_job(Path(dataset))
        return kind_of(job).read(job, spark, request)
    path = str(dataset)
    properties = table_properties(spark, path)
    for kind in KINDS.all():
        if isinstance(kind, Recognised) and kind.mark in properties:
            return kind.read_table(path, properties[kind.mark], spark, request)
    request.refuse_all(path)
    return delta_frame(spark, path)
