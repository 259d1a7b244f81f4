"""What a running export reports: its events, its monitoring rules of seed 000, and the metrics that follow.

The third rule, lag, is one of every kind of table. The latest committed offset of a type is its position, the latest
committable one that of its partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from functools import partial
from operator import ge, gt

from penstock.events import Event, Interrupted, Level, RulesMeasured
from penstock.job.spec import AlertLimits
from penstock.logs.log import Partition
from penstock.reporting.metrics import Add, Change, Metric, Put, PutAll
from penstock.tables.export.state import ExportState


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


class ExportAlert(StrEnum):
    """The alerts that only exports have; those of the three rules have metrics."""

    FAILED_WRITES = "failed_writes"
    DISCREPANCY = "discrepancy"
    TYPE_LAGGING = "type lagging"


Outcomes = Counter[tuple[str, bool]]
"""Writes of types to their final places, by type and whether they were done."""


def measure(
    state: ExportState, partitions: Iterable[Partition], limits: AlertLimits, outcomes: Outcomes | None = None
) -> ExportRules:
    """Measure the started ones of these partitions, and all types."""
    writes, types = outcomes or Outcomes(), sorted(state.types)
    totals = {name: writes[name, False] + writes[name, True] for name in types}
    gaps: dict[str, list[int]] = {}
    """How far each type is behind its partition."""
    for partition in sorted(partitions):
        held = state.of(partition)
        if held.position is not None:
            gaps[str(partition)] = [held.position - (held.position_of(name) or 0) for name in types]
    measured: dict[str, dict[str, float]] = {
        "discrepancy_records": {
            at: max(of_types, default=0) - min(of_types, default=0) for at, of_types in gaps.items()
        },
        "failed_writes_percent": {name: 100.0 * writes[name, False] / total for name, total in totals.items() if total},
        "type_lag_records": {
            name: max((of_types[index] for of_types in gaps.values()), default=0) for index, name in enumerate(types)
        },
    }
    # Failures have to be below their limit; a discrepancy may reach its own.
    rules = (
        (ExportAlert.FAILED_WRITES, "failed_writes_percent", limits.failed_writes_percent_max, ge,
         "type {}: {:.1f} % of writes failed, the limit is {:g} %"),
        (ExportAlert.DISCREPANCY, "discrepancy_records", limits.discrepancy_records_max, gt,
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
        "penstock_discrepancy_records", "gauge", "How far apart the types are; an up-to-date type is at the position."
    ),
    _of_type(
        "penstock_failed_writes_percent", "gauge", "The share of a type's writes that failed since the process started."
    ),
    _of_type(
        "penstock_type_lag_records", "gauge", "The lag of a type, in offsets, in the partition where it is largest."
    ),
    _of_type(
        "penstock_type_watermark_timestamp_seconds", "gauge", "Up to which event time the type's records have arrived."
    ),
)
TYPE_FAILING = _of_type("penstock_type_failing", "gauge", "1 from a failed write of a type until it is written again.")
DAYS_REOPENED = Metric("penstock_days_reopened_total", "counter", "Times late rows opened a complete day again.")
METRICS = (*MEASURED, TYPE_FAILING, DAYS_REOPENED)


def meter(event: Event) -> Iterator[Change]:
    """How the metrics follow from events."""
    match event:
        case TypeCannotBeWritten(name):
            yield Put(TYPE_FAILING, 1, name)
        case TypeWrittenAgain(name):
            yield Put(TYPE_FAILING, 0, name)
        case ExportRules():
            for metric in MEASURED:
                yield PutAll(metric, event.measured.get(metric.name.removeprefix("penstock_"), {}))
        case DayOpenedAgain():
            yield Add(DAYS_REOPENED)
