"""Carries out what the newest entry of a ledger orders, whoever wrote it, as often as need be (RULES L1, L4, L7)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from penstock.environment import Environment
from penstock.errors import PenstockError
from penstock.failpoints import Reach
from penstock.lake.storage import NotFoundError, Storage
from penstock.tables.export.ledger.chain import Ledger
from penstock.tables.export.ledger.days import MILLIS_PER_SECOND, watermark_of
from penstock.tables.export.ledger.names import Places, type_and_day
from penstock.tables.export.ledger.state import LedgerState, Rename, TypeDay, Unfinished

ACTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class FailedRename:
    """A rename that could not be done now: it is carried over, and its type lags until it is done (RULES L4)."""

    rename: Rename
    reason: str
    lost: bool = False
    """Whether the staged file is gone."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """What of an entry's orders could not be done."""

    renames: tuple[FailedRename, ...] = ()
    removes: tuple[str, ...] = ()
    marks: tuple[TypeDay, ...] = ()
    """Days whose markers could not be changed, or wait for their files."""

    def __bool__(self) -> bool:
        return bool(self.renames or self.removes or self.marks)

    def holds_back(self, day: TypeDay) -> bool:
        """Whether a day is not as readers shall see it: a file of its type is not in place, or an old one of it is."""
        return any(each.rename.type == day[0] for each in self.renames) or any(
            type_and_day(path) == day for path in self.removes
        )


class Placing(Protocol):
    """How staged files get to where readers see them."""

    def place(self, renames: Sequence[Rename], reach: Reach) -> list[FailedRename]:
        """Do what is not done yet; what cannot be done now comes back."""

    def unplaced(self, renames: Sequence[Rename]) -> list[Rename]:
        """Those that readers do not see yet; nothing is done."""


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """Files that readers find by their names alone."""

    storage: Storage

    def place(self, renames: Sequence[Rename], reach: Reach) -> list[FailedRename]:
        if len(renames) < ACTS_AT_ONCE:
            outcomes = [_rename(self.storage, each, reach) for each in renames]
        else:
            with ThreadPoolExecutor(ACTS_AT_ONCE) as pool:
                outcomes = list(pool.map(lambda each: _rename(self.storage, each, reach), renames))
        return [each for each in outcomes if each is not None]

    def unplaced(self, renames: Sequence[Rename]) -> list[Rename]:
        there = _sizes(self.storage, [path for each in renames for path in (each.source, each.target)])
        return [
            each
            for each in renames
            if (placed_bytes := there.get(each.target)) is None or there.get(each.source, placed_bytes) != placed_bytes
        ]


@dataclass(slots=True)
class DayMarkers:
    """Day-complete markers: small files that tell other programs what the ledger knows of a day, as of one state of it.

    Bringing them in line is one of the operations of an entry, whose number each marker carries (docs/protocol.md,
    "Days and watermarks").
    """

    storage: Storage
    places: Places
    state: LedgerState
    taken: set[TypeDay] = field(default_factory=set)
    """Days that were marked before."""
    put: set[TypeDay] = field(default_factory=set)
    failed: dict[TypeDay, str] = field(default_factory=dict)
    """Days whose markers could not be changed, with the reason."""

    @property
    def completed(self) -> list[TypeDay]:
        return sorted(self.put - self.taken)

    @property
    def opened(self) -> list[TypeDay]:
        return sorted(self.taken - self.put)

    def take_away(self, days: Iterable[TypeDay]) -> None:
        """Remove the markers that earlier entries put; one of this entry or a later one stays."""
        self.taken.update(self._removed(days, range(self.state.number)))

    def put_back(self, days: Iterable[TypeDay]) -> None:
        """Mark those days that are complete and not marked yet."""
        for name, day in days:
            if (name, day) in self.state.open_days:
                continue
            mark_ms = watermark_of(self.state, name)
            mark = None if mark_ms is None else datetime.fromtimestamp(mark_ms / MILLIS_PER_SECOND, UTC).isoformat()
            body = {"type": name, "day": day, "entry": self.state.number, "watermark": mark}
            try:
                path, data = self.places.marker(name, day), json.dumps(body).encode()
                if not self.storage.put_if_absent(path, data):
                    # A process that slept may have put one of an earlier entry just now.
                    if (self._number((name, day)) or 0) >= self.state.number:
                        continue
                    self.storage.put(path, data)
                self.put.add((name, day))
            except PenstockError as error:
                self.failed[name, day] = error.primary

    def withdraw(self, newer: LedgerState) -> None:
        """Take back what was put too late: another process has gone on to entries that change these days."""
        changed = newer.open_days | frozenset(newer.unfinished.marks)
        self.put.difference_update(self._removed(sorted(self.put & changed), (self.state.number,)))

    def remove_stale(self, there: Iterable[TypeDay]) -> None:
        """Remove the markers of days that are open, whoever left them; the state was read after they were listed."""
        open_days = sorted(self.state.open_days.intersection(there))
        self.taken.update(self._removed(open_days, range(self.state.number + 1)))

    def _removed(self, days: Iterable[TypeDay], numbers: Container[int]) -> Iterator[TypeDay]:
        """Remove the markers that entries with these numbers put; the days that had one."""
        for each in days:
            try:
                if self._number(each) in numbers:
                    self.storage.delete(self.places.marker(*each))
                    yield each
            except PenstockError as error:
                self.failed[each] = error.primary

    def marked(self) -> frozenset[TypeDay]:
        """The days of types that have a marker."""
        parts = (each.path.removesuffix(".json").split("/") for each in self.storage.list(self.places.markers))
        return frozenset((each[-2], each[-1]) for each in parts)

    def _number(self, day: TypeDay) -> int | None:
        """The entry that put the marker; None if there is no marker, 0 for one that cannot be read."""
        try:
            return int(json.loads(self.storage.read(self.places.marker(*day)))["entry"])
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return 0


