"""The metrics that only exports have, and how they follow from events."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from penstock.events import Event
from penstock.status.metrics import Add, Change, Metric, Put, PutAll
from penstock.tables.export import events

_of_partition = partial(Metric, labels=("job", "partition"))
_of_type = partial(Metric, labels=("job", "type"))

POSITION = _of_partition(
    "penstock_position", "gauge", "The offset up to which the partition is read: the latest committable one."
)
GLOBAL_POSITION = _of_partition("penstock_global_position", "gauge", "The offset below which every type is written.")
LAG_RECORDS = _of_partition("penstock_lag_records", "gauge", "Offsets between the position and the end of the log.")
DISCREPANCY_RECORDS = _of_partition(
    "penstock_discrepancy_records", "gauge", "How far apart the types are; an up-to-date type is at the position."
)
FAILED_WRITES_PERCENT = _of_type(
    "penstock_failed_writes_percent",
    "gauge",
    "The share of a type's writes that failed since the process started.",
)
FAILED_WRITES_ALL_PERCENT = Metric(
    "penstock_failed_writes_all_percent", "gauge", "The same share over all types together."
)
ALERT = Metric(
    "penstock_alert", "gauge", "1 while a limit is exceeded; rule is failed_writes, lag or discrepancy.",
    ("job", "rule"),
)  # fmt: skip
TYPE_LAG_RECORDS = _of_type(
    "penstock_type_lag_records", "gauge", "The lag of a type, in offsets, in the partition where it is largest."
)
TYPE_WATERMARK = _of_type(
    "penstock_type_watermark_timestamp_seconds", "gauge", "Event time up to which a type is complete; never decreases."
)
TYPE_FAILING = _of_type("penstock_type_failing", "gauge", "1 from a failed write of a type until it is written again.")
TYPE_FAILURES = _of_type(
    "penstock_type_failures_total", "counter", "Times a type could not be written for a new reason."
)
DAYS_COMPLETED = _of_type("penstock_days_completed_total", "counter", "Days that became complete.")
DAYS_REOPENED = _of_type("penstock_days_reopened_total", "counter", "Complete days that received late rows.")
DAY_MARKER_FAILURES = Metric(
    "penstock_day_marker_failures_total", "counter", "Times a day's marker file could not be written."
)

METRICS = (
    POSITION, GLOBAL_POSITION, LAG_RECORDS, DISCREPANCY_RECORDS, FAILED_WRITES_PERCENT, FAILED_WRITES_ALL_PERCENT,
    ALERT, TYPE_LAG_RECORDS, TYPE_WATERMARK, TYPE_FAILING, TYPE_FAILURES, DAYS_COMPLETED, DAYS_REOPENED,
    DAY_MARKER_FAILURES,
)  # fmt: skip


class ExportMeter:
    def __init__(self) -> None:
        self._watermarks: dict[str, float] = {}
        self._days: dict[tuple[str, str], Metric] = {}

    def __call__(self, event: Event) -> Iterator[Change]:
        match event:
            case events.DayMarkerFailed():
                yield Add(DAY_MARKER_FAILURES)
            case events.DayComplete(name, day):
                yield from self._day(DAYS_COMPLETED, name, day)
            case events.DayOpenedAgain(name, day):
                yield from self._day(DAYS_REOPENED, name, day)
            case events.TypeCannotBeWritten(name) | events.TypeStoppedByAGap(name):
                yield Put(TYPE_FAILING, 1, name)
                yield Add(TYPE_FAILURES, 1, name)
            case events.TypeWrittenAgain(name):
                yield Put(TYPE_FAILING, 0, name)
                yield Add(TYPE_FAILURES, 0, name)
            case events.ExportRules():
                yield from self._rules(event)

    def _day(self, metric: Metric, name: str, day: str) -> Iterator[Change]:
        """A marker that is put back is reported once more: a day counts when it changes."""
        if self._days.get((name, day)) is not metric:
            self._days[name, day] = metric
            yield Add(metric, label=name)

    def _rules(self, rules: events.ExportRules) -> Iterator[Change]:
        yield PutAll(LAG_RECORDS, rules.lag_records)
        yield PutAll(DISCREPANCY_RECORDS, rules.discrepancy_records)
        yield PutAll(POSITION, rules.position)
        yield PutAll(GLOBAL_POSITION, rules.global_position)
        yield PutAll(FAILED_WRITES_PERCENT, rules.failed_writes_percent_by_type)
        yield PutAll(TYPE_LAG_RECORDS, rules.type_lag_records)
        if rules.failed_writes_percent is not None:
            yield Put(FAILED_WRITES_ALL_PERCENT, rules.failed_writes_percent)
        for rule, texts in rules.alerts.items():
            yield Put(ALERT, 1 if texts else 0, rule)
        for name, watermark in rules.watermark.items():
            self._watermarks[name] = max(self._watermarks.get(name, 0.0), watermark)
            yield Put(TYPE_WATERMARK, self._watermarks[name], name)
