"""Which days of a type are complete: a pure reading of watermarks, and what late rows do to it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from penstock.tables.export.ledger.entry import ReplayRecord, SliceRecord
from penstock.tables.export.ledger.state import Day, LedgerState, TypeDay

MILLIS_PER_SECOND = 1000


def watermark_of(state: LedgerState, name: str, now_ms: int | None = None) -> int | None:
    """The event time up to which a type is complete: the least over all partitions; None while one has none.

    With `now_ms` it is not beyond that: a process whose clock was ahead may have left watermarks of the future.
    """
    marks = [here.watermark_of(name) for _, here in state.current() if here.position is not None]
    known = [mark for mark in marks if mark is not None]
    if not marks or len(known) < len(marks) or name in state.pending_types():
        return None
    return min(known) if now_ms is None else min(*known, now_ms)


def end_ms(day: Day) -> int:
    """The instant at which a UTC day is over."""
    after = date.fromisoformat(day) + timedelta(days=1)
    return int(datetime(after.year, after.month, after.day, tzinfo=UTC).timestamp()) * MILLIS_PER_SECOND


def is_complete(state: LedgerState, name: str, day: Day, after_seconds: float, now_ms: int | None = None) -> bool:
    """Whether no more rows of that day are expected: the watermark is past its end, and past its last late row."""
    mark = watermark_of(state, name, now_ms)
    if mark is None:
        return False
    margin = int(after_seconds * MILLIS_PER_SECOND)
    reopened_at = state.reopened.get((name, day))
    return mark >= end_ms(day) + margin and (reopened_at is None or mark >= reopened_at + margin)


def reopened_by(
    writers: Iterable[SliceRecord | ReplayRecord], state: LedgerState, after_seconds: float, now_ms: int | None = None
) -> dict[TypeDay, int]:
    """The days that were complete and get rows by these slices or by a replay, with the watermark of now."""
    found: dict[TypeDay, int] = {}
    for each in writers:
        for name, written in each.written.items():
            for day in written.days:
                mark = watermark_of(state, name, now_ms)
                late = is_complete(state, name, day, after_seconds, now_ms) or (name, day) in state.reopened
                if late and mark is not None:
                    found[name, day] = mark
    return found


def closable(state: LedgerState, after_seconds: float, now_ms: int | None = None) -> tuple[TypeDay, ...]:
    """The open days that are complete in this state."""
    return tuple(sorted(each for each in state.open_days if is_complete(state, *each, after_seconds, now_ms)))


def next_boundary_ms(mark: int | None, now_ms: int, after_seconds: float, reopened: Iterable[int] = ()) -> int | None:
    """The latest instant up to now at which a day becomes complete, if the watermark has not reached it yet.

    That is some time after a midnight, or as long after one of `reopened`, the watermarks at which late rows came.
    """
    margin = int(after_seconds * MILLIS_PER_SECOND)
    day = datetime.fromtimestamp((now_ms - margin) / MILLIS_PER_SECOND, UTC).date()
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * MILLIS_PER_SECOND
    boundary = max(each + margin for each in (midnight, *reopened) if each + margin <= now_ms)
    return boundary if mark is None or mark < boundary else None
