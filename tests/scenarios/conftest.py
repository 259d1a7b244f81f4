"""Whole jobs on twins: the log is in memory and the tasks run in this process, so a round takes milliseconds.

The fixtures have the names of those on the real broker and the real Spark, and tests read the same on both.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from penstock.job.spec import KafkaLogSpec
from penstock.logs.registry import LOGS
from tests.scenarios.local_spark import local_session
from tests.scenarios.memory_kafka import MemoryProduce, MemoryTopics
from tests.support.memory_log import MemoryLog


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """The log of every job of the test."""
    memory = MemoryLog()
    monkeypatch.setitem(LOGS, KafkaLogSpec, memory.view)
    return memory


@pytest.fixture
def bootstrap() -> str:
    return "nowhere:9092"


@pytest.fixture
def spark() -> SparkSession:
    return local_session()


@pytest.fixture
def topic(log: MemoryLog) -> MemoryTopics:
    return MemoryTopics(log)


@pytest.fixture
def produce(log: MemoryLog) -> MemoryProduce:
    return MemoryProduce(log)
