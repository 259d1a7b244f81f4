"""Carries out what the newest entry of a ledger orders, whoever wrote it, and keeps what cannot be done (RULES L1)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from penstock.environment import Environment
from penstock.errors import PenstockError
from penstock.lake.storage import Storage
from penstock.tables.export.days.markers import DayMarks
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
    marked: list[DayMarks] = field(default_factory=list)
    """What became of day markers since this list was last emptied."""
    leftover: Leftover = field(default_factory=Leftover)
    own_number: int = 0
    """The newest entry that this process wrote."""
    _finished_number: int = 0

    def complete(self) -> LedgerState:
        """Finish the newest entry: nobody adds the next one before (RULES L1)."""
        state = self.ledger.refresh()
        while self._finished_number != state.number or self.leftover:
            marks = DayMarks(self.storage, self.places, state)
            self._finish(state, marks)
            newer = self.ledger.refresh()
            if newer.number != state.number:
                marks.withdraw(newer)
            if marks.taken or marks.put or marks.failed:
                self.marked.append(marks)
            if newer.number == state.number:
                break
            state = newer
        return state

    def _finish(self, state: LedgerState, marks: DayMarks) -> None:
        again = self._finished_number == state.number
        orders = self.leftover.orders if again else state.unfinished
        # Of an entry of our own we know better than any hint whether it is carried out.
        known = not again and self.own_number != state.number and self.ledger.is_complete(state.number)
        if (orders.renames or orders.removes or orders.marks) and not known:
            self.leftover = self._carry_out(orders, marks)
            for name in {each.rename.type for each in self.leftover.renames}:
                self.failures[name] = self.failures.get(name, 0) + 1
            if not self.leftover:
                self.ledger.note_complete(state.number)
        else:
            self.leftover = Leftover()
        self._finished_number = state.number

    def _carry_out(self, orders: Unfinished, marks: DayMarks) -> Leftover:
        """Do what an entry orders; a day is marked only while every file of it is where readers look for it."""
        marks.take_away(orders.marks)
        leftover = finish(self.storage, orders, self.environment.reach, self.placing)
        waiting = [each for each in orders.marks if leftover.holds_back(each)]
        marks.put_back(each for each in orders.marks if each not in waiting)
        if marks.put or marks.taken:
            self.environment.reach("marked")
        return replace(leftover, marks=tuple(sorted({*waiting, *marks.failed})))

    def unseen(self, state: LedgerState) -> Counter[tuple[str, Day]]:
        """Per type and day the files that the newest entry orders about and that readers do not see as it says yet."""
        orders = state.unfinished
        if not (orders.renames or orders.removes) or self.ledger.is_complete(state.number):
            return Counter()
        return unseen_files(self.storage, orders, self.placing)

    def sweep_markers(self) -> None:
        """Take markers away that processes left which died while they put them."""
        marks = DayMarks(self.storage, self.places, self.ledger.known)
        try:
            there = marks.marked()
        except PenstockError:
            return
        marks.state = self.ledger.refresh()
        marks.sweep(there)
        if marks.taken or marks.failed:
            self.marked.append(marks)
