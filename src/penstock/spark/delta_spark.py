"""Spark that reads Delta tables itself: a session for demo, benchmarks and tests, or the caller's own.

A job does not need it: Spark runs the flow, the Delta library commits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import PenstockError, UserError
from penstock.job.spec import SparkSpec
from penstock.spark.failures import SPARK_ERRORS, refusal_of, spark_failure
from penstock.spark.jars import JarSet, delta_coordinate, installed_spark
from penstock.spark.session import open_spark

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The default of 50 tasks for every snapshot is made for a cluster.
    "spark.databricks.delta.snapshotPartitions": "2",
}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_UNKNOWN_FORMAT = ("DATA_SOURCE_NOT_FOUND", "DELTA_CONFIGURE_SPARK_SESSION", "TABLE_OR_VIEW_NOT_FOUND")
"""Spark's errors if it does not know Delta: on a read, with the jar alone, and in SQL."""
_NO_TABLE = ("DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST", "PATH_NOT_FOUND")


def open_delta_spark(name: str, *more: JarSet) -> SparkSession:
    """A local session with Penstock's settings, the Delta extension, and the jars of the further sets."""
    return open_spark(SparkSpec(conf=DELTA_SETTINGS), name, (JarSet.DELTA, *more))


def delta_frame(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """The rows of a version; None: of the newest."""
    with _explained(spark, path):
        read = spark.read.format("delta")
        return (read if version is None else read.option("versionAsOf", version)).load(spark_path(path))


def table_properties(spark: SparkSession, path: str) -> dict[str, str]:
    quoted = spark_path(path).replace("`", "``")
    with _explained(spark, path):
        return {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES delta.`{quoted}`").collect()}


def spark_path(path: str) -> str:
    """A path for Spark's SQL: absolute, and with Hadoop's name of the store."""
    if path.startswith("s3://"):
        return f"s3a://{path.removeprefix('s3://')}"
    return path if _SCHEME.match(path) else os.path.abspath(path)


@contextmanager
def _explained(spark: SparkSession, path: str) -> Iterator[None]:
    try:
        yield
    except SPARK_ERRORS as error:
        raise _explanation(spark, path, error) from error


def _explanation(spark: SparkSession, path: str, error: Exception) -> PenstockError:
    text = str(error)
    if any(item in text for item in _UNKNOWN_FORMAT):
        package = delta_coordinate(installed_spark()[0])
        settings = [f"{name}={value}" for name, value in DELTA_SETTINGS.items() if name.startswith("spark.sql.")]
        return UserError(
            "this Spark session does not know Delta",
            detail=refusal_of(error),
            hint=f"start Spark with --packages {package} and --conf {' --conf '.join(settings)}",
        )
    if any(item in text for item in _NO_TABLE):
        return UserError(f"there is no Delta table at {path}", detail=refusal_of(error))
    return spark_failure(error, spark)
