"""The chain of entries of an export: numbered objects, each created only if absent, and snapshots of their fold.

Creating entry N is the commit point. Names are never freed (RULES L2): a process that slept finds its number taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from penstock.environment import Environment
from penstock.errors import InvariantError, OutcomeUnknownError, TransientError
from penstock.lake.storage import Entry as StorageEntry
from penstock.lake.storage import NotFoundError, Storage
from penstock.tables.export.ledger.codec import decode_entry, decode_state, encode_entry, encode_state
from penstock.tables.export.ledger.entry import Entry
from penstock.tables.export.ledger.fold import DAMAGED, apply
from penstock.tables.export.ledger.names import Places
from penstock.tables.export.ledger.state import LedgerState

SNAPSHOT_EVERY = 20
"""Entries; start-up reads one snapshot and at most about so many entries."""
UNKNOWN_OUTCOMES_MAX = 5


class Ledger:
    """One process's view of the chain: the fold of what it has read so far."""

    def __init__(self, storage: Storage, places: Places, environment: Environment) -> None:
        self._storage = storage
        self._places = places
        self._environment = environment
        self._state: LedgerState | None = None
        self._entry: Entry | None = None

    def refresh(self) -> LedgerState:
        """Fold what others added since."""
        state = self._snapshot() if self._state is None else self._state
        while (entry := self.read(state.number + 1)) is not None:
            state = apply(state, entry)
            self._entry = entry
        self._state = state
        return state

    @property
    def known(self) -> LedgerState:
        """What this process has folded so far, without asking for newer entries."""
        return self.refresh() if self._state is None else self._state

    def read(self, number: int) -> Entry | None:
        """One entry; None if nobody wrote it yet."""
        try:
            return decode_entry(self._storage.read(self._places.entry(number)))
        except NotFoundError:
            return None

    def numbers(self, after: int = 0) -> list[int]:
        """The numbers of the entries that are there, above one."""
        return _numbers(self._storage.list(self._places.entries, self._places.entry(after) if after else ""))

    def last(self, count: int) -> list[Entry]:
        """The newest entries, the newest first."""
        newest = self.refresh().number
        numbers = range(newest, max(0, newest - count), -1)
        return [entry for number in numbers if (entry := self.read(number)) is not None]

    def append(self, entry: Entry) -> bool:
        """Create the entry; False if its number is taken by another. True means: this very entry is in the chain."""
        before = self.known if self.known.number >= entry.number - 1 else self.refresh()
        if before.number >= entry.number:
            return False
        # Folded before it is written: an entry that nobody could fold would end the chain for good.
        after = apply(before, entry)
        data = encode_entry(entry)
        path = self._places.entry(entry.number)
        for _ in range(UNKNOWN_OUTCOMES_MAX):
            try:
                landed = self._storage.put_if_absent(path, data)
            except OutcomeUnknownError:
                # Our own request may still be under way: the same name is asked for again until the answer is clear.
                continue
            # A name that is taken may be ours, by an attempt whose answer was lost (RULES C2).
            if not landed and self._storage.read(path) != data:
                return False
            self._state = after
            self._entry = entry
            return True
        raise TransientError(f"cannot tell whether ledger entry {entry.number} was written", hint="it is asked again")

    def keep_snapshot(self, state: LedgerState) -> None:
        """Write a snapshot of a state whose entry is complete, that is: a later entry exists (RULES L2)."""
        if self._storage.put_if_absent(self._places.snapshot(state.number), encode_state(state)):
            self._environment.reach("snapshot_written")
            self._storage.put(self._places.last_snapshot, json.dumps({"number": state.number}).encode())

    def note_complete(self, number: int) -> None:
        """Say that an entry's operations are done: nobody looks for its files again, and readers may delete days."""
        entry = self._entry_at(number)
        if entry is not None:
            body = {"number": number, "batch": entry.batch_id}
            self._storage.put(self._places.last_complete, json.dumps(body).encode())

    def is_complete(self, number: int) -> bool:
        """Whether somebody said so of this entry or a later one, and that one is in this very chain.

        A hint may be left from a ledger that was lost. A process that slept may have put an older number, which only
        costs a look.
        """
        hint = self._hint(self._places.last_complete)
        noted = hint.get("number")
        if not isinstance(noted, int) or noted < number:
            return False
        entry = self._entry_at(noted)
        return entry is not None and entry.batch_id == hint.get("batch")

    def _entry_at(self, number: int) -> Entry | None:
        known = self._entry
        return known if known is not None and known.number == number else self.read(number)

    def _snapshot(self) -> LedgerState:
        """The newest snapshot that the hint or, without a good one, a listing tells of; else the empty state."""
        hinted = self._hint(self._places.last_snapshot).get("number")
        if isinstance(hinted, int):
            try:
                return decode_state(self._storage.read(self._places.snapshot(hinted)))
            except NotFoundError:
                pass
        if number := max(_numbers(self._storage.list(self._places.snapshots)), default=0):
            return decode_state(self._storage.read(self._places.snapshot(number)))
        if hinted is not None and self.read(1) is None:
            # A ledger that was rebuilt does not begin with entry 1: without a snapshot nobody knows where.
            raise InvariantError(f"the snapshot {hinted} of the ledger is gone", hint=DAMAGED)
        return LedgerState()

    def _hint(self, path: str) -> dict[str, object]:
        """What a hint says; nothing if it is not there or cannot be read: a hint is never needed."""
        try:
            found = json.loads(self._storage.read(path))
        except (NotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _numbers(listed: Iterable[StorageEntry]) -> list[int]:
    stems = (each.path.rsplit("/", 1)[-1].removesuffix(".json") for each in listed)
    return [int(stem) for stem in stems if stem.isdecimal()]
