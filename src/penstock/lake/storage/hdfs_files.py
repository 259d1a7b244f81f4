"""Files of HDFS as the binary files that pyarrow reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hdfs_native import FileReader, FileWriter

from penstock.lake.storage.files import ObjectWriter, Sink
from penstock.lake.storage.hdfs_failures import LIBRARY_ERRORS, hdfs_failure, hdfs_told_as_ours


class HdfsRanges:
    """A file whose blocks are known: ranges of it are read without asking the NameNode again."""

    def __init__(self, reader: FileReader, shown: str) -> None:
        self._reader = reader
        self._shown = shown

    def size_bytes(self, path: str) -> int:
        return len(self._reader)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        # The library panics beyond the end.
        available = min(length, len(self._reader) - start)
        if available <= 0:
            return b""
        with hdfs_told_as_ours(self._shown):
            return self._reader.read_range(start, available)


class HdfsWriter(ObjectWriter):
    """A file being written; a file that is given up is taken away."""

    def __init__(self, sink: FileWriter, shown: str, remove: Callable[[], None]) -> None:
        super().__init__(sink, shown, hdfs_told_as_ours)
        self._remove = remove
        self._failure: Exception | None = None

    def _pass_on(self, sink: Sink, data: Any) -> None:
        try:
            sink.write(data)
        except LIBRARY_ERRORS as error:
            self._failure = error
            raise

    def close(self) -> None:
        if self._closed:
            return
        if self._sink is not None and self._failure is not None:
            self._closed = True
            # The library would close what it could write of the file, without a word.
            raise hdfs_failure(self._failure, self._path)
        super().close()
        self._sink = None

    def abandon(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            # Before the library lets go of the writer, which would complete the half file.
            self._remove()
