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

    @property
    def orders(self) -> Unfinished:
        return Unfinished(tuple(each.rename for each in self.renames), self.removes)


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
        if storage.rename_if_absent(rename.source, rename.target):
            return None
        reason = f"{rename.target} is taken by another file"
    except PenstockError as error:
        reason = error.primary
    return None if _is_done(storage, rename) else FailedRename(rename, reason)


def _is_done(storage: Storage, rename: Rename) -> bool:
    """Whether somebody has done it, perhaps we ourselves in an earlier life, and not a stranger taken the name."""
    try:
        placed_bytes = storage.size_bytes(rename.target)
    except PenstockError:
        return False
    try:
        # Both names are there where a rename is a copy, and after a crash in the middle of a local one.
        return storage.size_bytes(rename.source) == placed_bytes
    except NotFoundError:
        return True
    except PenstockError:
        return False
