"""A standalone cluster for longer: executors with a packed Python, broken archives, and rounds of kills at random."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.find_spark_home import _find_spark_home

from tests.support.every_kind import PARTITIONS, EveryKind
from tests.support.kafka import Produce, Topics
from tests.support.lake import BUCKET, s3_server
from tests.support.processes import EXIT_SECONDS_MAX, penstock
from tests.support.spark_cluster import SparkCluster, spark_cluster
from tests.support.tries import tries

SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    # Not the one of the tests, which no archive has.
    "spark.python.daemon.module": "pyspark.daemon",
}
ROUNDS = tries(1)
RECORDS = 500


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `penstock pack` prints for its archive."""
    archive = tmp_path_factory.mktemp("packed") / "penstock.tar.gz"
    command = [sys.executable, "-m", "penstock.cli", "pack", "--json", str(archive)]
    content: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return content


@pytest.fixture
def bare_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """Executors that find neither Penstock nor the Python of the tests."""
    with spark_cluster(tmp_path / "spark", environment={"PYTHONPATH": "", "PYSPARK_PYTHON": "/nowhere"}) as cluster:
        yield cluster


def jobs_on(
    cluster: SparkCluster, folder: Path, bootstrap: str, topic: Topics, produce: Produce, conf: Mapping[str, str]
) -> EveryKind:
    spark = {"master": cluster.url, "conf": {**SMALL, **conf}}
    jobs = EveryKind(folder, bootstrap, topic(PARTITIONS), f"file://{folder}/lake", spark=spark)
    jobs.write()
    jobs.fill(produce, RECORDS)
    return jobs


def test_executors_run_the_python_of_a_packed_archive(
    tmp_path: Path,
    bootstrap: str,
    topic: Topics,
    produce: Produce,
    bare_cluster: SparkCluster,
    packed: dict[str, Any],
) -> None:
    jobs = jobs_on(bare_cluster, tmp_path, bootstrap, topic, produce, packed["conf"])
    with penstock("run", *map(str, jobs.paths), "--once", "--json", own_spark=True) as process:
        assert process.exit_code() == 0, process.last_words
    jobs.assert_exact()


def test_spark_submit_runs_a_job_with_the_entry_file_and_the_archive(
    tmp_path: Path,
    bootstrap: str,
    topic: Topics,
    produce: Produce,
    bare_cluster: SparkCluster,
    packed: dict[str, Any],
) -> None:
    jobs = jobs_on(bare_cluster, tmp_path, bootstrap, topic, produce, {})
    settings = {**packed["conf"], "spark.pyspark.driver.python": sys.executable}
    home = Path(_find_spark_home())  # type: ignore[no-untyped-call]
    command = [str(home / "bin" / "spark-submit"), "--master", bare_cluster.url]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += [packed["entry"], "run", "--once", "--json", *map(str, jobs.paths)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "SPARK_SUBMIT_OPTS": ""},
        timeout=EXIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    jobs.assert_exact()


@pytest.mark.parametrize("kind", ["missing", "no archive", "cut off"])
def test_a_broken_archive_is_a_user_error_with_its_reason(kind: str, tmp_path: Path) -> None:
    """The driver unpacks it too, whatever its master is."""
    archive = tmp_path / "broken.tar.gz"
    if kind == "no archive":
        archive.write_bytes(b"not an archive")
    elif kind == "cut off":
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(__file__, "file")
        archive.write_bytes(archive.read_bytes()[:-500])
    conf = {**SMALL, "spark.archives": f"{archive}#penstock"}
    opening = f"from penstock.spark.session import *; open_spark(SparkSpec('local[1]', {conf}))"
    done = subprocess.run([sys.executable, "-c", opening], capture_output=True, text=True, check=False)
    assert "penstock.errors.UserError: Spark cannot fetch or unpack a file" in done.stderr
    assert "penstock pack" in done.stderr


def test_every_kind_is_exact_through_rounds_of_kills(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    rng = random.Random(int(os.environ.get("PENSTOCK_SEED", "7")))
    with s3_server() as storage, spark_cluster(tmp_path / "spark") as cluster:
        conf = {**SMALL, "spark.speculation": "true", "spark.speculation.quantile": "0.1"}
        root, spark = f"s3://{BUCKET}/soak", {"master": cluster.url, "conf": conf}
        jobs = EveryKind(tmp_path, bootstrap, topic(PARTITIONS), root, storage, spark)
        paths = jobs.write()
        for _ in range(ROUNDS):
            with penstock("run", *paths, "--json", own_spark=True) as process:
                for _ in range(3):
                    jobs.fill(produce, RECORDS)
                    process.wait_for("batch planned")
                    if rng.random() < 0.7:
                        cluster.kill_executor(len(cluster.workers) - 1)
                    else:
                        cluster.kill_worker(len(cluster.workers) - 1)
                        cluster.add_worker()
                    process.wait_for("batch committed")
                process.send(signal.SIGKILL)
        with penstock("run", *paths, "--once", "--json", own_spark=True) as process:
            assert process.exit_code() == 0, process.last_words
        jobs.assert_exact()
