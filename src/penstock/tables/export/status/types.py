"""How the types of an export stand: what is written of each, where it lags, and its days. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True, slots=True)
class LaneStatus:
    partition: Partition
    position: int
    gap_records: int
    """Offsets between it and the partition's position."""
    deferred: int
    cause: Cause
    since: datetime

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "position": self.position,
            "gap_records": self.gap_records,
            "deferred": self.deferred,
            "cause": self.cause.value,
            "since": self.since.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """One type: what is written of it, where it lags, and how its days stand."""

    type: str
    rows: int
    files: int
    size_bytes: int
    gap_records: int
    """Of the partition where it is furthest back."""
    lagging: tuple[LaneStatus, ...]
    pending_renames: int
    writes: int
    """How many of the last writes are remembered; `failed_writes_percent` is of these."""
    failed_writes_percent: float | None
    watermark: str | None
    last_complete_day: Day | None
    open_days: tuple[Day, ...]
    reopened_days: tuple[Day, ...]

    @property
    def failing(self) -> bool:
        return bool(self.pending_renames) or any(each.cause is Cause.FAILING for each in self.lagging)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "lagging": [each.as_json() for each in self.lagging]}


def type_status(
    state: LedgerState, name: str, after_seconds: float, now_ms: int | None = None, unseen: Collection[TypeDay] = ()
) -> TypeStatus:
    """One type by the ledger's word; the days of `unseen` have files that are not yet as the newest entry says."""
    known = state.types[name]
    current = dict(sorted(state.current()))
    lanes = [(each, here.lanes[name]) for each, here in current.items() if name in here.lanes]
    return TypeStatus(
        type=name,
        rows=known.rows,
        files=known.files,
        size_bytes=known.size_bytes,
        gap_records=max((gap_records(state, each, name) for each in current), default=0),
        lagging=tuple(_lane(each, lane, current[each].position or 0) for each, lane in lanes),
        pending_renames=sum(each.type == name for each in state.pending),
        writes=len(known.outcomes),
        failed_writes_percent=failed_percent(known.outcomes),
        watermark=instant(watermark_of(state, name, now_ms)),
        last_complete_day=last_complete_day(state, name, after_seconds, now_ms, unseen),
        open_days=tuple(sorted(day for each, day in state.open_days if each == name)),
        reopened_days=tuple(sorted(day for each, day in state.reopened if each == name)),
    )


def type_alerts(types: Iterable[TypeStatus]) -> Iterator[Alert]:
    """The types that a person has to help; one that only waits for its rotation is well."""
    for each in types:
        failing = [lane for lane in each.lagging if lane.cause is Cause.FAILING]
        if failing:
            deferred = sum(lane.deferred for lane in failing)
            since = min(lane.since for lane in failing)
            text = f"type {each.type} cannot be written since {since:%Y-%m-%dT%H:%M:%SZ}: {deferred} records wait"
            yield Alert(TypeAlert.TYPE_LAGGING, text)
        if each.pending_renames:
            text = f"type {each.type}: {each.pending_renames} files cannot be moved to their place"
            yield Alert(TypeAlert.TYPE_LAGGING, text)


def _lane(partition: Partition, lane: Lane, head: int) -> LaneStatus:
    since = datetime.fromtimestamp(lane.since, UTC)
    return LaneStatus(partition, lane.position, head - lane.position, lane.deferred, lane.cause, since)


def types_section(types: Sequence[TypeStatus]) -> Section:
    lanes = [
        f"lagging: {each.type} in {lane.partition} at {lane.position}, {lane.deferred} records wait"
        f" ({lane.cause.value}, since {lane.since:%Y-%m-%d %H:%M:%SZ})"
        for each in types
        for lane in each.lagging
    ]
    rows = tuple(_cells(each) for each in types)
    return Section("types", [each.as_json() for each in types], HEADINGS, rows, tuple(lanes[:LANES_SHOWN]))


def _cells(each: TypeStatus) -> tuple[str, ...]:
    return (
        each.type,
        str(each.rows),
        str(each.files),
        f"{each.size_bytes / 2**20:.1f}",
        str(each.gap_records),
        "-" if each.failed_writes_percent is None else f"{each.failed_writes_percent:.1f}%",
        each.watermark or "-",
        each.last_complete_day or "-",
        _days(each.open_days),
        _days(each.reopened_days),
    )


def _days(days: Sequence[Day]) -> str:
    more = len(days) - DAYS_SHOWN
    return (" ".join(days[-DAYS_SHOWN:]) + (f" and {more} more" if more > 0 else "")) or "-"
