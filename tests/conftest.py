"""Fixtures of the whole suite: one real broker for the whole run, topics and records in it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from penstock.embedded.broker import Cluster
from penstock.job.spec import SparkSpec
from penstock.spark.delta_spark import DELTA_SETTINGS
from penstock.spark.jars import JarSet, exclusive
from penstock.spark.session import LIGHT, open_spark
from tests.support import class_archive, forked, worker_daemon
from tests.support.exports import ExportPipe
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe
from tests.support.tries import tries

BROKER_SETTINGS = {"log.cleaner.backoff.ms": "200", "quota.window.num": "2"}
"""Compaction runs as soon as there is something to compact, and quotas hold back for a second, not for ten."""

BROKER_FOLDER_NAME = "PENSTOCK_TESTS_BROKER"
"""The variable with the folder of the broker that all processes of a run share."""
BROKER_SECONDS_MAX = 300.0

SMALL_TABLES = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Spark would compile each query, and divide even the log of a table of ten rows into fifty tasks."""

FRUGAL = {
    "OMP_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "TOKIO_WORKER_THREADS": "1",
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000",
}
"""For the processes that run tests. Arrow, Polars and the clients of storage have little to do at a time: more threads
would only wake each other up, and memory that is freed is allocated again at once."""

TESTS = Path(__file__).parent
BUSY = {TESTS / "fault", TESTS / "integration"}
WAITING = TESTS / "integration" / "claims"

# Brokers and Sparks of tests run for seconds: a thorough compiler and many collectors would cost more than they gain.
_SMALL = LIGHT["spark.driver.extraJavaOptions"]
os.environ.setdefault("JDK_JAVA_OPTIONS", f"{_SMALL} {class_archive.options(class_archive.BROKER)}")
# Spark's JVM reads both, and takes the archive of the second.
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{class_archive.options(class_archive.SPARK)} {worker_daemon.OPTION}")
# Every process that runs tests has one of its own that forks.
os.environ[worker_daemon.ADDRESS_NAME] = f"penstock-tests-{os.getpid()}"
os.environ.update(FRUGAL)
# Processes of tests find the tests, wherever they run.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS.parent), os.environ.get("PYTHONPATH")]))
# The duration of an example depends more on the machine than on the code.
settings.register_profile("penstock", deadline=None, max_examples=tries(15))
settings.load_profile("penstock")


def pytest_configure() -> None:
    """On SIGTERM a run tears its fixtures down, since brokers run in sessions of their own."""
    signal.signal(signal.SIGTERM, _end)
    if not _is_worker():
        os.environ[BROKER_FOLDER_NAME] = tempfile.mkdtemp(prefix="penstock-tests-")


def pytest_unconfigure() -> None:
    """Stop the broker: all workers have ended."""
    if not _is_worker():
        folder = Path(os.environ.pop(BROKER_FOLDER_NAME))
        running = Cluster.open(folder)
        if running is not None:
            running.stop()
        shutil.rmtree(folder)


def _is_worker() -> bool:
    """Whether this process runs a part of the tests for pytest-xdist."""
    return "PYTEST_XDIST_WORKER" in os.environ


def _end(number: int, frame: FrameType | None) -> None:
    pytest.exit("terminated", returncode=128 + number)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files that need one core, or mostly wait, among those with brokers, Sparks and killed processes.

    Of the files that need one core the largest come first, so that the processes end at about the same time.
    """
    sizes = Counter(item.path for item in items)
    busy = [path for path in sizes if BUSY.intersection(path.parents) and WAITING not in path.parents]
    places = {path: float(number) for number, path in enumerate(busy)}
    waiting = [path for path in sizes if WAITING in path.parents]
    others = sorted(sizes.keys() - {*busy, *waiting}, key=lambda path: (-sizes[path], path))
    for spread in (waiting, others):
        places |= {path: number * len(busy) / len(spread) - 0.5 for number, path in enumerate(spread)}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The broker of all tests of the run, started on first use; tests that damage a broker start their own."""
    folder = Path(os.environ[BROKER_FOLDER_NAME])
    with exclusive(folder / "starting", wait_seconds_max=BROKER_SECONDS_MAX):
        existing = Cluster.open(folder)
        # One that failed to start for another process is started again here, or every test would wait for it.
        running = existing is not None and existing.pid is not None
        return existing if existing is not None and running else Cluster.start(folder, settings=BROKER_SETTINGS)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for the session, with the engine's own settings and Delta: starting one takes seconds.

    A task is tried twice, not four times as in production: the search for a record that breaks a batch fails often.
    """
    forked.start()
    session = open_spark(SparkSpec(master="local[*,2]", conf=DELTA_SETTINGS | SMALL_TABLES), "tests", (JarSet.DELTA,))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def bootstrap(cluster: Cluster) -> str:
    return cluster.bootstrap


@pytest.fixture(scope="session")
def topic(bootstrap: str) -> Topics:
    return Topics(bootstrap)


@pytest.fixture(scope="session")
def produce(bootstrap: str) -> Produce:
    return Produce(bootstrap)


@pytest.fixture
def pipe(tmp_path: Path, bootstrap: str, spark: SparkSession) -> Pipe:
    """A job of its own, with its tables in the test's folder."""
    return Pipe(tmp_path, bootstrap, spark)


@pytest.fixture
def export(tmp_path: Path, bootstrap: str, spark: SparkSession) -> ExportPipe:
    """An export of its own, with its root in the test's folder."""
    return ExportPipe(tmp_path, bootstrap, spark)
