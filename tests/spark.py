"""A small local Spark with the jars that a test needs."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from penstock.engine.jars import JarSet, resolve


def local_session(*sets: JarSet) -> SparkSession:
    """Two cores and four attempts per task, no web page, in UTC; the caller stops it."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Without it Spark starts whatever `python3` the path has, which lacks our libraries.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    jars = ",".join(str(jar) for one in sets for jar in resolve(one))
    settings = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    return SparkSession.builder.master("local[2,4]").appName("test").config(map=dict(settings)).getOrCreate()
