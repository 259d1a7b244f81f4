"""What a Python worker of Spark spends on loaded modules for every task, spent once per process instead."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from zipimport import zipimporter

import pyarrow as pa

from penstock.storage.failures import in_task

OWN_WORKER = "PENSTOCK_WORKER"
"""The variable of workers that belong to a Spark session of Penstock's own."""


@contextmanager
def spared_worker() -> Iterator[None]:
    """Around the work of a task: what Spark's worker and Arrow would spend on modules is spent once per process."""
    if OWN_WORKER in os.environ:
        _leave_pandas_out()
    yield
    if in_task():
        _keep_modules()


@cache
def _leave_pandas_out() -> None:
    """With its first array Arrow imports Pandas, if it is installed: 0.65 s of CPU.

    Once that has failed, Arrow takes a Pandas series for a plain sequence until something is converted to Pandas. So
    only workers that run no code of others leave it out.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas)
        pa.array([None])
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)


@cache
def _keep_modules() -> None:
    """After a task Spark collects garbage: 80 ms of CPU that loaded modules cost.

    Before a task it invalidates import caches, and Python reads `pyspark.zip` again for each of its packages: 77 ms.
    """
    gc.freeze()
    for path, finder in tuple(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
