"""The marker files that show other programs that a day of a type is complete and visible (RULES E7).

The marker of a day is removed before a commit adds rows to it, and put back once the day is complete and all its files
are in place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from penstock.errors import PenstockError, UserError
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.monitoring import DayComplete, DayMarkerFailed, DayOpenedAgain
from penstock.tables.export.state import MILLIS_PER_SECOND, Day, day_key, end_ms, instant, needed_ms


@dataclass(slots=True)
class DayMarkers:
    """The markers of one export, as far as this process knows them. Days are judged by the logs as they are loaded."""

    logs: ExportLogs
    _marked: set[tuple[str, Day]] = field(default_factory=set)

    def now_ms(self) -> int:
        return int(self.logs.environment.now() * MILLIS_PER_SECOND)

    def watermark_of(self, name: str) -> int | None:
        """The event time up to which a type is complete.

        A type whose log cannot be read may have had late rows: no day of it is complete.
        """
        return None if name in self.logs.unreadable else self.logs.cached_state().watermark_of(name, self.now_ms())

    def needed_ms(self, name: str, day: Day) -> int:
        """The watermark that makes a day complete."""
        return needed_ms(day, self.logs.days_of(name).get(day, 0), self.logs.export.days.complete_after_seconds)

    def is_complete(self, name: str, day: Day) -> bool:
        """Whether no more rows of that day are expected: the watermark is past its end, and past its last late row."""
        needed, mark = self.needed_ms(name, day), self.watermark_of(name)
        return mark is not None and mark >= needed

    def late_numbers(self, name: str, days: Iterable[Day]) -> dict[str, int]:
        """The numbers by which a commit of rows enters their days: late rows with the watermark at which they came."""
        late_ms, mark = dict(self.logs.days_of(name)), self.watermark_of(name) or 0
        for day in filter(partial(self.is_complete, name), days):
            late_ms[day] = mark
            self.logs.environment.listener.event(DayOpenedAgain(type=name, day=day))
        return {day_key(self.logs.job.name, day): late_ms.get(day, 0) for day in days}

    def read(self) -> None:
        """List the markers, and remove those of days that are not complete: left by a process that died or was late."""
        with self._reporting():
            entries = self.logs.storage.list(f"{self.logs.home}/complete")
            paths = [entry.path.removesuffix(".json").split("/") for entry in entries]
            self._marked = {(parts[-2], parts[-1]) for parts in paths}
            for name, day in sorted(self._marked):
                if not self.is_complete(name, day):
                    self.hide(name, [day])

    def hide(self, name: str, days: Iterable[Day]) -> None:
        """Remove the markers of days whose files are about to change. Raises if one cannot be removed.

        Another process may have put a marker that this one does not know. A day that is not over by the clock has none,
        unless a process whose clock was ahead put it.
        """
        for day in days:
            if end_ms(day) <= self.now_ms() or (name, day) in self._marked:
                path = self._path(name, day)
                try:
                    self.logs.storage.delete(path)
                except PenstockError:
                    # Where no marker could be written, there is none to remove, unless another process wrote one.
                    if self._exists(path):
                        raise
                self._marked.discard((name, day))

    def _path(self, name: str, day: Day) -> str:
        return f"{self.logs.home}/complete/{name}/{day}.json"

    def _exists(self, path: str) -> bool:
        try:
            return self.logs.storage.exists(path)
        except UserError:
            # A plain file is in place of the folder: no marker can exist below it.
            return False

    def put(self, names: Iterable[str], pending_days: Callable[[str], Collection[Day]]) -> None:
        """Mark the days that are complete, unless they are marked or `pending_days` has files of them."""
        for name in names:
            for day in [day for day in self.logs.days_of(name) if self._is_due(name, day)]:
                with self._reporting():
                    # Another process may have added late rows: its commit came before or comes after the marker.
                    log = self.logs.find_type_log(name, refresh=True)
                    if log is not None and self._is_due(name, day) and day not in pending_days(name):
                        self._put(name, day, log.version)
                        self.logs.find_type_log(name, refresh=True)
                        if not self.is_complete(name, day):
                            self.hide(name, [day])

    def _is_due(self, name: str, day: Day) -> bool:
        return (name, day) not in self._marked and self.is_complete(name, day)

    def _put(self, name: str, day: Day, version: int) -> None:
        """The contents differ each time: a reader that finds them unchanged has read the whole day."""
        body = {"type": name, "day": day, "version": version, "watermark": instant(self.watermark_of(name))}
        created = self.logs.storage.put_if_absent(self._path(name, day), json.dumps(body).encode())
        self._marked.add((name, day))
        self.logs.environment.at_step("marked")
        if created:
            self.logs.environment.listener.event(DayComplete(type=name, day=day))

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report a marker that cannot be written or read, and let the job go on."""
        try:
            yield
        except PenstockError as error:
            self.logs.environment.listener.event(DayMarkerFailed(reason=error.primary))
