"""Day-complete markers: small files that tell other programs what the ledger knows of a day.

Bringing them in line is one of the operations of an entry, whose number each marker carries (docs/protocol.md, "Days
and watermarks").
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.errors import PenstockError
from penstock.lake.storage import NotFoundError, Storage
from penstock.tables.export.days.days import watermark_of
from penstock.tables.export.ledger.names import Places
from penstock.tables.export.ledger.state import LedgerState, TypeDay


@dataclass(slots=True)
class DayMarkers:
    """The markers of one ledger, as of one state of it."""

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
            mark = _instant(watermark_of(self.state, name))
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


def _instant(millis: int | None) -> str | None:
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC).isoformat()
