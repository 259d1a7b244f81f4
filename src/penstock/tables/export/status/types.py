"""How the types of an export stand: what is written of each, where it lags, and its days. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from penstock.logs.log import Partition
from penstock.status.model import Alert, Section
from penstock.tables.export.days.days import watermark_of
from penstock.tables.export.ledger.state import Cause, Day, Lane, LedgerState, TypeDay
from penstock.tables.export.status.alerts import failed_percent, gap_records
from penstock.tables.export.status.day_answers import instant, last_complete_day

LANES_SHOWN = 20
DAYS_SHOWN = 3
HEADINGS = ("type", "rows", "files", "MiB", "lag", "failed", "watermark", "complete to", "open", "reopened")


class TypeAlert(StrEnum):
    TYPE_LAGGING = "type lagging"


def type_alerts(state: LedgerState) -> Iterator[Alert]:
    """The types that a person has to help; one that only waits for its rotation is well."""
    for name in sorted(state.types):
        failing = [lane for _, lane in _lanes(state, name) if lane.cause is Cause.FAILING]
        if failing:
            deferred = sum(lane.deferred for lane in failing)
            since = min(map(_since, failing))
            text = f"type {name} cannot be written since {since:%Y-%m-%dT%H:%M:%SZ}: {deferred} records wait"
            yield Alert(TypeAlert.TYPE_LAGGING, text)
        if pending := _pending(state, name):
            yield Alert(TypeAlert.TYPE_LAGGING, f"type {name}: {pending} files cannot be moved to their place")


def types_section(
    state: LedgerState, after_seconds: float, now_ms: int | None = None, unseen: Collection[TypeDay] = ()
) -> Section:
    """All types by the ledger's word; the days of `unseen` have files that are not yet as the newest entry says."""
    names = sorted(state.types)
    types = [_type(state, name, after_seconds, now_ms, unseen) for name in names]
    lanes = [
        f"lagging: {name} in {each} at {lane.position}, {lane.deferred} records wait"
        f" ({lane.cause.value}, since {_since(lane):%Y-%m-%d %H:%M:%SZ})"
        for name in names
        for each, lane in _lanes(state, name)
    ]
    return Section("types", types, HEADINGS, tuple(_cells(each) for each in types), tuple(lanes[:LANES_SHOWN]))


def _type(
    state: LedgerState, name: str, after_seconds: float, now_ms: int | None, unseen: Collection[TypeDay]
) -> dict[str, Any]:
    """One type: `gap_records` is of the partition where it is furthest back, `writes` are the last that are known."""
    known = state.types[name]
    return {
        "type": name,
        "rows": known.rows,
        "files": known.files,
        "size_bytes": known.size_bytes,
        "gap_records": max((gap_records(state, each, name) for each, _ in state.current()), default=0),
        "lagging": [_lane(state, each, lane) for each, lane in _lanes(state, name)],
        "pending_renames": _pending(state, name),
        "writes": len(known.outcomes),
        "failed_writes_percent": failed_percent(known.outcomes),
        "watermark": instant(watermark_of(state, name, now_ms)),
        "last_complete_day": last_complete_day(state, name, after_seconds, now_ms, unseen),
        "open_days": sorted(day for each, day in state.open_days if each == name),
        "reopened_days": sorted(day for each, day in state.reopened if each == name),
    }


def _lane(state: LedgerState, partition: Partition, lane: Lane) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.number,
        "position": lane.position,
        "gap_records": (state.of(partition).position or 0) - lane.position,
        "deferred": lane.deferred,
        "cause": lane.cause.value,
        "since": _since(lane).isoformat(),
    }


def _lanes(state: LedgerState, name: str) -> list[tuple[Partition, Lane]]:
    """Where a type lags, in the topics' present lives."""
    return [(each, here.lanes[name]) for each, here in sorted(state.current()) if name in here.lanes]


def _since(lane: Lane) -> datetime:
    return datetime.fromtimestamp(lane.since, UTC)


def _pending(state: LedgerState, name: str) -> int:
    return sum(each.type == name for each in state.pending)


def _cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    percent = each["failed_writes_percent"]
    return (
        each["type"],
        str(each["rows"]),
        str(each["files"]),
        f"{each['size_bytes'] / 2**20:.1f}",
        str(each["gap_records"]),
        "-" if percent is None else f"{percent:.1f}%",
        each["watermark"] or "-",
        each["last_complete_day"] or "-",
        _days(each["open_days"]),
        _days(each["reopened_days"]),
    )


def _days(days: Sequence[Day]) -> str:
    more = len(days) - DAYS_SHOWN
    return (" ".join(days[-DAYS_SHOWN:]) + (f" and {more} more" if more > 0 else "")) or "-"
