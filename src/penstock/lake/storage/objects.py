"""The port over obstore: local folders, S3, GCS, Azure, and the in-memory twin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING, cast

import obstore
import obstore.exceptions as store_errors
from obstore.store import LocalStore, MemoryStore

from penstock.errors import OutcomeUnknownError, TransientError
from penstock.lake.storage.failures import NotFoundError, failure_of, translate_errors
from penstock.lake.storage.files import (
    RangeReader,
    Writer,
    make_durable,
    make_name_durable,
    open_local_writer,
    open_remote_writer,
    size_on_disk,
)
from penstock.lake.storage.port import Entry, RootedStorage, by_folder

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_TAKEN = (store_errors.AlreadyExistsError, store_errors.PreconditionError)


class ObjectStorage(RootedStorage):
    """Objects of one obstore store, all below `prefix`."""

    def __init__(self, url: str, store: ObjectStore, prefix: str = "") -> None:
        super().__init__(url, f"{prefix.strip('/')}/" if prefix.strip("/") else "")
        self._store = store

    @property
    def _is_local(self) -> bool:
        return isinstance(self._store, LocalStore)

    @property
    def _keeps_source(self) -> bool:
        return not isinstance(self._store, (LocalStore, MemoryStore))

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        return self._listed(prefix.rstrip("/"), self._key(after) if after else None)

    def _listed(self, folder: str, offset: str | None) -> Iterator[Entry]:
        below = self._key(folder) if folder else self._root.rstrip("/")
        with translate_errors(self._shown(folder)):
            for chunk in obstore.list(self._store, below or None, offset=offset):
                for meta in chunk:
                    yield Entry(meta["path"].removeprefix(self._root), meta["size"], meta["last_modified"])

    def read(self, path: str) -> bytes:
        with translate_errors(self._shown(path)):
            return bytes(obstore.get(self._store, self._key(path)).bytes())

    def _read_range(self, path: str, start: int, length: int) -> bytes:
        with translate_errors(self._shown(path)):
            return bytes(obstore.get_range(self._store, self._key(path), start=start, length=length))

    def size_bytes(self, path: str) -> int:
        with translate_errors(self._shown(path)):
            return obstore.head(self._store, self._key(path))["size"]

    def sizes(self, paths: Iterable[str]) -> dict[str, int]:
        wanted = set(paths)
        if self._is_local:
            # On a disk asking for each is cheapest.
            asked = {path: size_on_disk("/" + self._key(path)) for path in wanted}
            return {path: size_bytes for path, size_bytes in asked.items() if size_bytes is not None}
        found: dict[str, int] = {}
        for folder, left in by_folder(wanted).items():
            # One listing, begun right before the first of the names and ended with the last that is missing.
            for entry in self._listed(folder, self._key(min(left))[:-1]):
                if entry.path in left:
                    left.discard(entry.path)
                    found[entry.path] = entry.size_bytes
                if not left:
                    break
        # Names that a listing spells in another way.
        for path in wanted - found.keys():
            with suppress(NotFoundError):
                found[path] = self.size_bytes(path)
        return found

    def put(self, path: str, data: bytes) -> None:
        with translate_errors(self._shown(path)):
            obstore.put(self._store, self._key(path), data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        # One request: a multipart upload would be checked only when it completes.
        create = partial(obstore.put, self._store, self._key(path), data, mode="create", use_multipart=False)
        if not self._landed(create, path):
            return False
        # What was created on a condition has happened for good: nobody who lost power may find the name free.
        if self._is_local:
            make_durable("/" + self._key(path))
        return True

    def rename_if_absent(self, source: str, target: str) -> bool:
        act = obstore.copy if self._keeps_source else obstore.rename
        if not self._landed(partial(act, self._store, self._key(source), self._key(target), overwrite=False), source):
            return False
        # The bytes are on the disk since their writer closed.
        if self._is_local:
            make_name_durable("/" + self._key(target))
        return True

    def delete(self, path: str) -> None:
        with suppress(NotFoundError), translate_errors(self._shown(path)):
            obstore.delete(self._store, self._key(path))

    def open_writer(self, path: str) -> Writer:
        if self._is_local:
            return open_local_writer("/" + self._key(path))
        return open_remote_writer(self._store, self._key(path))

    def open_reader(self, path: str) -> IO[bytes]:
        return cast(IO[bytes], RangeReader(self.size_bytes(path), partial(self._read_range, path)))

    def _landed(self, act: Callable[[], object], path: str) -> bool:
        """Do what depends on a free name; False if it is taken."""
        try:
            act()
        except _TAKEN:
            return False
        except (store_errors.BaseError, OSError, ValueError) as error:
            told = failure_of(error, self._shown(path))
            if isinstance(told, TransientError) and not self._is_local:
                hint = "read the name back before acting"
                raise OutcomeUnknownError(told.primary, detail=told.detail, hint=hint) from error
            raise told from error
        return True


class MemoryStorage(ObjectStorage):
    """The twin for tests: nothing outlives the process, and nothing is shared with another."""

    def __init__(self) -> None:
        super().__init__("memory://", MemoryStore())