@dataclass(slots=True)
class Finishing:
    """One process's part in finishing entries."""

    storage: Storage
    places: Places
    ledger: Ledger
    environment: Environment
    placing: Placing
    failures: Counter[str] = field(default_factory=Counter)
    """Writes to the final place that failed since the last entry of ours, by type."""
    marked: list[DayMarkers] = field(default_factory=list)
    """What became of day markers since this list was last emptied."""
    leftover: Leftover = field(default_factory=Leftover)
    own_number: int = 0
    """The newest entry that this process wrote."""
    _finished_number: int = 0

    def complete(self) -> LedgerState:
        """Finish the newest entry: nobody adds the next one before (RULES L1)."""
        state = self.ledger.refresh()
        while self._finished_number != state.number or self.leftover:
            markers = DayMarkers(self.storage, self.places, state)
            self._finish(state, markers)
            newer = self.ledger.refresh()
            if newer.number != state.number:
                markers.withdraw(newer)
            if markers.taken or markers.put or markers.failed:
                self.marked.append(markers)
            if newer.number == state.number:
                break
            state = newer
        return state

    def _finish(self, state: LedgerState, markers: DayMarkers) -> None:
        orders, left = state.unfinished, self.leftover
        if again := self._finished_number == state.number:
            orders = Unfinished(tuple(each.rename for each in left.renames), left.removes, left.marks)
        # Of an entry of our own we know better than any hint whether it is carried out.
        known = not again and self.own_number != state.number and self.ledger.is_complete(state.number)
        if (orders.renames or orders.removes or orders.marks) and not known:
            self.leftover = self._carry_out(orders, markers)
            self.failures.update({each.rename.type for each in self.leftover.renames})
            if not self.leftover:
                self.ledger.note_complete(state.number)
        else:
            self.leftover = Leftover()
        self._finished_number = state.number

    def _carry_out(self, orders: Unfinished, markers: DayMarkers) -> Leftover:
        """Do what an entry orders; a day is marked only while every file of it is where readers look for it."""
        markers.take_away(orders.marks)
        leftover = self.move(orders)
        waiting = [each for each in orders.marks if leftover.holds_back(each)]
        markers.put_back(each for each in orders.marks if each not in waiting)
        if markers.put or markers.taken:
            self.environment.reach("marked")
        return replace(leftover, marks=tuple(sorted({*waiting, *markers.failed})))

    def move(self, orders: Unfinished) -> Leftover:
        """Do what is still to be done, removes first: a reader may miss rows for a moment but never sees them twice."""
        reach = self.environment.reach
        kept: list[str] = []
        for path in orders.removes:
            reach("removing")
            try:
                self.storage.delete(path)
            except PenstockError:
                kept.append(path)
        if orders.removes:
            reach("removed")
        held = [FailedRename(each, "old files are still there") for each in orders.renames if kept and each.waits]
        ready = [each for each in orders.renames if not (kept and each.waits)]
        return Leftover((*held, *self.placing.place(ready, reach)), tuple(kept))

    def unseen(self, state: LedgerState) -> Counter[TypeDay]:
        """Per type and day the files that are not as the newest entry says: not in place, or there although replaced.

        Nothing is done about them.
        """
        orders = state.unfinished
        if not (orders.renames or orders.removes) or self.ledger.is_complete(state.number):
            return Counter()
        there = _sizes(self.storage, orders.removes)
        unplaced = self.placing.unplaced(orders.renames)
        paths = [*(each.target for each in unplaced), *(path for path in orders.removes if path in there)]
        return Counter(place for path in paths if (place := type_and_day(path)) is not None)

    def remove_stale_markers(self) -> None:
        """Take markers away that processes left which died while they put them."""
        markers = DayMarkers(self.storage, self.places, self.ledger.known)
        try:
            there = markers.marked()
        except PenstockError:
            return
        markers.state = self.ledger.refresh()
        markers.remove_stale(there)
        if markers.taken or markers.failed:
            self.marked.append(markers)


def _sizes(storage: Storage, paths: Sequence[str]) -> dict[str, int]:
    """What readers find in the folders of these files, with sizes: nothing in one that cannot be listed."""
    found: dict[str, int] = {}
    for folder in {path.rpartition("/")[0] for path in paths}:
        with suppress(PenstockError):
            found.update({entry.path: entry.size_bytes for entry in storage.list(folder)})
    return found


def _rename(storage: Storage, rename: Rename, reach: Reach) -> FailedRename | None:
    reach("renaming")
    lost = False
    try:
        if storage.rename_if_absent(rename.source, rename.target):
            return None
        reason = f"{rename.target} is taken by another file"
    except NotFoundError:
        lost, reason = True, gone_reason(rename)
    except PenstockError as error:
        reason = error.primary
    return None if _is_done(storage, rename) else FailedRename(rename, reason, lost)


def gone_reason(rename: Rename) -> str:
    """What a person is told of a staged file that nobody can place any more."""
    return f"its staged file {rename.source} is gone; `penstock vacuum --drop-lost` gives up a file that is lost"


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
