"""The interface of storages: a folder on a disk, in HDFS or in an object store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Protocol

from penstock.errors import UserError
from penstock.storage.failures import NotFoundError
from penstock.storage.files import StorageWriter


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing."""

    path: str
    size_bytes: int
    modified_at: datetime


def by_folder(paths: Iterable[str]) -> dict[str, set[str]]:
    """The paths sorted by the folder that they lie in; "" is the root."""
    result: dict[str, set[str]] = {}
    for path in paths:
        result.setdefault(path.rpartition("/")[0], set()).add(path)
    return result


class Storage(Protocol):
    """Objects under one root; every path is relative to it, with `/` between the parts.

    Raises `NotFoundError`, `UserError` (permission, bad path) or `TransientError` (disk full, connection), and
    `OutcomeUnknownError` where a conditional act may have happened although its answer was lost.
    """

    url: str
    _root: str
    """The prefix of every path in the store."""

    def __init__(self, url: str, root: str) -> None:
        self.url, self._root = url, root

    @property
    def keeps_source(self) -> bool:
        """Whether a rename is a copy, which may still be under way when its source is deleted."""
        return False

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """Every object below the folder `prefix`, in no order; a missing folder is empty.

        With `after`, a path, only those whose paths sort after it.
        """

    def read(self, path: str) -> bytes: ...

    def size_bytes(self, path: str) -> int: ...

    def exists(self, path: str) -> bool:
        try:
            self.size_bytes(path)
        except NotFoundError:
            return False
        return True

    def sizes(self, paths: Iterable[str]) -> dict[str, int]:
        """The sizes of those of these objects that are there; a remote store is asked once per folder, not for each."""

    def put(self, path: str, data: bytes) -> None:
        """Create or replace, all or nothing."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create, all or nothing; `False` if the name is taken, perhaps by an own attempt whose answer was lost."""

    def rename_if_absent(self, source: str, target: str) -> bool:
        """Give `source` the free name `target`, all or nothing; `False` if the name is taken.

        Atomic on every store. Where a store has no rename (S3, GCS, Azure) this is a server-side copy and the source
        stays: the caller deletes it when it is no longer needed. A local crash may leave both names.
        """

    def delete(self, path: str) -> None:
        """Remove the object if it exists."""

    def open_writer(self, path: str) -> StorageWriter:
        """Stream into an object. A local file can be listed half written: use names that no reader looks for yet."""

    def open_reader(self, path: str) -> IO[bytes]:
        """A seekable file for pyarrow."""

    def _key(self, path: str) -> str:
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise UserError(f"not a path below {self.url}: {path!r}")
        return self._root + path

    def _shown(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/{path}"
