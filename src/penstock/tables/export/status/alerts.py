"""The monitoring rules, as pure functions: three of seed 000, and that no record waits until the log lets go of it.

The latest committed offset of a type is its position, the latest committable one that of its partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import ge, gt
from typing import Any

from penstock.logs.log import Partition
from penstock.status.model import Alert
from penstock.tables.export.events import ExportRules
from penstock.tables.export.spec import AlertLimits
from penstock.tables.export.state import MILLIS_PER_SECOND, ExportState, TypeState

Offsets = Mapping[Partition, int]


class Rule(StrEnum):
    FAILED_WRITES = "failed_writes"
    LAG = "lag"
    DISCREPANCY = "discrepancy"
    RETENTION = "retention"


KEYS = {
    Rule.FAILED_WRITES: "failed_writes_percent",
    Rule.LAG: "lag_records",
    Rule.DISCREPANCY: "discrepancy_records",
    Rule.RETENTION: "retention_percent",
}
"""What each rule limits."""
_TEXTS = {
    Rule.FAILED_WRITES: "type {}: {:.1f} % of the last writes failed, the limit is {:g} %",
    Rule.LAG: "{}: {:g} records up to the end of the log, the limit is {:g}",
    Rule.DISCREPANCY: "{}: its types are {:g} records apart, the limit is {:g}",
    Rule.RETENTION: "type {0[1]} in {0[0]}: {1:g} records wait, {2:g} % of the topic's retention is over",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What the rules look at. A type that was never written, and a partition without a position, are absent."""

    failed_writes_percent: float | None = None
    """Of all types together; None before the first write."""
    failed_writes_percent_by_type: Mapping[str, float] = field(default_factory=dict)
    lag_records: Mapping[Partition, int] = field(default_factory=dict)
    discrepancy_records: Mapping[Partition, int] = field(default_factory=dict)
    expiring_records: Mapping[tuple[Partition, str], int] = field(default_factory=dict)
    """By partition and type: records that wait, the oldest of them for more of the topic's retention than allowed."""


def measure(state: ExportState, partitions: Iterable[Partition], ends: Offsets, expiring: Offsets) -> Measured:
    """Measure these partitions and all types; `ends` are where the log ends, as far as it is known.

    `expiring` are the offsets below which records have used up what they may of their retention.
    """
    percents = {name: failed_percent([kind]) for name, kind in state.types.items()}
    heads = {each: head for each in partitions if (head := state.of(each).position) is not None}
    return Measured(
        failed_writes_percent=failed_percent(state.types.values()),
        failed_writes_percent_by_type={name: percent for name, percent in percents.items() if percent is not None},
        lag_records={each: max(0, ends[each] - head) for each, head in heads.items() if each in ends},
        discrepancy_records={each: discrepancy(state, each) for each in heads},
        expiring_records={
            (each, name): lag.deferred
            for each, offset in expiring.items()
            for name, lag in sorted(state.of(each).lags.items())
            if lag.position < offset
        },
    )


def failed_percent(types: Iterable[TypeState]) -> float | None:
    """The share of the last writes of types that failed; None if there was none."""
    known = list(types)
    writes = sum(kind.writes for kind in known)
    return 100.0 * sum(kind.failed for kind in known) / writes if writes else None


def discrepancy(state: ExportState, partition: Partition) -> int:
    """How far the types of a partition are apart; a type of which nothing is unwritten is where the partition is."""
    gaps = [gap_records(state, partition, name) for name in state.types]
    return max(gaps) - min(gaps) if gaps else 0


def gap_records(state: ExportState, partition: Partition, name: str) -> int:
    """How many offsets lie between a type and its partition."""
    here = state.of(partition)
    return (here.position or 0) - (here.position_of(name) or 0)


def breaches(found: Measured, limits: AlertLimits) -> Iterator[Alert]:
    """Where a rule does not hold: failures and lag have to be below their limits, a discrepancy may reach its own."""
    rules: Sequence[tuple[Rule, Mapping[Any, float], Callable[[float, float], bool]]] = (
        (Rule.FAILED_WRITES, found.failed_writes_percent_by_type, ge),
        (Rule.LAG, found.lag_records, ge),
        (Rule.DISCREPANCY, found.discrepancy_records, gt),
        (Rule.RETENTION, found.expiring_records, lambda *_: True),
    )
    for rule, values, breaks in rules:
        limit = limit_of(rule, limits)
        for place, value in sorted(values.items()):
            if limit is not None and breaks(value, limit):
                yield Alert(rule, _TEXTS[rule].format(place, value, limit))


def limit_of(rule: Rule, limits: AlertLimits) -> float | None:
    """What the job file says of a rule; None: it is off."""
    limit: float | None = getattr(limits, f"{KEYS[rule]}_max")
    return limit


def measured_rules(state: ExportState, ends: Offsets, expiring: Offsets, limits: AlertLimits) -> ExportRules:
    """What the rules measure in the partitions that a process holds, with the ends of the log there."""
    found = measure(state, ends, ends, expiring)
    broken = list(breaches(found, limits))
    marks = {name: state.watermark_of(name) for name in state.types}
    return ExportRules(
        failed_writes_percent=found.failed_writes_percent,
        failed_writes_percent_by_type=dict(found.failed_writes_percent_by_type),
        lag_records=named(found.lag_records),
        discrepancy_records=named(found.discrepancy_records),
        position=named({each: state.of(each).position for each in ends}),
        global_position=named({each: state.of(each).position_of() for each in ends}),
        type_lag_records={name: max((gap_records(state, each, name) for each in ends), default=0) for name in marks},
        watermark={name: mark / MILLIS_PER_SECOND for name, mark in marks.items() if mark is not None},
        alerts={
            rule.value: [each.text for each in broken if each.kind is rule]
            for rule in Rule
            if limit_of(rule, limits) is not None
        },
    )


def named(numbers: Mapping[Partition, int | None]) -> dict[str, int]:
    """By the names of partitions, those that are known."""
    return {str(partition): number for partition, number in numbers.items() if number is not None}
