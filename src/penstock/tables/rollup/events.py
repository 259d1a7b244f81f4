"""What a running rollup tells beside the events of every job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from penstock.events import Event, Level


class WindowsClosed(Event):
    """A close is complete; figures are of the portions that this process landed."""

    close: int
    rows: int
    updated: int
    """Rows of windows that were closed before."""
    late: Mapping[str, int]
    """Points by interval."""
    seconds: float
    until: float
    """Windows that end at or before this instant are closed."""

    def in_short(self) -> str:
        return f"{self.name} until {datetime.fromtimestamp(self.until, UTC):%Y-%m-%d %H:%M:%SZ}"


class PartialsCleaned(Event):
    files: int
    points: int


class PartialsMerged(Event):
    files_before: int
    files_after: int


class WindowsPublished(Event):
    rows: int
    topic: str

    def in_short(self) -> str:
        return f"{self.rows:,} {self.name}"


class PublishPositionLost(Event, level=Level.WARNING):
    """A bucket goes on where the table noted it last, since its position is gone: rows of a close may come twice."""

    bucket: int
    close: int


class PublisherFenced(Event):
    """Another process publishes a bucket of this one: its claim has moved."""

    bucket: int
    reason: str
