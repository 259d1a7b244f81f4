"""Events of a running rollup, and the metrics that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.events import Event, Level
from penstock.reporting.metrics import Add, Change, Metric, Put, PutAll


class WindowsClosed(Event):
    """A close is complete."""

    close: int
    rows: int
    updated: int
    """Rows of windows that were closed before."""
    late: Mapping[str, int]
    """Points by interval."""
    seconds: float
    until: float
    """Windows that end at or before this instant are closed."""


class WatermarkMeasured(Event, level=Level.DEBUG):
    """By the process that closes windows, every few seconds."""

    at: float | None
    """None while it is not known."""
    open: Mapping[str, int]
    """Windows by interval."""


class WindowsPublished(Event):
    rows: int
    topic: str


class PublisherFenced(Event):
    """Another process publishes a bucket of this one: its claim has moved."""

    bucket: int
    reason: str


CLOSES = Metric("penstock_closes_total", "counter", "Closes that were completed.")
WINDOWS_CLOSED = Metric("penstock_windows_closed_total", "counter", "Rows of closed windows that were written.")
WINDOWS_UPDATED = Metric("penstock_windows_updated_total", "counter", "Rows of windows that late points corrected.")
LATE_POINTS = Metric(
    "penstock_late_points_total", "counter", "Points that came after the close of their window.", ("job", "interval")
)
CLOSED_UNTIL = Metric(
    "penstock_closed_until_timestamp_seconds", "gauge", "Windows that end at or before it are closed; never decreases."
)
CLOSE_SECONDS = Metric("penstock_close_seconds", "histogram", "How long the work of a close took.")
WINDOWS_PUBLISHED = Metric("penstock_windows_published_total", "counter", "Rows that were published to a topic.")
WATERMARK_AT = Metric(
    "penstock_watermark_timestamp_seconds", "gauge", "Up to which event time records are taken to have arrived."
)
OPEN_WINDOWS = Metric("penstock_open_windows", "gauge", "Windows with points that are not closed.", ("job", "interval"))
METRICS = (
    CLOSES, WINDOWS_CLOSED, WINDOWS_UPDATED, LATE_POINTS, CLOSED_UNTIL, WATERMARK_AT, OPEN_WINDOWS, CLOSE_SECONDS,
    WINDOWS_PUBLISHED,
)  # fmt: skip


def metric_changes(event: Event) -> Iterator[Change]:
    match event:
        case WindowsClosed():
            yield Add(CLOSES)
            yield Add(WINDOWS_CLOSED, event.rows)
            yield Add(WINDOWS_UPDATED, event.updated)
            yield Put(CLOSE_SECONDS, event.seconds)
            yield Put(CLOSED_UNTIL, event.until)
            for interval, points in event.late.items():
                yield Add(LATE_POINTS, points, interval)
        case WatermarkMeasured(at, windows):
            if at is not None:
                yield Put(WATERMARK_AT, at)
            yield PutAll(OPEN_WINDOWS, windows)
        case WindowsPublished():
            yield Add(WINDOWS_PUBLISHED, event.rows)
