"""The Spark session of a process, with the settings that the flow relies on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.engine.jars import JarSet, resolve
from penstock.job.spec import SparkSpec

LIGHT = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For a JVM that only deals out tasks: thorough compiling and many collectors would cost more than they gain."""


def open_spark(
    spark: SparkSpec,
    name: str = "penstock",
    jar_sets: Iterable[JarSet] = (JarSet.KAFKA_SOURCE,),
    light: bool = False,
) -> SparkSession:
    """Start Spark, or return the session that this process already has.

    `light`: records never pass through the JVM, because tasks read, decode and write them in Python and Arrow.
    """
    if spark.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    jars = [jar for jar_set in jar_sets for jar in resolve(jar_set)]
    builder = SparkSession.builder.appName(name).master(spark.master)
    for key, setting in {**_settings(jars), **(LIGHT if light else {}), **spark.conf}.items():
        builder = builder.config(key, setting)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _settings(jars: list[Path]) -> dict[str, str]:
    return {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.worker.reuse": "true",
        "spark.speculation": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.log.level": "ERROR",
    }
