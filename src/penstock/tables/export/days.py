"""Which days of a type are complete: pure rules over watermarks.

A type's log keeps every day that has rows (`<job>#day/<day>`), with the watermark at which rows came to it after it
was complete, or 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta

from penstock.tables.export.names import Day
from penstock.tables.export.state import MILLIS_PER_SECOND

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


def open_days(days: Days, mark_ms: int | None, after_seconds: float) -> list[Day]:
    """The days that are not complete at a watermark."""
    return sorted(
        day for day, late_ms in days.items() if mark_ms is None or mark_ms < needed_ms(day, late_ms, after_seconds)
    )


def next_boundary_ms(mark: int | None, now_ms: int, after_seconds: float, late: Iterable[int] = ()) -> int | None:
    """The latest instant up to now at which a day becomes complete, if the watermark has not reached it yet.

    That is some time after a midnight, or as long after one of `late`, the watermarks at which late rows came.
    """
    margin = int(after_seconds * MILLIS_PER_SECOND)
    day = datetime.fromtimestamp((now_ms - margin) / MILLIS_PER_SECOND, UTC).date()
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * MILLIS_PER_SECOND
    boundary = max(instant + margin for instant in (midnight, *late) if instant + margin <= now_ms)
    return boundary if mark is None or mark < boundary else None


def instant(millis: int | None) -> str | None:
    """Event time for people: UTC, to the second."""
    if millis is None:
        return None
    return datetime.fromtimestamp(millis / MILLIS_PER_SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
