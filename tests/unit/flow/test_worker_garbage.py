"""Inside a worker of Spark the search for garbage passes over what is loaded; in any other process nothing changes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from penstock.flow.stage import keep_modules


@pytest.fixture
def in_a_task() -> Iterator[None]:
    TaskContext._getOrCreate()
    yield
    TaskContext._setTaskContext(None)  # type: ignore[arg-type]
    gc.unfreeze()


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    """Whatever ran in this process before has frozen nothing."""
    keep_modules.cache_clear()
    gc.unfreeze()
    yield
    keep_modules.cache_clear()


def test_outside_of_spark_workers_all_records_are_searched() -> None:
    keep_modules()
    assert gc.get_freeze_count() < 10_000


def test_a_worker_ignores_modules_loaded_before_its_first_task(in_a_task: None) -> None:
    keep_modules()
    kept = gc.get_freeze_count()
    assert kept > 10_000
    later = [[number] for number in range(1_000)]
    keep_modules()
    # What was frozen may still be freed by its last reference, here or in another thread: the count may fall.
    assert gc.get_freeze_count() < kept + len(later) // 2
