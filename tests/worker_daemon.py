"""Spark's Python daemon with what tasks import already in it, so that it forks workers which start at once.

A task that fails takes its worker with it, and the search for a record that breaks a batch fails often; each new worker
of Spark's own daemon would import Penstock again, for a second of CPU.
"""

from __future__ import annotations

import gc
import importlib

from pyspark.daemon import manager

MODULE = "tests.worker_daemon"
OPTION = f"-Dspark.python.daemon.module={MODULE}"
"""For the JVM of Spark."""

if __name__ == "__main__":
    importlib.import_module("penstock.tables.registry")
    # What is here stays: a worker need not look through it whenever it collects garbage.
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
