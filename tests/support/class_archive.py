"""Makes archives of classes, by which the Sparks and brokers of tests start in half the time (`make test` calls it).

Fault tests start dozens of them; most of a start is the JVM reading the same ten thousand classes.

python -m tests.support.class_archive FOLDER/spark.jsa
python -m tests.support.class_archive FOLDER/broker.jsa
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".venv"
SPARK = FOLDER / "spark.jsa"
BROKER = FOLDER / "broker.jsa"
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_SECONDS_MAX = 600
_USE_SPARK = """
import sys
from penstock.spark.session import open_spark
from penstock.job.spec import SparkSpec

spark = open_spark(SparkSpec(), name="archive")
rows = spark.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id long")
rows.selectExpr("id", "cast(id as string) as text").where("id > 0").write.parquet(sys.argv[1])
spark.read.parquet(sys.argv[1]).count()
jvm = spark.sparkContext._gateway.proc
spark.stop()
# It writes the archive as it ends, and it ends with its input.
jvm.stdin.close()
jvm.wait()
"""
_USE_BROKER = """
import sys
from pathlib import Path
import psutil
from penstock.embedded.broker import Cluster
from tests.support.kafka import Produce, Topics

with Cluster.start(Path(sys.argv[1])) as cluster:
    Produce(cluster.bootstrap)(Topics(cluster.bootstrap)(partitions=3), ["record"] * 100)
    # A JVM writes its archive as it ends, which takes longer than a cluster waits for its brokers.
    for broker in psutil.Process().children():
        broker.terminate()
        broker.wait()
"""
_USES = {SPARK.name: ("SPARK_SUBMIT_OPTS", _USE_SPARK), BROKER.name: ("JDK_JAVA_OPTIONS", _USE_BROKER)}
"""By the archive's name: the variable that makes the JVM write it, and what is then done with the JVM."""


def options(archive: Path) -> str:
    """The JVM options that use the archive; empty if there is none."""
    return f"-XX:SharedArchiveFile={archive} {QUIET}" if archive.exists() else ""


def make(archive: Path) -> None:
    """Use Spark or a broker once and let its JVM write down the classes that it loaded."""
    variable, use = _USES[archive.name]
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        fresh = Path(folder) / archive.name
        environment = {**os.environ, variable: f"-XX:ArchiveClassesAtExit={fresh} {QUIET}"}
        command = [sys.executable, "-c", use, str(Path(folder) / "used")]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
        )
        if fresh.exists():
            fresh.rename(archive)
        else:
            print(f"no archive of classes: tests start slower\n{done.stderr[-500:]}", file=sys.stderr)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
