"""The settings by which Spark itself reads Delta tables: for the demo, the benchmarks and the tests.

A job does not need them: Spark runs the flow, the Delta library commits.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from penstock.job.spec import SparkSpec
from penstock.spark.jars import JarSet
from penstock.spark.session import open_spark

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The default of 50 tasks for every snapshot is made for a cluster.
    "spark.databricks.delta.snapshotPartitions": "2",
}


def open_delta_spark(name: str, *more: JarSet) -> SparkSession:
    """A local session with our own settings that also knows Delta, and what the further sets bring."""
    return open_spark(SparkSpec(conf=DELTA_SETTINGS), name, (JarSet.DELTA, *more))
