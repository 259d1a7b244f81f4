"""The acts on files that an entry orders, done by whoever comes first and as often as need be (RULES L1, L4, L7)."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.failpoints import Reach
from penstock.storage import Entry, NotFoundError, Storage
from penstock.tables.parquet.names import type_and_day
from penstock.tables.parquet.state import Day, Rename, Unfinished

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
    marks: tuple[tuple[str, Day], ...] = ()
    """Days whose markers could not be changed, or wait for their files."""

    def __bool__(self) -> bool:
        return bool(self.renames or self.removes or self.marks)

    @property
    def orders(self) -> Unfinished:
        return Unfinished(tuple(each.rename for each in self.renames), self.removes, self.marks)

    def holds_back(self, day: tuple[str, Day]) -> bool:
        """Whether a day is not as readers shall see it: a file of its type is not in place, or an old one of it is."""
        return any(each.rename.type == day[0] for each in self.renames) or any(
            type_and_day(path) == day for path in self.removes
        )


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


def unseen_files(storage: Storage, orders: Unfinished) -> Counter[tuple[str, Day]]:
    """Per type and day the files that are not in their place yet, or still there although replaced; nothing is done."""
    places = [*(each.target for each in orders.renames), *orders.removes]
    folders = {path.rpartition("/")[0] for path in places}
    folders |= {each.source.rpartition("/")[0] for each in orders.renames}
    there = {entry.path: entry.size_bytes for folder in folders for entry in _listed(storage, folder)}
    found: Counter[tuple[str, Day]] = Counter()
    for rename in orders.renames:
        placed_bytes = there.get(rename.target)
        if placed_bytes is None or there.get(rename.source, placed_bytes) != placed_bytes:
            found.update(_days(rename.target))
    for path in orders.removes:
        if path in there:
            found.update(_days(path))
    return found


def _listed(storage: Storage, folder: str) -> list[Entry]:
    """What readers find in a folder: nothing, if it cannot be listed."""
    try:
        return list(storage.list(folder))
    except PenstockError:
        return []


def _days(path: str) -> list[tuple[str, Day]]:
    place = type_and_day(path)
    return [] if place is None else [place]


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
    except NotFoundError:
        reason = f"its staged file {rename.source} is gone; `penstock vacuum --drop-lost` gives up a file that is lost"
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
