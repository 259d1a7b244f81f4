"""Inside a worker of Spark, work on modules that are loaded is done once; in any other process nothing changes."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

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


def test_a_worker_does_not_read_the_archive_of_pyspark_again_before_each_task(
    in_a_task: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "library.zip"
    with ZipFile(archive, "w") as content:
        content.writestr("module_in_archive.py", "")
        content.writestr("module_imported_later.py", "")
    monkeypatch.syspath_prepend(archive)
    importlib.import_module("module_in_archive")
    keep_modules()
    assert str(archive) not in sys.path_importer_cache
    importlib.import_module("module_imported_later")
