"""What a running export reports: its events, the three monitoring rules of seed 000, and the metrics that follow.

The latest committed offset of a type is its position, the latest committable one that of its partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import partial

from penstock.events import Event, Interrupted, Level, RulesMeasured
from penstock.logs.log import Partition
from penstock.status.metrics import Add, Change, Metric, Put, PutAll
from penstock.tables.export.spec import AlertLimits
from penstock.tables.export.state import MILLIS_PER_SECOND, ExportState


class CatchUpPlanned(Event, name="catch-up planned"):
    types: Sequence[str]
    offsets: int


class TypeCannotBeWritten(Event, level=Level.ERROR):
    type: str
    reason: str


class TypeWrittenAgain(Event):
    type: str


class DayComplete(Event):
    type: str
    day: str


class DayOpenedAgain(Event):
    type: str
    day: str


class DayMarkerFailed(Interrupted, level=Level.WARNING): ...


class RecordsVanished(Event, level=Level.WARNING):
    records: int


class ExportRules(RulesMeasured, name=RulesMeasured.name):
    """What the rules measure, by partition or by type."""

    failed_writes_percent: Mapping[str, float] = field(default_factory=dict)
    """By type, since the process started; nothing before its first write."""
    lag_records: Mapping[str, int] = field(default_factory=dict)
    discrepancy_records: Mapping[str, int] = field(default_factory=dict)
    position: Mapping[str, int] = field(default_factory=dict)
    type_lag_records: Mapping[str, int] = field(default_factory=dict)
    watermark: Mapping[str, float] = field(default_factory=dict)
    """By type, in seconds since 1970."""


class Rule(StrEnum):
    FAILED_WRITES = "failed_writes"
    LAG = "lag"
    DISCREPANCY = "discrepancy"


Outcomes = Counter[tuple[str, bool]]
"""Writes of types to their final places, by type and whether they were done."""


def measure(
    state: ExportState, ends: Mapping[Partition, int | None], limits: AlertLimits, outcomes: Outcomes | None = None
) -> ExportRules:
    """Measure the started ones of these partitions, with the ends of the log where they are known, and all types."""
    writes = outcomes or Outcomes()
    position, lag, discrepancy = {}, {}, {}
    type_lag = dict.fromkeys(sorted(state.types), 0)
    for partition, end in sorted(ends.items()):
        counted = state.of(partition)
        if counted.position is None:
            continue
        position[str(partition)] = counted.position
        if end is not None:
            lag[str(partition)] = max(0, end - counted.position)
        gaps = {name: counted.position - (counted.position_of(name) or 0) for name in type_lag}
        discrepancy[str(partition)] = max(gaps.values(), default=0) - min(gaps.values(), default=0)
        type_lag = {name: max(most, gaps[name]) for name, most in type_lag.items()}
    counts = {name: (writes[name, False], writes[name, True] + writes[name, False]) for name in type_lag}
    percents = {name: 100.0 * failed / total for name, (failed, total) in counts.items() if total}
    marks = {name: mark for name in type_lag if (mark := state.watermark_of(name)) is not None}
    alerts: dict[str, list[str]] = {}

    def alert(rule: Rule, text: str, values: Mapping[str, float], limit: float | None) -> None:
        # Failures and lag have to be below their limits; a discrepancy may reach its own.
        at_limit = rule is not Rule.DISCREPANCY
        if limit is not None:
            beyond = {name: value for name, value in values.items() if value > limit or (at_limit and value == limit)}
            alerts[rule.value] = [text.format(name, value, limit) for name, value in beyond.items()]

    percent = "type {}: {:.1f} % of writes failed, the limit is {:g} %"
    alert(Rule.FAILED_WRITES, percent, percents, limits.failed_writes_percent_max)
    alert(Rule.LAG, "{}: {} records up to the end of the log, the limit is {}", lag, limits.lag_records_max)
    apart = "{}: its types are {} records apart, the limit is {}"
    alert(Rule.DISCREPANCY, apart, discrepancy, limits.discrepancy_records_max)
    return ExportRules(
        alerts=alerts,
        failed_writes_percent=percents,
        lag_records=lag,
        discrepancy_records=discrepancy,
        position=position,
        type_lag_records=type_lag,
        watermark={name: mark / MILLIS_PER_SECOND for name, mark in marks.items()},
    )


# metrics

_of_partition = partial(Metric, labels=("job", "partition"))
_of_type = partial(Metric, labels=("job", "type"))

POSITION = _of_partition(
    "penstock_position", "gauge", "The offset up to which the partition is read: the latest committable one."
)
LAG_RECORDS = _of_partition("penstock_lag_records", "gauge", "Offsets between the position and the end of the log.")
DISCREPANCY_RECORDS = _of_partition(
    "penstock_discrepancy_records", "gauge", "How far apart the types are; an up-to-date type is at the position."
)
FAILED_WRITES_PERCENT = _of_type(
    "penstock_failed_writes_percent", "gauge", "The share of a type's writes that failed since the process started."
)
ALERT = Metric(
    "penstock_alert", "gauge", "1 while a limit is exceeded; rule is failed_writes, lag or discrepancy.",
    ("job", "rule"),
)  # fmt: skip
TYPE_LAG_RECORDS = _of_type(
    "penstock_type_lag_records", "gauge", "The lag of a type, in offsets, in the partition where it is largest."
)
TYPE_WATERMARK = _of_type(
    "penstock_type_watermark_timestamp_seconds", "gauge", "Event time up to which a type is complete."
)
TYPE_FAILING = _of_type("penstock_type_failing", "gauge", "1 from a failed write of a type until it is written again.")
DAYS_COMPLETED = _of_type("penstock_days_completed_total", "counter", "Times a day became complete.")
DAYS_REOPENED = _of_type("penstock_days_reopened_total", "counter", "Times a complete day received late rows.")

METRICS = (
    POSITION, LAG_RECORDS, DISCREPANCY_RECORDS, FAILED_WRITES_PERCENT, ALERT, TYPE_LAG_RECORDS, TYPE_WATERMARK,
    TYPE_FAILING, DAYS_COMPLETED, DAYS_REOPENED,
)  # fmt: skip


def meter(event: Event) -> Iterator[Change]:
    """How the metrics follow from events."""
    match event:
        case DayComplete(name):
            yield Add(DAYS_COMPLETED, label=name)
        case DayOpenedAgain(name):
            yield Add(DAYS_REOPENED, label=name)
        case TypeCannotBeWritten(name):
            yield Put(TYPE_FAILING, 1, name)
        case TypeWrittenAgain(name):
            yield Put(TYPE_FAILING, 0, name)
        case ExportRules():
            yield PutAll(LAG_RECORDS, event.lag_records)
            yield PutAll(DISCREPANCY_RECORDS, event.discrepancy_records)
            yield PutAll(POSITION, event.position)
            yield PutAll(FAILED_WRITES_PERCENT, event.failed_writes_percent)
            yield PutAll(TYPE_LAG_RECORDS, event.type_lag_records)
            for name, watermark in event.watermark.items():
                yield Put(TYPE_WATERMARK, watermark, name)
            for rule, texts in event.alerts.items():
                yield Put(ALERT, 1 if texts else 0, rule)
