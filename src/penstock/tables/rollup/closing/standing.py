"""How far the closes of a job have come: the numbers that the tables of partials and of closed windows keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import UserError
from penstock.tables.rollup.partials.schema import (
    cleaned_key,
    close_key,
    portions_key,
    until_key,
    watermark_key,
)

LEAST_MS = -(2**52)
"""Before all event times."""


def closed_key(job: str) -> str:
    """In the table of closed windows: the number of closes that are complete."""
    return f"{job}#closed"


def closed_until_key(job: str) -> str:
    """The windows that end at or before this instant are closed, in milliseconds."""
    return f"{job}#closed_until"


def closed_portions_key(job: str) -> str:
    """How many portions of the close after those are there."""
    return f"{job}#closed_portions"


def late_key(job: str, interval: str) -> str:
    """The points that came too late for their window of an interval."""
    return f"{job}#late/{interval}"


def since_key(job: str, interval: str) -> str:
    """The close since which an interval has taken part in every one."""
    return f"{job}#since/{interval}"


def joined_key(job: str, interval: str) -> str:
    """The last close that an interval took part in."""
    return f"{job}#joined/{interval}"


def updated_key(job: str) -> str:
    """The rows that late points replaced or added."""
    return f"{job}#updated"


@dataclass(frozen=True, slots=True)
class Standing:
    """Close `closed` is complete; if `close` is one more, it is begun and `closed_portions` of it are there."""

    close: int = 0
    until_ms: int = LEAST_MS
    watermark_ms: int | None = None
    portions: int = 1
    cleaned_ms: int = LEAST_MS
    closed: int = 0
    closed_until_ms: int = LEAST_MS
    closed_portions: int = 0
    joined: frozenset[str] = frozenset()
    """The intervals that take part in the close that is begun, once a portion of it is there."""


def standing_of(job: str, partials: Mapping[str, int], windows: Mapping[str, int]) -> Standing:
    """From the app transactions of both tables."""
    close, head = partials.get(close_key(job), 0), joined_key(job, "")
    return Standing(
        close=close,
        until_ms=partials.get(until_key(job), LEAST_MS),
        watermark_ms=partials.get(watermark_key(job)),
        portions=partials.get(portions_key(job), 1),
        cleaned_ms=partials.get(cleaned_key(job), LEAST_MS),
        closed=windows.get(closed_key(job), 0),
        closed_until_ms=windows.get(closed_until_key(job), LEAST_MS),
        closed_portions=windows.get(closed_portions_key(job), 0),
        joined=frozenset(
            key.removeprefix(head) for key, last in windows.items() if key.startswith(head) and last == close
        ),
    )


def refuse_apart(standing: Standing, partials_path: str, windows_path: str) -> None:
    """The two tables belong together: one that was deleted alone cannot be made up from the other."""
    if standing.close - 1 <= standing.closed <= standing.close:
        return
    raise UserError(
        f"the tables at {partials_path} and {windows_path} do not belong together",
        detail=f"{standing.close} closes were begun by the first, {standing.closed} completed by the second",
        hint="was one of them deleted, moved or restored? Restore it, or delete both and start from the log",
    )
