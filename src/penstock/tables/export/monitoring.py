"""What a running export reports: its events, the three monitoring rules of seed 000, and the metrics that follow.

The latest committed offset of a type is its position, the latest committable one that of its partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import partial
from operator import ge, gt

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
    """What the rules measure."""

    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The values of the metrics in `MEASURED`, without the prefix `penstock_`, by partition or by type."""


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
    types = sorted(state.types)
    states = {partition: state.of(partition) for partition in sorted(ends)}
    positions = {partition: held.position for partition, held in states.items() if held.position is not None}
    gaps = {
        partition: {name: position - (states[partition].position_of(name) or 0) for name in types}
        for partition, position in positions.items()
    }
    lags = {
        partition: end - positions[partition]
        for partition, end in ends.items()
        if end is not None and partition in positions
    }
    totals = {name: writes[name, False] + writes[name, True] for name in types}
    marks = {name: state.watermark_of(name) for name in types}
    measured: dict[str, dict[str, float]] = {
        "position": {str(partition): position for partition, position in positions.items()},
        "lag_records": {str(partition): max(0, lag) for partition, lag in lags.items()},
        "discrepancy_records": {
            str(partition): max(of_type.values(), default=0) - min(of_type.values(), default=0)
            for partition, of_type in gaps.items()
        },
        "failed_writes_percent": {name: 100.0 * writes[name, False] / total for name, total in totals.items() if total},
        "type_lag_records": {name: max((gap[name] for gap in gaps.values()), default=0) for name in types},
        "type_watermark_timestamp_seconds": {
            name: mark / MILLIS_PER_SECOND for name, mark in marks.items() if mark is not None
        },
    }
    # Failures and lag have to be below their limits; a discrepancy may reach its own.
    rules = (
        (Rule.FAILED_WRITES, "failed_writes_percent", limits.failed_writes_percent_max, ge,
         "type {}: {:.1f} % of writes failed, the limit is {:g} %"),
        (Rule.LAG, "lag_records", limits.lag_records_max, ge,
         "{}: {} records up to the end of the log, the limit is {}"),
        (Rule.DISCREPANCY, "discrepancy_records", limits.discrepancy_records_max, gt,
         "{}: its types are {} records apart, the limit is {}"),
    )  # fmt: skip
    alerts = {
        rule.value: [text.format(at, value, limit) for at, value in measured[name].items() if exceeds(value, limit)]
        for rule, name, limit, exceeds, text in rules
        if limit is not None
    }
    return ExportRules(alerts=alerts, measured=measured)


# metrics

_of_partition = partial(Metric, labels=("job", "partition"))
_of_type = partial(Metric, labels=("job", "type"))

MEASURED = (
    _of_partition(
        "penstock_position", "gauge", "The offset up to which the partition is read: the latest committable one."
    ),
    _of_partition("penstock_lag_records", "gauge", "Offsets between the position and the end of the log."),
    _of_partition(
        "penstock_discrepancy_records", "gauge", "How far apart the types are; an up-to-date type is at the position."
    ),
    _of_type(
        "penstock_failed_writes_percent", "gauge", "The share of a type's writes that failed since the process started."
    ),
    _of_type(
        "penstock_type_lag_records", "gauge", "The lag of a type, in offsets, in the partition where it is largest."
    ),
    _of_type("penstock_type_watermark_timestamp_seconds", "gauge", "Event time up to which a type is complete."),
)
ALERT = Metric(
    "penstock_alert", "gauge", "1 while a limit is exceeded; rule is failed_writes, lag or discrepancy.",
    ("job", "rule"),
)  # fmt: skip
TYPE_FAILING = _of_type("penstock_type_failing", "gauge", "1 from a failed write of a type until it is written again.")
DAYS_COMPLETED = _of_type("penstock_days_completed_total", "counter", "Times a day became complete.")
DAYS_REOPENED = _of_type("penstock_days_reopened_total", "counter", "Times a complete day received late rows.")
METRICS = (*MEASURED, ALERT, TYPE_FAILING, DAYS_COMPLETED, DAYS_REOPENED)


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
            for metric in MEASURED:
                yield PutAll(metric, event.measured.get(metric.name.removeprefix("penstock_"), {}))
            for rule, texts in event.alerts.items():
                yield Put(ALERT, 1 if texts else 0, rule)
