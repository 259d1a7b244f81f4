"""Inside a worker of Spark, work on modules that are loaded is done once; in any other process nothing changes."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import gc, os, sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile
from pyspark import TaskContext
from penstock.flow.worker import OWN_WORKER, spared_worker
import pyarrow

folder = TemporaryDirectory()
archive = Path(folder.name, "library.zip")
with ZipFile(archive, "w") as content:
    content.writestr("in_archive.py", "")
    content.writestr("in_archive_too.py", "")
sys.path.insert(0, str(archive))
import in_archive

{before}
with spared_worker():
    pyarrow.array([1])
{after}
"""


def test_outside_of_spark_workers_nothing_changes() -> None:
    _run("", "assert gc.get_freeze_count() < 10_000 and str(archive) in sys.path_importer_cache")


def test_a_worker_keeps_its_modules_out_of_garbage_collection_once() -> None:
    again = "with spared_worker(): later = [[number] for number in range(100_000)]"
    # What was kept may still be freed by its last reference: the count may fall.
    _run_in_task(f"kept = gc.get_freeze_count(); assert kept > 10_000\n{again}\nassert gc.get_freeze_count() <= kept")


def test_a_worker_does_not_read_the_archive_of_pyspark_again_before_each_task() -> None:
    _run_in_task("assert str(archive) not in sys.path_importer_cache; import in_archive_too")


def test_arrow_in_a_worker_of_penstock_imports_pandas_only_when_it_converts_to_it() -> None:
    after = "assert 'pandas' not in sys.modules; assert pyarrow.array([1]).to_pandas().tolist() == [1]"
    _run("os.environ[OWN_WORKER] = '1'", after)


def test_in_a_worker_that_runs_other_code_too_a_missing_value_of_pandas_stays_a_null() -> None:
    _run_in_task("import pandas; assert pyarrow.array(pandas.Series([1.0, None])).null_count == 1")


def _run_in_task(after: str) -> None:
    _run("TaskContext._getOrCreate()", after)


def _run(before: str, after: str) -> None:
    """In a process of its own: these are decisions for a whole process."""
    subprocess.run([sys.executable, "-c", _SCRIPT.format(before=before, after=after)], check=True, timeout=60)
