"""Rows into staged Parquet files, within named limits (I6).

Rows wait in memory, a pile for each file to be; a file is opened only when a pile is written: because it makes a row
group, because all piles together pass their bound and it is the largest, or because the task ends. So hundreds of piles
cost no more than their rows.

Files are closed in threads: until one is on its disk, or all of it has arrived in a store, others are written. Where a
task has dozens of small files, waiting for each in turn takes longer than writing it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from penstock.flow.write.parquet_file import ROW_GROUP_ROWS_MAX, ParquetFile
from penstock.flow.write.stats import FileStats

MEBIBYTE = 1024**2
CLOSING_MAX = 8
"""Files at a time, each with what its store has not taken yet (I6)."""

K = TypeVar("K", bound=Hashable)
"""What the rows of one file have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """The bounds of what is open and what waits."""

    open_writers_max: int = 16
    row_group_bytes_max: int = 64 * MEBIBYTE
    """In memory. A row group passes it by one batch of rows at most."""
    row_group_rows_max: int = ROW_GROUP_ROWS_MAX
    pending_bytes_max: int = 128 * MEBIBYTE
    """Rows that wait for their row groups, over all files; kept memory is at most twice that."""
    file_bytes_max: int = 1024 * MEBIBYTE
    """A file passes it by one row group at most."""


@dataclass(slots=True)
class _Pile:
    """Rows that wait for a row group, and the file that they go to once it is opened."""

    schema: pa.Schema
    stats: FileStats | None
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    waiting_rows: int = 0
    file: ParquetFile | None = None


class FilePool(ABC, Generic[K]):
    """Turns rows into files; callers decide where these lie and what is reported."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._piles: dict[K, _Pile] = {}
        self._open: OrderedDict[K, _Pile] = OrderedDict()
        """Those with a file, the least recently written first."""
        self._waiting_bytes = 0
        self._threads = ThreadPoolExecutor(CLOSING_MAX, thread_name_prefix="closing")
        self._closing: deque[tuple[K, Future[None]]] = deque()

    @abstractmethod
    def _open_file(self, key: K, schema: pa.Schema) -> ParquetFile: ...

    @abstractmethod
    def _staged(self, key: K, file: ParquetFile, stats: str) -> None:
        """Take note of a file whose last bytes are written."""

    def _has_stats(self, key: K) -> bool:
        """Whether Delta statistics are made of these rows."""
        return True

    def _before_end(self, key: K, file: ParquetFile) -> None:
        """Add to the footer of a file that ends."""

    def _isolated(self, key: K) -> AbstractContextManager[None]:
        """The context of every step that can fail for these rows alone."""
        return nullcontext()

    def abandon(self) -> None:
        """Close every open file after an error; vacuum deletes what was written (RULES C2)."""
        self._threads.shutdown(cancel_futures=True)
        self._closing.clear()
        self._drop(lambda key: True)

    def _add(self, key: K, rows: pa.RecordBatch) -> None:
        pile = self._piles.get(key)
        if pile is None:
            pile = self._piles[key] = _Pile(rows.schema, FileStats(rows.schema) if self._has_stats(key) else None)
        size_bytes = rows.nbytes
        pile.waiting.append(rows)
        pile.waiting_bytes += size_bytes
        pile.waiting_rows += rows.num_rows
        self._waiting_bytes += size_bytes
        limits = self._limits
        if pile.waiting_bytes >= limits.row_group_bytes_max or pile.waiting_rows >= limits.row_group_rows_max:
            self._write(key)
        while self._waiting_bytes > limits.pending_bytes_max:
            self._write(max(self._piles, key=lambda item: self._piles[item].waiting_bytes))

    def _complete(self) -> None:
        """Stage every pile, and wait until all files are closed."""
        for key in [*self._open, *(key for key in self._piles if key not in self._open)]:
            self._stage(key)
        while self._closing:
            self._await_closed()
        self._threads.shutdown()

    def _drop(self, chosen: Callable[[K], bool]) -> None:
        """Drop piles and close their files."""
        for key in [key for key in self._piles if chosen(key)]:
            pile = self._piles.pop(key)
            self._open.pop(key, None)
            self._waiting_bytes -= pile.waiting_bytes
            if pile.file is not None:
                pile.file.abandon()

    def _write(self, key: K) -> None:
        """Write what waits, into the pile's open file or a new one."""
        pile = self._piles[key]
        if pile.file is None and len(self._open) >= self._limits.open_writers_max:
            self._stage(next(iter(self._open)))
        if key not in self._piles:
            # It was dropped because of the file that had to be closed.
            return
        with self._isolated(key):
            file = self._write_waiting(key, pile)
            self._open.move_to_end(key)
            if file.size_bytes >= self._limits.file_bytes_max:
                self._stage(key)

    def _write_waiting(self, key: K, pile: _Pile) -> ParquetFile:
        if pile.file is None:
            pile.file = self._open_file(key, pile.schema)
            self._open[key] = pile
        if pile.waiting:
            rows = pa.Table.from_batches(pile.waiting, pile.schema)
            if pile.stats is not None:
                pile.stats.note(rows)
            pile.file.write(rows, self._limits.row_group_rows_max)
            pile.waiting.clear()
            self._waiting_bytes -= pile.waiting_bytes
            pile.waiting_bytes = pile.waiting_rows = 0
        return pile.file

    def _stage(self, key: K) -> None:
        """Complete the pile's file; further rows go to another."""
        if len(self._closing) >= CLOSING_MAX:
            self._await_closed()
        pile = self._piles.get(key)
        if pile is None:
            # It was dropped because of the file that was awaited.
            return
        with self._isolated(key):
            file = self._write_waiting(key, pile)
            self._before_end(key, file)
            footer = file.end()
            stats = pile.stats.as_json(footer) if pile.stats is not None else ""
            # Only now: a file that failed to end is still there to be abandoned.
            del self._piles[key], self._open[key]
            self._closing.append((key, self._threads.submit(file.close)))
            self._staged(key, file, stats)

    def _await_closed(self) -> None:
        """Wait for the file that has been closing longest; raises its error."""
        key, closed = self._closing.popleft()
        with self._isolated(key):
            closed.result()
