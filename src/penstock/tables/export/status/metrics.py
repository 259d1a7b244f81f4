"""The metrics that only exports have, and how they follow from events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.events import RULES_EVENT
from penstock.status.metrics import Add, Change, Metric, Put, PutAll, mapping, number, numbers

POSITION = Metric(
    "penstock_position", "gauge", "The offset up to which the partition is read: the latest committable one.",
    ("job", "partition"),
)  # fmt: skip
GLOBAL_POSITION = Metric(
    "penstock_global_position", "gauge", "The offset below which every type is written.", ("job", "partition")
)
LAG_RECORDS = Metric(
    "penstock_lag_records", "gauge", "Offsets between the position and the end of the log.", ("job", "partition")
)
DISCREPANCY_RECORDS = Metric(
    "penstock_discrepancy_records", "gauge", "How far apart the types are; an up-to-date type is at the position.",
    ("job", "partition"),
)  # fmt: skip
FAILED_WRITES_PERCENT = Metric(
    "penstock_failed_writes_percent", "gauge", "The share of the last writes of a type to its final place that failed.",
    ("job", "type"),
)  # fmt: skip
FAILED_WRITES_ALL_PERCENT = Metric(
    "penstock_failed_writes_all_percent", "gauge", "The same share over all types together."
)
ALERT = Metric(
    "penstock_alert", "gauge", "1 while a limit is exceeded; rule is failed_writes, lag, discrepancy or retention.",
    ("job", "rule"),
)  # fmt: skip
TYPE_BEHIND_RECORDS = Metric(
    "penstock_type_behind_records", "gauge", "The lag of a type, in offsets, in the partition where it is largest.",
    ("job", "type"),
)  # fmt: skip
TYPE_WATERMARK = Metric(
    "penstock_type_watermark_timestamp_seconds", "gauge", "Event time up to which a type is complete; never decreases.",
    ("job", "type"),
)  # fmt: skip
TYPE_FAILING = Metric(
    "penstock_type_failing", "gauge", "1 from a failed write of a type until it is written again.",
    ("job", "type"),
)  # fmt: skip
TYPE_FAILURES = Metric(
    "penstock_type_failures_total", "counter", "Times a type could not be written for a new reason.",
    ("job", "type"),
)  # fmt: skip
DAYS_COMPLETED = Metric("penstock_days_completed_total", "counter", "Days that became complete.", ("job", "type"))
DAYS_REOPENED = Metric(
    "penstock_days_reopened_total", "counter", "Complete days that received late rows.", ("job", "type")
)
DAY_MARKER_FAILURES = Metric(
    "penstock_day_marker_failures_total", "counter", "Times a day's marker file could not be written."
)

METRICS = (
    POSITION, GLOBAL_POSITION, LAG_RECORDS, DISCREPANCY_RECORDS, FAILED_WRITES_PERCENT, FAILED_WRITES_ALL_PERCENT,
    ALERT, TYPE_BEHIND_RECORDS, TYPE_WATERMARK, TYPE_FAILING, TYPE_FAILURES, DAYS_COMPLETED, DAYS_REOPENED,
    DAY_MARKER_FAILURES,
)  # fmt: skip

_DAYS = {"day complete": DAYS_COMPLETED, "day opened again": DAYS_REOPENED}
_FAILING = {"type cannot be written": 1, "type stopped by a gap": 1, "type written again": 0}
_MEASURED = {
    "lag_records": LAG_RECORDS,
    "discrepancy_records": DISCREPANCY_RECORDS,
    "position": POSITION,
    "global_position": GLOBAL_POSITION,
    "failed_writes_percent_by_type": FAILED_WRITES_PERCENT,
    "behind_records": TYPE_BEHIND_RECORDS,
}
"""Fields of the rules' event whose keys are a partition or a type."""


class ExportMeter:
    """Follows the events of one export."""

    def __init__(self) -> None:
        self._watermarks: dict[str, float] = {}
        self._days: dict[tuple[str, str], Metric] = {}

    def __call__(self, name: str, fields: Mapping[str, object]) -> Iterator[Change]:
        if name == "day marker failed":
            yield Add(DAY_MARKER_FAILURES)
        elif name in _DAYS:
            yield from self._day(_DAYS[name], str(fields["type"]), str(fields["day"]))
        elif name in _FAILING:
            yield Put(TYPE_FAILING, _FAILING[name], str(fields["type"]))
            yield Add(TYPE_FAILURES, _FAILING[name], str(fields["type"]))
        elif name == RULES_EVENT:
            yield from self._rules(fields)

    def _day(self, metric: Metric, name: str, day: str) -> Iterator[Change]:
        """A job that begins anew tells its last days once more: a day counts when it changes."""
        if self._days.get((name, day)) is not metric:
            self._days[name, day] = metric
            yield Add(metric, label=name)

    def _rules(self, fields: Mapping[str, object]) -> Iterator[Change]:
        for name, metric in _MEASURED.items():
            yield PutAll(metric, numbers(fields.get(name)))
        if fields.get("failed_writes_percent") is not None:
            yield Put(FAILED_WRITES_ALL_PERCENT, number(fields["failed_writes_percent"]))
        for rule, texts in mapping(fields.get("alerts")).items():
            yield Put(ALERT, 1 if texts else 0, rule)
        for name, watermark in numbers(fields.get("watermark")).items():
            self._watermarks[name] = max(self._watermarks.get(name, 0.0), watermark)
            yield Put(TYPE_WATERMARK, self._watermarks[name], name)
