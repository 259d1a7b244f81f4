"""Objects as the binary files that pyarrow reads and writes."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import obstore

from penstock.errors import PenstockError
from penstock.storage.failures import translate_errors

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES = 8 * 1024 * 1024
PARTS_IN_FLIGHT_MAX = 2


class ByteSink(Protocol):
    def write(self, data: Any, /) -> int: ...

    def close(self) -> None: ...


class StorageWriter:
    """A binary file being written, with the methods that pyarrow needs: it can be abandoned half way."""

    def __init__(self, sink: ByteSink, path: str, translate: Callable[[str], AbstractContextManager[None]]) -> None:
        """`translate` turns errors of the sink into Penstock errors."""
        self._sink: ByteSink | None = sink
        self._path = path
        self._translate = translate
        self._written_bytes = 0
        self._closed = False
        self._failure: PenstockError | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        if self._sink is not None:
            try:
                with self._translate(self._path):
                    self._pass_on(self._sink, data)
            except PenstockError as error:
                self._failure = error
                raise
        self._written_bytes += size
        return size

    def _pass_on(self, sink: ByteSink, data: Any) -> None:
        sink.write(data)

    def flush(self) -> None:
        """Does nothing: an object store shows no partial object, and a local file is flushed when it closes."""

    def tell(self) -> int:
        return self._written_bytes

    def close(self) -> None:
        """Complete the object; only now is it certain to be whole. Raises if any write failed."""
        if self._closed:
            return
        self._closed = True
        if self._sink is None:
            return
        if self._failure is not None:
            # The library would complete what it could write, without an error.
            raise self._failure
        with self._translate(self._path):
            self._sink.close()
        self._sink = None

    def abandon(self) -> None:
        """Close without completing; later writes are dropped. Never raises."""
        sink, self._sink = self._sink, None
        if isinstance(sink, io.IOBase):
            try:
                sink.close()
            except OSError:
                # Closing flushes; on a full disk that fails again, and the error that led here is the one to report.
                pass


class LocalWriter(StorageWriter):
    """A file on a disk: once complete it survives a power loss, because a commit is going to name it."""

    def _pass_on(self, sink: ByteSink, data: Any) -> None:
        """Write all of it: an almost full disk accepts a part without an error, which comes with the next write."""
        unwritten = memoryview(data).cast("B")
        while len(unwritten):
            unwritten = unwritten[sink.write(unwritten) :]

    def close(self) -> None:
        if not self._closed and self._sink is not None:
            super().close()
            make_durable(self._path)
        self._closed = True


def make_durable(path: str) -> None:
    """Make a file and its name durable (fsync)."""
    with translate_errors(path):
        _fsync(path)
        _fsync(os.path.dirname(path))


def size_on_disk(path: str) -> int | None:
    """The size of a file; None if there is none of that name."""
    with translate_errors(path):
        try:
            result = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return result.st_size if stat.S_ISREG(result.st_mode) else None


def make_name_durable(path: str) -> None:
    """Make the name of a file durable whose bytes are already."""
    with translate_errors(path):
        _fsync(os.path.dirname(path))


def _fsync(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def open_local_writer(path: str) -> LocalWriter:
    """Write in place: what a crash leaves has the staged name, so that vacuum can see it."""
    with translate_errors(path):
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
        return LocalWriter(open(path, "wb", buffering=0), path, translate_errors)


def open_remote_writer(store: ObjectStore, path: str) -> StorageWriter:
    """Upload in parts; the object appears when the writer closes, and not at all if it is abandoned."""
    with translate_errors(path):
        sink = obstore.open_writer(store, path, buffer_size=PART_BYTES, max_concurrency=PARTS_IN_FLIGHT_MAX)
    return StorageWriter(sink, path, translate_errors)


class RangeReader(io.RawIOBase):
    """A seekable file over ranged reads; pyarrow asks for whole column chunks, so it keeps no buffer."""

    def __init__(self, size_bytes: int, read_range: Callable[[int, int], bytes]) -> None:
        """`read_range` reads so many bytes from an offset on, at least one and none beyond the end."""
        super().__init__()
        self._size_bytes = size_bytes
        self._read_range = read_range
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        remaining = max(0, self._size_bytes - self._at)
        length = remaining if size is None or size < 0 else min(size, remaining)
        data = self._read_range(self._at, length) if length else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(memoryview(buffer).nbytes)
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)
