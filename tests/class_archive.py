"""Makes the archive of Spark's classes by which test processes start in half the time (`make test` calls it once).

A fault test starts a dozen Sparks; most of a start is the JVM reading the same ten thousand classes.

python -m tests.class_archive ARCHIVE
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(__file__).parents[1] / ".venv" / "spark.jsa"
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_SECONDS_MAX = 180
_USE_SPARK = """
import sys
from penstock.engine.session import open_spark
from penstock.job.spec import SparkSpec

spark = open_spark(SparkSpec(), name="archive")
rows = spark.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id long")
rows.selectExpr("id", "cast(id as string) as text").where("id > 0").write.parquet(sys.argv[1])
spark.read.parquet(sys.argv[1]).count()
spark.stop()
"""


def options(archive: Path = ARCHIVE) -> str:
    """What Spark's JVM has to be told to use the archive; nothing if there is none."""
    return f"-XX:SharedArchiveFile={archive} {QUIET}" if archive.exists() else ""


def make(archive: Path) -> None:
    """Use Spark once and let its JVM write down the classes that it loaded."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        fresh = Path(folder) / archive.name
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={fresh} {QUIET}"}
        command = [sys.executable, "-c", _USE_SPARK, str(Path(folder) / "rows")]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
        )
        if fresh.exists():
            fresh.rename(archive)
        else:
            print(f"no archive of classes: tests start slower\n{done.stderr[-500:]}", file=sys.stderr)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
