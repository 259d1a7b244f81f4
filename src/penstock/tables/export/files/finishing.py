"""Carries out what the newest entry of a ledger orders, whoever wrote it, and keeps what cannot be done (RULES L1)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from penstock.environment import Environment
from penstock.errors import PenstockError
from penstock.lake.storage import Storage
from penstock.tables.export.days.markers import DayMarkers
from penstock.tables.export.files.operations import Leftover, Placing, finish, unseen_files
from penstock.tables.export.ledger.chain import Ledger
from penstock.tables.export.ledger.names import Places
from penstock.tables.export.ledger.state import Day, LedgerState, Unfinished


@dataclass(slots=True)
class Finishing:
    """One process's part in finishing entries."""

    storage: Storage
    places: Places
    ledger: Ledger
    environment: Environment
    placing: Placing | None = None
    """How the files get there; None: each by a rename."""
    failures: dict[str, int] = field(default_factory=dict)
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
        again = self._finished_number == state.number
        orders = self.leftover.orders if again else state.unfinished
        # Of an entry of our own we know better than any hint whether it is carried out.
        known = not again and self.own_number != state.number and self.ledger.is_complete(state.number)
        if (orders.renames or orders.removes or orders.marks) and not known:
            self.leftover = self._carry_out(orders, markers)
            for name in {each.rename.type for each in self.leftover.renames}:
                self.failures[name] = self.failures.get(name, 0) + 1
            if not self.leftover:
                self.ledger.note_complete(state.number)
        else:
            self.leftover = Leftover()
        self._finished_number = state.number

    def _carry_out(self, orders: Unfinished, markers: DayMarkers) -> Leftover:
        """Do what an entry orders; a day is marked only while every file of it is where readers look for it."""
        markers.take_away(orders.marks)
        leftover = finish(self.storage, orders, self.environment.reach, self.placing)
        waiting = [each for each in orders.marks if leftover.holds_back(each)]
        markers.put_back(each for each in orders.marks if each not in waiting)
        if markers.put or markers.taken:
            self.environment.reach("marked")
        return replace(leftover, marks=tuple(sorted({*waiting, *markers.failed})))

    def unseen(self, state: LedgerState) -> Counter[tuple[str, Day]]:
        """Per type and day the files that the newest entry orders about and that readers do not see as it says yet."""
        orders = state.unfinished
        if not (orders.renames or orders.removes) or self.ledger.is_complete(state.number):
            return Counter()
        return unseen_files(self.storage, orders, self.placing)

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
