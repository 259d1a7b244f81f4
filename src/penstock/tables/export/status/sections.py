"""What only exports tell in a status: their types, the files that wait for their place, and the monitoring rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.logs.log import Partition
from penstock.status.model import UNKNOWN, Section
from penstock.tables.export.ledger.state import Day, Rename
from penstock.tables.export.spec import AlertLimits
from penstock.tables.export.status.alerts import Measured, Rule, limit_of
from penstock.tables.export.status.day_answers import instant
from penstock.tables.export.status.types import TypeStatus

LANES_SHOWN = 20
DAYS_SHOWN = 3
HEADINGS = ("type", "rows", "files", "MiB", "behind", "failed", "watermark", "complete to", "open", "reopened")


def types_section(types: Sequence[TypeStatus]) -> Section:
    lanes = [
        f"behind: {each.name} in {lane.partition} at {lane.position}, {lane.deferred} records wait"
        f" ({lane.cause.value}, since {lane.since:%Y-%m-%d %H:%M:%SZ})"
        for each in types
        for lane in each.lanes
    ]
    rows = tuple(_cells(each) for each in types)
    return Section("types", [each.as_json() for each in types], HEADINGS, rows, tuple(lanes[:LANES_SHOWN]))


def _cells(each: TypeStatus) -> tuple[str, ...]:
    return (
        each.name,
        str(each.rows),
        str(each.files),
        f"{each.size_bytes / 2**20:.1f}",
        str(each.gap_records),
        "-" if each.failed_writes_percent is None else f"{each.failed_writes_percent:.1f}%",
        instant(each.watermark_ms) or "-",
        each.last_complete_day or "-",
        _days(each.open_days),
        _days(each.reopened_days),
    )


def _days(days: Sequence[Day]) -> str:
    more = len(days) - DAYS_SHOWN
    return (" ".join(days[-DAYS_SHOWN:]) + (f" and {more} more" if more > 0 else "")) or "-"


def pending_section(pending: Sequence[Rename]) -> Section:
    """Files that could not be moved to their place."""
    lines = (f"files that wait to be moved to their place: {len(pending)}",) if pending else ()
    return Section("pending_renames", [{"type": each.type, "target": each.target} for each in pending], lines=lines)


def rules_section(measured: Measured, limits: AlertLimits, log_is_away: bool) -> Section:
    """The rules with their limits; what only the log could tell is unknown while it is away."""
    percent = measured.failed_writes_percent
    values: Mapping[Rule, object] = {
        Rule.FAILED_WRITES: "-" if percent is None else f"{percent:.1f}%",
        Rule.LAG: max(measured.lag_records.values(), default=UNKNOWN if log_is_away else "-"),
        Rule.DISCREPANCY: max(measured.discrepancy_records.values(), default="-"),
        Rule.RETENTION: UNKNOWN if log_is_away else sum(measured.expiring_records.values()),
    }
    told = (f"{rule.value.replace('_', ' ')} {values[rule]} ({_limit(limit_of(rule, limits))})" for rule in Rule)
    return Section("rules", _rules_json(measured, limits), lines=("rules: " + ", ".join(told),))


def _limit(limit: float | None) -> str:
    return "no limit" if limit is None else f"limit {limit:g}"


def _rules_json(measured: Measured, limits: AlertLimits) -> dict[str, Any]:
    """The rules as plain values."""
    return {
        "failed_writes_percent": {
            "value": measured.failed_writes_percent,
            "types": dict(measured.failed_writes_percent_by_type),
            "limit": limits.failed_writes_percent_max,
        },
        "lag_records": {
            "value": max(measured.lag_records.values(), default=None),
            "partitions": {str(each): lag for each, lag in measured.lag_records.items()},
            "limit": limits.lag_records_max,
        },
        "discrepancy_records": {
            "value": max(measured.discrepancy_records.values(), default=None),
            "partitions": {str(each): apart for each, apart in measured.discrepancy_records.items()},
            "limit": limits.discrepancy_records_max,
        },
        "retention_percent": {
            "value": sum(measured.expiring_records.values()),
            "types": _by_type(measured.expiring_records),
            "limit": limits.retention_percent_max,
        },
    }


def _by_type(records: Mapping[tuple[Partition, str], int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (_, name), count in records.items():
        found[name] += count
    return dict(found)
