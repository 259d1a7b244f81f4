"""Spark's Python daemon, forked from a process that has imported what tasks import, so that its workers start at once.

Spark starts a daemon for each of its contexts, and a task that fails takes its worker with it; each would import
Penstock again, for two seconds of CPU. What Spark starts is this small process: it has the daemon forked with its own
pipes (`tests/support/forked.py`), and ends with it. It imports no more than that needs.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys

MODULE = "tests.support.worker_daemon"
OPTION = f"-Dspark.python.daemon.module={MODULE}"
"""For the JVM of Spark."""
NAME = "spark-worker"
"""Of the process of a daemon, and of each of its workers."""
ADDRESS_NAME = "PENSTOCK_TESTS_FORK"
"""The variable with the address of the process that forks, in the abstract namespace; empty to fork nothing."""


def forked(address: str) -> int:
    """Have the daemon forked, and wait for its exit code."""
    request = {
        "module": "pyspark.daemon",
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "name": NAME,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(f"\0{address}")
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        return int(server.recv(64) or 1)


def main() -> None:
    address = os.environ.get(ADDRESS_NAME)
    if address:
        sys.exit(forked(address))
    importlib.import_module("penstock.tables.registry")
    # What is here stays: a worker need not look through it whenever it collects garbage.
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
