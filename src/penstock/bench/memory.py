"""The peak of the memory that a process tree holds, looked at many times a second."""

from __future__ import annotations

import threading

import psutil

_LOOK_SECONDS = 0.1


class PeakMemory:
    """Resident bytes of this process and all below it: Python, the JVM and its workers."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, tree_bytes())
            if self._over.wait(_LOOK_SECONDS):
                return


def tree_bytes() -> int:
    """Resident bytes of this process and all below it, now."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
