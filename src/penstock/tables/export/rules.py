"""The monitoring rules of seed 000, measured once for alerts, metrics and `penstock status`; a pure function.

The latest committed offset of a type is its position, the latest committable one that of its partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import ge, gt

from penstock.logs.log import Partition
from penstock.tables.export.events import ExportRules
from penstock.tables.export.spec import AlertLimits
from penstock.tables.export.state import MILLIS_PER_SECOND, ExportState


class Rule(StrEnum):
    FAILED_WRITES = "failed_writes"
    LAG = "lag"
    DISCREPANCY = "discrepancy"


Outcomes = Counter[tuple[str, bool]]
"""Writes of types to their final places, by type and whether they were done."""


def measure(
    state: ExportState,
    ends: Mapping[Partition, int | None],
    limits: AlertLimits,
    outcomes: Outcomes | None = None,
) -> ExportRules:
    """Measure the started ones of these partitions, with the ends of the log where they are known, and all types."""
    outcomes = outcomes or Counter()
    types = sorted(state.types)
    started = {partition: state.of(partition).position for partition in sorted(ends)}
    positions = {partition: position for partition, position in started.items() if position is not None}
    gaps = {partition: {name: gap_records(state, partition, name) for name in types} for partition in positions}
    apart = {str(partition): max(gap.values()) - min(gap.values()) for partition, gap in gaps.items() if gap}
    behind = {
        str(partition): max(0, end - position)
        for partition, position in positions.items()
        if (end := ends[partition]) is not None
    }
    writes = {name: (outcomes[name, True], outcomes[name, False]) for name in types}
    percents = {name: percent for name, counts in writes.items() if (percent := _failed_percent(*counts)) is not None}
    marks = {name: mark for name in types if (mark := state.watermark_of(name)) is not None}
    # Failures and lag have to be below their limits; a discrepancy may reach its own.
    rules: Mapping[Rule, tuple[float | None, Mapping[str, float], Callable[[float, float], bool], str]] = {
        Rule.FAILED_WRITES: (
            limits.failed_writes_percent_max, percents, ge, "type {}: {:.1f} % of writes failed, the limit is {:g} %",
        ),
        Rule.LAG: (limits.lag_records_max, behind, ge, "{}: {:g} records up to the end of the log, the limit is {:g}"),
        Rule.DISCREPANCY: (
            limits.discrepancy_records_max, apart, gt, "{}: its types are {:g} records apart, the limit is {:g}",
        ),
    }  # fmt: skip
    return ExportRules(
        failed_writes_percent=_failed_percent(*map(sum, zip(*writes.values(), strict=True))),
        failed_writes_percent_by_type=percents,
        lag_records=behind,
        discrepancy_records=apart,
        position={str(partition): position for partition, position in positions.items()},
        global_position={str(partition): state.of(partition).position_of() or 0 for partition in positions},
        type_lag_records={name: max((gap[name] for gap in gaps.values()), default=0) for name in types},
        watermark={name: mark / MILLIS_PER_SECOND for name, mark in marks.items()},
        alerts={
            rule.value: [text.format(place, value, limit) for place, value in values.items() if breaks(value, limit)]
            for rule, (limit, values, breaks, text) in rules.items()
            if limit is not None
        },
    )


def _failed_percent(done: int = 0, failed: int = 0) -> float | None:
    """The share of writes that failed; None if there was none."""
    return 100.0 * failed / (done + failed) if done + failed else None


def gap_records(state: ExportState, partition: Partition, name: str) -> int:
    """How many offsets lie between a type and its partition; none if nothing of the type is unwritten."""
    known = state.of(partition)
    return (known.position or 0) - (known.position_of(name) or 0)
