"""A storage that reports each act before it happens, so that a test can count it, refuse it or step in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import IO

from penstock.errors import OutcomeUnknownError
from penstock.storage import Entry, Storage, StorageWriter

Watch = Callable[[str, str], None]
"""Called with the act and the path that it creates, reads or removes; what it raises, the act raises."""


class WatchedStorage(Storage):
    """Everything goes to the storage behind; `log` holds the acts so far."""

    def __init__(self, behind: Storage, watch: Watch | None = None) -> None:
        super().__init__(behind.url, "")
        self._behind = behind
        self.watch = watch
        self.log: list[tuple[str, str]] = []
        self.answers_lost: set[str] = set()
        """Paths whose next conditional put happens although its answer is lost."""

    def acts(self, name: str) -> list[str]:
        return [path for act, path in self.log if act == name]

    def _note(self, act: str, path: str) -> None:
        self.log.append((act, path))
        if self.watch is not None:
            self.watch(act, path)

    @property
    def keeps_source(self) -> bool:
        return self._behind.keeps_source

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        self._note("list", prefix)
        return self._behind.list(prefix, after)

    def read(self, path: str) -> bytes:
        self._note("read", path)
        return self._behind.read(path)

    def size_bytes(self, path: str) -> int:
        self._note("size_bytes", path)
        return self._behind.size_bytes(path)

    def exists(self, path: str) -> bool:
        self._note("exists", path)
        return self._behind.exists(path)

    def sizes(self, paths: Iterable[str]) -> dict[str, int]:
        return self._behind.sizes(paths)

    def put(self, path: str, data: bytes) -> None:
        self._note("put", path)
        self._behind.put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._note("put_if_absent", path)
        landed = self._behind.put_if_absent(path, data)
        if path in self.answers_lost:
            self.answers_lost.remove(path)
            raise OutcomeUnknownError(f"no answer for {path}")
        return landed

    def rename_if_absent(self, source: str, target: str) -> bool:
        self._note("rename", target)
        return self._behind.rename_if_absent(source, target)

    def delete(self, path: str) -> None:
        self._note("delete", path)
        self._behind.delete(path)

    def open_writer(self, path: str) -> StorageWriter:
        self._note("open_writer", path)
        return self._behind.open_writer(path)

    def open_reader(self, path: str) -> IO[bytes]:
        self._note("open_reader", path)
        return self._behind.open_reader(path)
