"""Is day D of a type complete, and if not, who holds it back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from penstock.environment import Environment
from penstock.errors import UserError, did_you_mean
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition
from penstock.tables.export.delta_types import open_export
from penstock.tables.export.ledger.days import MILLIS_PER_SECOND, end_ms, is_complete, watermark_of
from penstock.tables.export.ledger.state import Cause, Day, LedgerState, TypeDay
from penstock.tables.export.spec import ExportSpec


class DayState(StrEnum):
    COMPLETE = "complete"
    OPEN = "open"
    REOPENED = "reopened"
    NOT_YET = "not yet"
    """Nothing of that day is written, and rows of it may still come."""
    NOT_VISIBLE = "not visible"
    """No more rows are expected, and a commit or a compaction has not put all files of it in their place yet."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A partition whose watermark has not reached what a day needs; `cause` is set where the type lags in it."""

    partition: Partition
    watermark_ms: int | None
    cause: Cause | None = None

    @property
    def text(self) -> str:
        at = "has no event time yet" if self.watermark_ms is None else f"is at {instant(self.watermark_ms)}"
        return f"{self.partition} {at}" + (f" (the type lags there: {self.cause})" if self.cause else "")


@dataclass(frozen=True, slots=True)
class DayAnswer:
    """How a day of a type stands by the ledger's word, and why."""

    ledger: LedgerState
    type: str
    day: Day
    after_seconds: float
    now_ms: int | None = None
    unseen: int = 0
    """Files of the day that the newest entry of the ledger orders about and that are not yet as it says."""

    @property
    def state(self) -> DayState:
        if is_complete(self.ledger, self.type, self.day, self.after_seconds, self.now_ms):
            return DayState.NOT_VISIBLE if self.unseen else DayState.COMPLETE
        if (self.type, self.day) in self.ledger.reopened:
            return DayState.REOPENED
        return DayState.OPEN if (self.type, self.day) in self.ledger.open_days else DayState.NOT_YET

    @property
    def complete(self) -> bool:
        return self.state is DayState.COMPLETE

    @property
    def needed_ms(self) -> int:
        """The watermark that makes the day complete."""
        late_ms = self.ledger.reopened.get((self.type, self.day), 0)
        return max(end_ms(self.day), late_ms) + int(self.after_seconds * MILLIS_PER_SECOND)

    @property
    def watermark_ms(self) -> int | None:
        return watermark_of(self.ledger, self.type, self.now_ms)

    @property
    def holders(self) -> tuple[Holder, ...]:
        found = []
        for partition, here in sorted(self.ledger.current()):
            mark = here.watermark_of(self.type)
            if here.position is not None and (mark is None or mark < self.needed_ms):
                lane = here.lanes.get(self.type)
                found.append(Holder(partition, mark, None if lane is None else lane.cause))
        return tuple(found)

    @property
    def pending(self) -> int:
        """Files of the type that could not be moved to their place."""
        return sum(each.type == self.type for each in self.ledger.pending)

    @property
    def reason(self) -> str:
        needed = instant(self.needed_ms)
        if self.complete:
            return f"the watermark {instant(self.watermark_ms)} is past {needed}"
        if all(here.position is None for _, here in self.ledger.current()):
            return "the job has no position yet"
        if self.pending:
            return f"{self.pending} files of the type could not be moved to their place yet"
        if self.state is DayState.NOT_VISIBLE:
            return (
                f"{self.unseen} files of the day are not in their place yet: a commit or a compaction is under way, "
                "or its process died and the next `penstock run` or `penstock compact` finishes it"
            )
        late = "late rows came, " if self.state is DayState.REOPENED else ""
        held = "; ".join(each.text for each in self.holders) or "the clock is not there yet"
        return f"{late}the watermark has to reach {needed}: {held}"

    def as_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "day": self.day,
            "state": self.state.value,
            "complete": self.complete,
            "watermark": instant(self.watermark_ms),
            "complete_at_watermark": instant(self.needed_ms),
            "held_back_by": [
                {
                    "topic": each.partition.topic,
                    "partition": each.partition.number,
                    "watermark": instant(each.watermark_ms),
                    "cause": None if each.cause is None else each.cause.value,
                }
                for each in self.holders
            ],
            "pending_renames": self.pending,
            "unseen_files": self.unseen,
            "reason": self.reason,
        }


def last_complete_day(
    state: LedgerState, name: str, after_seconds: float, now_ms: int | None = None, unseen: Collection[TypeDay] = ()
) -> Day | None:
    """The latest day that is complete and whose files are all in place; earlier ones may have been opened again."""
    mark = watermark_of(state, name, now_ms)
    if mark is None:
        return None
    day = datetime.fromtimestamp(mark / MILLIS_PER_SECOND - after_seconds, UTC).date() - timedelta(days=1)
    while (name, day.isoformat()) in unseen or not is_complete(state, name, day.isoformat(), after_seconds, now_ms):
        day -= timedelta(days=1)
    return day.isoformat()


def instant(millis: int | None) -> str | None:
    """Event time for people: UTC, to the second."""
    if millis is None:
        return None
    return datetime.fromtimestamp(millis / MILLIS_PER_SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def day_answers(job: JobSpec[ExportSpec], day: Day, wanted: Sequence[str] = ()) -> tuple[DayAnswer, ...]:
    """How a day stands for the types asked for, or for all; by ledger and files, so also while the log is away."""
    table = open_export(job, Environment())
    state = table.state()
    known = sorted({*job.table.all_types, *state.types})
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known) or f"its types are {', '.join(known)}"
            raise UserError(f"{job.name} has no type {name}", hint=hint)
    after = job.table.days.complete_after_seconds
    unseen, now_ms = table.finishing.unseen(state), int(table.environment.now() * MILLIS_PER_SECOND)
    return tuple(DayAnswer(state, name, day, after, now_ms, unseen[name, day]) for name in (wanted or known))
