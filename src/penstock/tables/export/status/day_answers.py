"""Is day D of a type complete, and if not, what holds it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from penstock.environment import Environment
from penstock.errors import UserError, did_you_mean
from penstock.job.spec import JobSpec
from penstock.tables.export.days import Days, needed_ms
from penstock.tables.export.export import ExportTable
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.names import Day
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.state import MILLIS_PER_SECOND, ExportState


class DayState(StrEnum):
    COMPLETE = "complete"
    OPEN = "open"
    REOPENED = "reopened"
    NOT_YET = "not yet"
    """Nothing of that day is written, and rows of it may still come."""
    NOT_VISIBLE = "not visible"
    """No more rows are expected, and a commit or a compaction has not put all files of it in their place yet."""


@dataclass(frozen=True, slots=True)
class TypeDays:
    """The days of one type, with all that decides about them."""

    state: ExportState
    type: str
    days: Days
    pending: Sequence[Day]
    """The days of files that are not in their place yet."""
    after_seconds: float
    now_ms: int
    unreadable: str = ""
    """Why the log of the type cannot be read, which knows of late rows: no day is called complete then."""

    @property
    def watermark_ms(self) -> int | None:
        return None if self.unreadable else self.state.watermark_of(self.type, self.now_ms)

    def is_complete(self, day: Day) -> bool:
        mark = self.watermark_ms
        return mark is not None and mark >= self.needed_ms(day)

    def needed_ms(self, day: Day) -> int:
        """The watermark that makes a day complete."""
        return needed_ms(day, self.days.get(day, 0), self.after_seconds)

    def last_complete(self) -> Day | None:
        """The latest day that is complete and whose files are in place; earlier ones may have been opened again."""
        mark = self.watermark_ms
        if mark is None:
            return None
        day = datetime.fromtimestamp(mark / MILLIS_PER_SECOND - self.after_seconds, UTC).date() - timedelta(days=1)
        while day.isoformat() in self.pending or not self.is_complete(day.isoformat()):
            day -= timedelta(days=1)
        return day.isoformat()

    def open_days(self) -> list[Day]:
        return sorted(day for day in self.days if not self.is_complete(day))

    def reopened_days(self) -> list[Day]:
        return [day for day in self.open_days() if self.days[day]]


@dataclass(frozen=True, slots=True)
class DayAnswer:
    """How a day of a type stands by the logs, and why."""

    of: TypeDays
    day: Day

    @property
    def type(self) -> str:
        return self.of.type

    @property
    def state(self) -> DayState:
        if self.of.is_complete(self.day):
            return DayState.NOT_VISIBLE if self.day in self.of.pending else DayState.COMPLETE
        if self.of.days.get(self.day):
            return DayState.REOPENED
        return DayState.OPEN if self.day in self.of.days else DayState.NOT_YET

    @property
    def complete(self) -> bool:
        return self.state is DayState.COMPLETE

    def holders(self) -> list[dict[str, Any]]:
        """The partitions whose event times have not reached what the day needs."""
        holders = []
        for key, here in sorted(self.of.state.current()):
            mark, lag = here.watermark_of(self.type), here.lags.get(self.type)
            if mark is None or mark < self.of.needed_ms(self.day):
                place = {"topic": self.of.state.partition_of(key).topic, "partition": key[1]}
                holders.append({**place, "watermark": instant(mark), "cause": None if lag is None else lag.cause.value})
        return holders

    @property
    def reason(self) -> str:
        if self.of.unreadable:
            return f"the log of the type cannot be read: {self.of.unreadable}"
        needed = instant(self.of.needed_ms(self.day))
        if self.complete:
            return f"the watermark {instant(self.of.watermark_ms)} is past {needed}"
        if not any(True for _ in self.of.state.current()):
            return "the job has no position yet"
        if self.state is DayState.NOT_VISIBLE:
            return (
                f"{self.of.pending.count(self.day)} files of the day are not in their place yet: a commit or a "
                "compaction is under way, or its process died and the next `penstock run` finishes it"
            )
        late = "late rows came, " if self.state is DayState.REOPENED else ""
        held = "; ".join(map(_holder_text, self.holders())) or "the clock is not there yet"
        return f"{late}the watermark has to reach {needed}: {held}"

    def as_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "day": self.day,
            "state": self.state.value,
            "complete": self.complete,
            "watermark": instant(self.of.watermark_ms),
            "complete_at_watermark": instant(self.of.needed_ms(self.day)),
            "held_back_by": self.holders(),
            "pending_renames": len(self.of.pending),
            "unseen_files": self.of.pending.count(self.day),
            "reason": self.reason,
        }


def _holder_text(holder: dict[str, Any]) -> str:
    at = "has no event time yet" if holder["watermark"] is None else f"is at {holder['watermark']}"
    lags = f" (the type lags there: {holder['cause']})" if holder["cause"] else ""
    return f"{holder['topic']}/{holder['partition']} {at}{lags}"


def instant(millis: int | None) -> str | None:
    """Event time for people: UTC, to the second."""
    if millis is None:
        return None
    return datetime.fromtimestamp(millis / MILLIS_PER_SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def type_days(table: ExportTable, names: Sequence[str]) -> dict[str, TypeDays]:
    """The days of types by logs and files; nothing is finished or changed on the way."""
    state, after = table.logs.state(), table.logs.export.days.complete_after_seconds
    pending = table.finishing.pending() if state.version >= 0 else []
    return {
        name: TypeDays(
            state,
            name,
            table.logs.days_of(name) if name in table.logs.export.all_types else {},
            [rename.day for rename in pending if rename.type == name],
            after,
            table.markers.now_ms(),
            table.logs.unreadable.get(name, ""),
        )
        for name in names
    }


def day_answers(job: JobSpec[ExportSpec], day: Day, wanted: Sequence[str] = ()) -> tuple[DayAnswer, ...]:
    """How a day stands for the types asked for, or for all; by logs and files, so also while Kafka is away."""
    table = ExportTable(ExportLogs(job, Environment()))
    known = sorted({*job.table.all_types, *table.logs.state().types})
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known) or f"its types are {', '.join(known)}"
            raise UserError(f"{job.name} has no type {name}", hint=hint)
    return tuple(DayAnswer(days, day) for days in type_days(table, wanted or known).values())
