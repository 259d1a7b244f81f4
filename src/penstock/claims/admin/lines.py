"""The lines of a group's history, as values for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.claims.protocol.state import Span
from penstock.logs.log import Partition


class Change(StrEnum):
    """What a line of the history reports."""

    JOINED = "joined"
    LEFT = "left"
    SILENT = "silent"
    """Silent for so long that all it held is free."""
    FORGOTTEN = "forgotten"
    HELD_BEFORE = "held before"
    """Already owned in the first records that were read; the claim itself is no longer in the log."""
    CLAIMED = "claimed"
    TAKEN_OVER = "taken over"
    RESTARTED = "restarted"
    """A new process with the same client id took its claim back."""
    RELEASED = "released"
    REFUSED = "refused"
    SOUGHT = "sought"
    PAUSED = "paused"
    RESUMED = "resumed"
    SHARED = "shared"
    UNSHARED = "unshared"
    RANGE_CLAIMED = "range claimed"
    RANGE_TAKEN_OVER = "range taken over"
    RANGE_FINISHED = "range finished"
    RANGE_RETURNED = "range returned"
    RANGE_GIVEN_UP = "range given up"
    BALANCED = "balanced"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One change. Instants are append times of the broker, in seconds since 1970; None and "" mean: does not apply."""

    change: Change
    at: float
    place: int
    offset: int
    who: str = ""
    partition: Partition | None = None
    token: int | None = None
    position: int | None = None
    """Where the owner starts, or where it stops."""
    before: str = ""
    """The previous owner, or previous holder of the range."""
    silent_seconds: float | None = None
    """How long the previous one had been silent."""
    reason: str = ""
    record: str = ""
    """The kind of a refused record."""
    start: int | None = None
    end: int | None = None
    attempts: int | None = None
    given_up: tuple[Span, ...] = ()
    """Offsets that this change gave up for good: claimed at most once and never reported as processed."""
    pause_id: str = ""
    until_at: float | None = None
    heartbeats: int = 0
    last_at: float | None = None
    last_position: int | None = None
    claimed_end: int | None = None
    """Everything below was claimed for processing at most once."""
    ended: str = ""
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class HistoryStart:
    """Where the history starts, if not at the first record of its coordination partition."""

    place: int
    offset: int


@dataclass(frozen=True, slots=True)
class History:
    """Lines in the order of the log; `records` is how many were read."""

    lines: tuple[Line, ...]
    starts: tuple[HistoryStart, ...] = ()
    records: int = 0
