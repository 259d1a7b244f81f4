"""Which days of a type are complete, and the marker files that say so to other programs (RULES E7).

A type's log keeps every day that has rows (`<job>#day/<day>`), with the watermark at which rows came to it after it
was complete, or 0. The marker of a day is removed before a commit adds rows to it, and put back once the day is
complete and all its files are in place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from penstock.environment import Environment
from penstock.errors import PenstockError, UserError
from penstock.lake.storage import Storage
from penstock.tables.export import events
from penstock.tables.export.names import Day, Places, TypeDay
from penstock.tables.export.state import MILLIS_PER_SECOND, ExportState

Days = Mapping[Day, int]
"""Days that have rows, with the watermark at which late rows came, or 0."""


def day_key(job: str, day: Day) -> str:
    return f"{job}#day/{day}"


def parse_days(numbers: Mapping[str, int], job: str) -> dict[Day, int]:
    """The days from the app transactions of a type's log."""
    prefix = day_key(job, "")
    return {key.removeprefix(prefix): late_ms for key, late_ms in numbers.items() if key.startswith(prefix)}


def end_ms(day: Day) -> int:
    """The instant at which a UTC day is over."""
    after = date.fromisoformat(day) + timedelta(days=1)
    return int(datetime(after.year, after.month, after.day, tzinfo=UTC).timestamp()) * MILLIS_PER_SECOND


def needed_ms(day: Day, late_ms: int, after_seconds: float) -> int:
    """The watermark that makes a day complete."""
    return max(end_ms(day), late_ms) + int(after_seconds * MILLIS_PER_SECOND)


def next_boundary_ms(mark: int | None, now_ms: int, after_seconds: float, late: Iterable[int] = ()) -> int | None:
    """The latest instant up to now at which a day becomes complete, if the watermark has not reached it yet.

    That is some time after a midnight, or as long after one of `late`, the watermarks at which late rows came.
    """
    margin = int(after_seconds * MILLIS_PER_SECOND)
    day = datetime.fromtimestamp((now_ms - margin) / MILLIS_PER_SECOND, UTC).date()
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * MILLIS_PER_SECOND
    boundary = max(instant + margin for instant in (midnight, *late) if instant + margin <= now_ms)
    return boundary if mark is None or mark < boundary else None


@dataclass(slots=True)
class DayMarkers:
    """The markers of one export, as far as this process knows them."""

    storage: Storage
    places: Places
    environment: Environment
    after_seconds: float
    days_of: Callable[[str], Days]
    """The days of a type, by its log as it was last read."""
    refresh: Callable[[str], int]
    """Reads the log of a type again; returns its version."""
    is_pending: Callable[[str, Day], bool]
    """Whether a file of the day is not in place yet."""
    _marked: set[TypeDay] = field(default_factory=set)
    _hidden: set[TypeDay] = field(default_factory=set)
    """Complete days whose files are being replaced: their markers come back without a word."""

    def now_ms(self) -> int:
        return int(self.environment.now() * MILLIS_PER_SECOND)

    def is_complete(self, state: ExportState, name: str, day: Day) -> bool:
        """Whether no more rows of that day are expected: the watermark is past its end, and past its last late row."""
        mark = state.watermark_of(name, self.now_ms())
        return mark is not None and mark >= needed_ms(day, self.days_of(name).get(day, 0), self.after_seconds)

    def read(self, state: ExportState) -> None:
        """List the markers, and remove those of days that are not complete: a process died, or put one too late."""
        with self._reporting():
            paths = [entry.path.removesuffix(".json").split("/") for entry in self.storage.list(self.places.markers)]
            self._marked = {(parts[-2], parts[-1]) for parts in paths}
            self.reopen(state, self._marked)

    def reopen(self, state: ExportState, days: Iterable[TypeDay]) -> None:
        """Remove the markers of those days that are not complete."""
        for name, day in sorted(days):
            if (name, day) in self._marked and not self.is_complete(state, name, day):
                self.hide(name, [day])
        self._report_reopened(state)

    def _report_reopened(self, state: ExportState) -> None:
        """Report the hidden days that are not complete any more: late rows came."""
        for name, day in sorted(self._hidden):
            if not self.is_complete(state, name, day):
                self._hidden.discard((name, day))
                self.environment.listener.event(events.DayOpenedAgain(type=name, day=day))

    def hide(self, name: str, days: Iterable[Day]) -> None:
        """Remove the markers of days whose files are about to change. Raises if one cannot be removed.

        Whether this process knows of a marker does not matter: another one may have put it. A day that is not over by
        the clock has none, unless a process whose clock was ahead put it.
        """
        for day in days:
            if end_ms(day) <= self.now_ms() or (name, day) in self._marked:
                path = self.places.marker(name, day)
                try:
                    self.storage.delete(path)
                except PenstockError as error:
                    # Where no marker could be put, none has to go; but another process may have put one.
                    if (name, day) in self._marked or self._exists(path):
                        raise
                    self.environment.listener.event(events.DayMarkerFailed(reason=error.primary))
                if (name, day) in self._marked:
                    self._marked.discard((name, day))
                    self._hidden.add((name, day))

    def _exists(self, path: str) -> bool:
        try:
            return self.storage.exists(path)
        except UserError:
            # Another file is in the way: nothing can be below it.
            return False

    def put(self, state: ExportState, names: Iterable[str]) -> None:
        """Mark the days that are complete and not marked."""
        self._report_reopened(state)
        for name in names:
            for day in [day for day in self.days_of(name) if self._is_due(state, name, day)]:
                with self._reporting():
                    # Another process may have added late rows: its commit came before or comes after the marker.
                    version = self.refresh(name)
                    if self._is_due(state, name, day) and not self.is_pending(name, day):
                        self._put(state, name, day, version)
                        self.refresh(name)
                        self.reopen(state, [(name, day)])

    def _is_due(self, state: ExportState, name: str, day: Day) -> bool:
        return (name, day) not in self._marked and self.is_complete(state, name, day)

    def _put(self, state: ExportState, name: str, day: Day, version: int) -> None:
        """The contents differ each time: a reader that finds them unchanged has read the whole day."""
        mark_ms = state.watermark_of(name, self.now_ms()) or 0
        mark = datetime.fromtimestamp(mark_ms / MILLIS_PER_SECOND, UTC).isoformat()
        body = json.dumps({"type": name, "day": day, "version": version, "watermark": mark}).encode()
        created = self.storage.put_if_absent(self.places.marker(name, day), body)
        self._marked.add((name, day))
        self.environment.reach("marked")
        if created and (name, day) not in self._hidden:
            self.environment.listener.event(events.DayComplete(type=name, day=day))
        self._hidden.discard((name, day))

    def _reporting(self) -> _Reporting:
        return _Reporting(self.environment)


@dataclass(frozen=True, slots=True)
class _Reporting:
    """Reports a marker that cannot be written or read, and lets the job go on."""

    environment: Environment

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, PenstockError):
            return False
        self.environment.listener.event(events.DayMarkerFailed(reason=error.primary))
        return True
