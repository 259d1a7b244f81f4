"""Fixtures of the whole suite: one real broker for the session, topics and records in it."""

from __future__ import annotations

import math
import os
import signal
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
from penstock.spark.jars import JarSet
from penstock.spark.session import LIGHT, open_spark
from tests import class_archive, forked, worker_daemon
from tests.exports import ExportPipe
from tests.kafka import Produce, Topics
from tests.pipes import Pipe
from tests.tries import tries

BROKER_SETTINGS = {"log.cleaner.backoff.ms": "200", "quota.window.num": "2"}
"""Compaction runs as soon as there is something to compact, and quotas hold back for a second, not for ten."""

SMALL_TABLES = {"spark.sql.shuffle.partitions": "1", "spark.databricks.delta.snapshotPartitions": "1"}
"""Spark would divide even the log of a table of ten rows into fifty tasks."""

TESTS = Path(__file__).parent
BUSY = {TESTS / "fault", TESTS / "integration"}
WAITING = TESTS / "integration" / "claims"
UNIT = TESTS / "unit"

# Brokers and Sparks of tests live for seconds: a thorough compiler and many collectors would cost more than they gain.
_SMALL = LIGHT["spark.driver.extraJavaOptions"]
os.environ.setdefault("JDK_JAVA_OPTIONS", f"{_SMALL} {class_archive.options(class_archive.BROKER)}")
# Spark's JVM reads both, and takes the archive of the second.
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{class_archive.options(class_archive.SPARK)} {worker_daemon.OPTION}")
# Every process that runs tests has one of its own that forks.
os.environ[worker_daemon.ADDRESS_NAME] = f"penstock-tests-{os.getpid()}"
# Processes of tests find the tests, wherever they run.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS.parent), os.environ.get("PYTHONPATH")]))
# How long an example takes says more of the machine than of the code.
settings.register_profile("penstock", deadline=None, max_examples=tries(50))
settings.load_profile("penstock")


def pytest_configure() -> None:
    """A run that is told to end tears its fixtures down: brokers live in sessions of their own."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    pytest.exit("terminated", returncode=128 + number)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that mostly wait for heartbeats stand among those that keep every core busy, and run beside them.

    Of the unit tests the largest files come first, so that the processes end at about the same time.
    """
    sizes = Counter(item.path for item in items)
    busy = [path for path in sizes if BUSY.intersection(path.parents) and WAITING not in path.parents]
    waiting = [path for path in sizes if WAITING in path.parents]
    places = {path: float(number) for number, path in enumerate(busy)}
    places |= {path: number * len(busy) / len(waiting) - 0.5 for number, path in enumerate(waiting)}
    others = [path for path in sizes if path not in places]
    # In the order of `testpaths`, which ends with the unit tests.
    others.sort(key=lambda path: -sizes[path] if UNIT in path.parents else -math.inf)
    places |= {path: float(len(busy) + number) for number, path in enumerate(others)}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker that all tests of the session share; tests that hurt a broker start their own."""
    with Cluster.start(tmp_path_factory.mktemp("kafka"), settings=BROKER_SETTINGS) as running:
        yield running


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
