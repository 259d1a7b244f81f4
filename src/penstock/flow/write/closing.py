"""Closing files beside the work: until a file is on its disk, or all of it has arrived in a store, others are written.

To wait for each file in turn costs more time than to write it, where a task has dozens of small ones.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from penstock.flow.write.parquet_file import ParquetFile

CLOSING_MAX = 8
"""Files at a time, each with what its store has not taken yet (I6)."""

Owner = TypeVar("Owner")


class Closer(Generic[Owner]):
    """Closes files in threads, each for an owner who has to hear of its error."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(CLOSING_MAX, thread_name_prefix="closing")
        self._closing: deque[tuple[Owner, Future[None]]] = deque()

    @property
    def is_full(self) -> bool:
        return len(self._closing) >= CLOSING_MAX

    def begin(self, owner: Owner, file: ParquetFile) -> None:
        """Close a file that has ended."""
        self._closing.append((owner, self._threads.submit(file.close)))

    def next(self) -> tuple[Owner, Future[None]] | None:
        """The file that has been closing longest; its result is awaited, or raises its error. None: there is none."""
        return self._closing.popleft() if self._closing else None

    def stop(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(cancel_futures=True)
        self._closing.clear()
