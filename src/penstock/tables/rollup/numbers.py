"""The numbers that both tables of a rollup store as app transactions, and the state of closes in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.errors import UserError
from penstock.lake.delta.opening import is_unused
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, DeltaLog

LEAST_MS = -(2**52)
"""Before all event times."""

# In the table of partials. Instants are in milliseconds.
INTERVAL = "interval"
"""By interval: its length, fixed when the table is created."""
WINDOWS_ID = "windows"
"""The fingerprint of the table of closed windows, fixed when both tables exist."""
CLOSE = "close"
"""The number of the last close that was begun (RULES W2)."""
UNTIL = "until"
"""The windows that end at or before this instant are closed by that close."""
WATERMARK = "watermark"
CLEANED = "cleaned"
"""The windows that end at or before this instant may have lost partials."""
POINTS_REMOVED = "points_removed"
"""The points whose partials were removed."""

# In the table of closed windows.
CLOSED = "closed"
"""The number of the last close that is complete."""
CLOSED_UNTIL = "closed_until"
"""The windows that end at or before this instant are closed."""
LATE = "late"
"""By interval: the points that came too late for their window."""
UPDATED = "updated"
"""The rows that late points replaced or added."""
PUBLISH_BUCKETS = "publish_buckets"
"""The number of publish buckets, fixed when publishing starts."""
PUBLISHED = "published"
"""By publish bucket: the last close whose rows are all in the topic; it may lag."""


def number_key(job: str, name: str, of: str | int | None = None) -> str:
    """The app transaction of a number; `of`: the interval or publish bucket, for numbers that exist per item."""
    return f"{job}#{name}" if of is None else f"{job}#{name}/{of}"


def number_of(table: DeltaLog, name: str, of: str | int | None = None) -> int:
    """The number in the loaded version; 0 if there is none."""
    return table.transaction(number_key(table.job, name, of)) or 0


def keep_numbers(
    table: DeltaLog, head: str, stated: Mapping[str, int], check: Callable[[], None] = lambda: None
) -> Mapping[str, int]:
    """Commit numbers that never change, unless the table has numbers whose keys begin with `head`; returns these.

    Those of a table that nothing was read into are replaced. `check` may raise an error for the loaded version.
    """

    def kept() -> Mapping[str, int]:
        return {key: number for key, number in table.transactions().items() if number and key.startswith(head)}

    def decide() -> Change | None:
        check()
        before = kept()
        if before and (before == stated or not is_unused(table)):
            return None
        return Change([], {**dict.fromkeys(before, 0), **stated}, Provenance(kind="windows", job=table.job).metadata)

    table.swap(decide)
    return kept()


@dataclass(frozen=True, slots=True)
class CloseState:
    """Close `closed` is complete; if `close` is one more, it is under way."""

    close: int = 0
    until_ms: int = LEAST_MS
    watermark_ms: int | None = None
    cleaned_ms: int = LEAST_MS
    closed: int = 0
    closed_until_ms: int = LEAST_MS

    @property
    def under_way(self) -> bool:
        return self.close > self.closed


def close_state(job: str, partials: Mapping[str, int], windows: Mapping[str, int]) -> CloseState:
    """From the app transactions of both tables."""
    return CloseState(
        close=partials.get(number_key(job, CLOSE), 0),
        until_ms=partials.get(number_key(job, UNTIL), LEAST_MS),
        watermark_ms=partials.get(number_key(job, WATERMARK)),
        cleaned_ms=partials.get(number_key(job, CLEANED), LEAST_MS),
        closed=windows.get(number_key(job, CLOSED), 0),
        closed_until_ms=windows.get(number_key(job, CLOSED_UNTIL), LEAST_MS),
    )


def refuse_apart(state: CloseState, partials_path: str, windows_path: str) -> None:
    """Refuse tables if one was deleted or restored alone: removed partials cannot be closed again."""
    if state.close - 1 <= state.closed <= state.close and state.cleaned_ms <= state.closed_until_ms:
        return
    raise UserError(
        f"the tables at {partials_path} and {windows_path} do not belong together",
        detail=f"{state.close} closes were begun by the first, {state.closed} completed by the second",
        hint="was one of them deleted, moved or restored? Restore it, or delete both and start from the log",
    )
