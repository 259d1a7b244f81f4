"""Simulates a full disk for a process by a file size limit."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from tests.support import worker_daemon


def spark_workers() -> list[int]:
    """The daemon that Spark forks its Python workers from, and the running workers."""
    family = psutil.Process().children(recursive=True)
    living = [item for item in family if item.status() != psutil.STATUS_ZOMBIE]
    pids = [process.pid for process in living if process.name() == worker_daemon.NAME]
    assert pids, "no Python worker runs yet"
    return pids


@contextmanager
def file_size_limit(pids: list[int], size_bytes: int, later: bool = False) -> Iterator[Callable[[], None]]:
    """No file of these processes grows beyond a size, as on a full disk."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}

    def fill() -> None:
        for pid, (_, hard) in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, hard))

    if not later:
        fill()
    try:
        yield fill
    finally:
        # A failed task ends its worker, and those that were forked meanwhile inherit the limit.
        limits = before[pids[0]]
        for child in (psutil.Process(), *psutil.Process().children(recursive=True)):
            with suppress(ProcessLookupError):
                resource.prlimit(child.pid, resource.RLIMIT_FSIZE, limits)
