"""The acts on files that an entry orders, done by whoever comes first and as often as need be (RULES L1, L4, L7)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.failpoints import Reach
from penstock.storage import NotFoundError, Storage
from penstock.tables.parquet.state import Rename, Unfinished

ACTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class FailedRename:
    """A rename that could not be done now: it is carried over, and its type is behind until it is (RULES L4)."""

    rename: Rename
    reason: str


@dataclass(frozen=True, slots=True)
class Leftover:
    """What of an entry's orders could not be done."""

    renames: tuple[FailedRename, ...] = ()
    removes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.renames or self.removes)


def finish(storage: Storage, orders: Unfinished, reach: Reach) -> Leftover:
    """Do what is still to be done, removes first: a reader may miss rows for a moment but never sees them twice."""
    kept = tuple(path for path in orders.removes if not _removed(storage, path, reach))
    if orders.removes:
        reach("removed")
    waiting = tuple(FailedRename(each, "old files are still there") for each in orders.renames if kept and each.waits)
    ready = [each for each in orders.renames if not (kept and each.waits)]
    if len(ready) < ACTS_AT_ONCE:
        outcomes = [_rename(storage, each, reach) for each in ready]
    else:
        with ThreadPoolExecutor(ACTS_AT_ONCE) as pool:
            outcomes = list(pool.map(lambda each: _rename(storage, each, reach), ready))
    return Leftover((*waiting, *(each for each in outcomes if each is not None)), kept)


def _removed(storage: Storage, path: str, reach: Reach) -> bool:
    reach("removing")
    try:
        storage.delete(path)
    except PenstockError:
        return False
    return True


def _rename(storage: Storage, rename: Rename, reach: Reach) -> FailedRename | None:
    reach("renaming")
    try:
        done = storage.rename_if_absent(rename.source, rename.target) or _same(storage, rename)
    except NotFoundError:
        return _gone(storage, rename)
    except PenstockError as error:
        return FailedRename(rename, error.primary)
    return None if done else FailedRename(rename, f"{rename.target} is taken by something else")


def _same(storage: Storage, rename: Rename) -> bool:
    """The name is taken: by somebody who has done it, perhaps we ourselves in an earlier life, or by a stranger."""
    return storage.exists(rename.target) and storage.size_bytes(rename.source) == storage.size_bytes(rename.target)


def _gone(storage: Storage, rename: Rename) -> FailedRename | None:
    """The staged name is free: done, if readers have the file under its own name."""
    try:
        return None if storage.exists(rename.target) else FailedRename(rename, f"{rename.source} is gone")
    except PenstockError as error:
        return FailedRename(rename, error.primary)
