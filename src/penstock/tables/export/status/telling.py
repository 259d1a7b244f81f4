"""What a running export tells beside its batches: days, vanished records and the monitoring rules of seed 000."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.events import Listener
from penstock.logs.log import Partition
from penstock.tables.export.events import DayComplete, DayMarkerFailed, DayOpenedAgain, RecordsVanished
from penstock.tables.export.spec import AlertLimits
from penstock.tables.export.status.alerts import measured_rules
from penstock.tables.export.table import ExportTable
from penstock.tables.kind import View


class Telling:
    """A cache of what was told: losing it costs a repetition."""

    def __init__(self, table: ExportTable, limits: AlertLimits, listener: Listener) -> None:
        self._table = table
        self._limits = limits
        self._listener = listener
        self._ends: Mapping[Partition, int] = {}
        self._expiring: Mapping[Partition, int] = {}
        self._vanished = self._vanished_now()

    def look(self, view: View, expiring: Mapping[Partition, int]) -> None:
        """Take note of the log's ends, and of the offsets below which waiting records are near theirs; tell of both."""
        self._ends = {each: view.bounds[each].end for each in view.tokens}
        self._expiring = expiring
        vanished = self._vanished_now()
        if vanished > self._vanished:
            # Left to a type, and the log no longer had them: lost, and said so (I7).
            self._listener.event(RecordsVanished(records=vanished - self._vanished))
        self._vanished = vanished
        self.rules()

    def rules(self) -> None:
        """The monitoring rules over the partitions of this process."""
        known = self._table.ledger.known
        self._listener.event(measured_rules(known, self._ends, self._limits, self._expiring))

    def days(self) -> None:
        """Tell which days the ledger's entries completed and opened again."""
        for marks in self._table.finishing.marked:
            for name, day in marks.opened:
                self._listener.event(DayOpenedAgain(type=name, day=day))
            for name, day in marks.completed:
                self._listener.event(DayComplete(type=name, day=day))
            for reason in sorted(set(marks.failed.values())):
                self._listener.event(DayMarkerFailed(reason=reason))
        self._table.finishing.marked.clear()

    def _vanished_now(self) -> int:
        return sum(here.totals.vanished for here in self._table.ledger.known.partitions.values())
