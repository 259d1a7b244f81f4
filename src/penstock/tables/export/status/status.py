"""How an export stands: its partitions, its types, their days, and the monitoring rules of seed 000."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from penstock.environment import Environment
from penstock.errors import PenstockError
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.status.frame import TableView, job_status, read_log_view
from penstock.status.model import (
    COMMITS_SHOWN,
    UNKNOWN,
    Alert,
    CommitStatus,
    JobStatus,
    LogView,
    PartitionColumn,
    PartitionStatus,
    RecordedGap,
    Section,
    shown_path,
)
from penstock.tables.export.delta_types import open_export
from penstock.tables.export.ledger.days import MILLIS_PER_SECOND, watermark_of
from penstock.tables.export.ledger.entry import Entry
from penstock.tables.export.ledger.state import Cause, Day, Lane, LedgerState, TypeDay
from penstock.tables.export.proof.facts import incarnations_of
from penstock.tables.export.spec import AlertLimits, ExportSpec
from penstock.tables.export.status import alerts
from penstock.tables.export.status.day_answers import instant, last_complete_day
from penstock.tables.export.table import ExportTable

ENTRIES_SEARCHED = 20
"""How many of the newest entries are searched for gaps."""
LANES_SHOWN = 20
DAYS_SHOWN = 3
HEADINGS = ("type", "rows", "files", "MiB", "lag", "failed", "watermark", "complete to", "open", "reopened")


class TypeAlert(StrEnum):
    TYPE_LAGGING = "type lagging"


def export_status(job: JobSpec[ExportSpec], open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
    """Ask ledger and log how the job stands; nothing is finished or changed on the way."""
    table = open_export(job, Environment(now=now))
    state = table.state()
    if state.number == 0:
        return _with_sections(JobStatus(job.name, shown_path(job), None), table, state, alerts.Measured())
    entries = table.ledger.last(ENTRIES_SEARCHED)
    told = TableView(
        version=state.number,
        incarnations=incarnations_of(state),
        states=state.partitions,
        commits=tuple(_commit(each) for each in entries[:COMMITS_SHOWN]),
        gaps=tuple(gap for entry in entries for gap in _gaps(entry)),
    )
    view = read_log_view(job, open_log, told, now)
    common = job_status(job, told, view, lambda each: _with_types(each, state))
    ends = {each.partition: each.end for each in common.partitions if each.end is not None}
    found = alerts.measure(state, told.incarnations.current, ends, _expiring(job, open_log, state, view, now()))
    return _with_sections(common, table, state, found)


def _with_sections(common: JobStatus, table: ExportTable, state: LedgerState, found: alerts.Measured) -> JobStatus:
    """With what only exports tell."""
    after, now_ms = table.export.days.complete_after_seconds, int(table.environment.now() * MILLIS_PER_SECOND)
    limits, pending = table.export.alerts, state.pending
    lines = (f"files that wait to be moved to their place: {len(pending)}",) if pending else ()
    return replace(
        common,
        alerts=(*common.alerts, *_type_alerts(state), *alerts.breaches(found, limits)),
        sections=(
            _types_section(state, after, now_ms, table.finishing.unseen(state)),
            Section("pending_renames", [{"type": each.type, "target": each.target} for each in pending], lines=lines),
            _rules_section(found, limits, common.log_error is not None),
        ),
    )


def _expiring(
    job: JobSpec[ExportSpec], open_log: OpenLog, state: LedgerState, view: LogView, now: float
) -> Mapping[Partition, int]:
    """Below which offsets waiting records are near their end; nothing where the log does not say."""
    bounds = view.facts.bounds if view.facts else {}
    waiting = {each: held for each, held in bounds.items() if state.of(each).lanes}
    if not waiting:
        return {}
    with closing(open_log(job)) as log:
        try:
            return log.expiring(waiting, job.table.alerts.retention_percent_max, now)
        except PenstockError:
            return {}


def _with_types(each: PartitionStatus, state: LedgerState) -> PartitionStatus:
    """`position` is what is read; below the global position every type is written."""
    lowest, lanes = state.global_position(each.partition), state.of(each.partition).lanes.values()
    needed = (
        None if each.position is None else min([each.position, *(max(it.position, it.counted_from) for it in lanes)])
    )
    return replace(
        each,
        needed_position=needed,
        shown_position=lowest,
        further=(
            PartitionColumn("global_position", "global", "position", lowest),
            PartitionColumn("deferred", "deferred", "written", each.totals.deferred),
        ),
    )


def _commit(entry: Entry) -> CommitStatus:
    rows = sum(written.rows for piece in entry.slices for written in piece.written.values())
    quarantined = sum(piece.totals.quarantined for piece in entry.slices)
    at = datetime.fromtimestamp(entry.at, UTC)
    return CommitStatus(
        entry.number, at, entry.kind.value, rows if entry.slices else None, quarantined, len(entry.slices)
    )


def _gaps(entry: Entry) -> Iterator[RecordedGap]:
    at = datetime.fromtimestamp(entry.at, UTC)
    for piece in entry.slices:
        if piece.totals.gap:
            yield RecordedGap(piece.partition, piece.start, piece.start + piece.totals.gap, entry.number, at)


def _rules_section(found: alerts.Measured, limits: AlertLimits, log_is_away: bool) -> Section:
    """The rules with their limits; what only the log could tell is unknown while it is away."""
    expiring: Counter[str] = Counter()
    for (_, name), count in found.expiring_records.items():
        expiring[name] += count
    lag, apart = alerts.named(found.lag_records), alerts.named(found.discrepancy_records)
    measured: Mapping[alerts.Rule, tuple[float | None, str, dict[str, Any]]] = {
        alerts.Rule.FAILED_WRITES: (found.failed_writes_percent, "types", dict(found.failed_writes_percent_by_type)),
        alerts.Rule.LAG: (max(lag.values(), default=None), "partitions", lag),
        alerts.Rule.DISCREPANCY: (max(apart.values(), default=None), "partitions", apart),
        alerts.Rule.RETENTION: (expiring.total(), "types", dict(expiring)),
    }
    values, words = {}, []
    for rule, (value, by, places) in measured.items():
        limit = alerts.limit_of(rule, limits)
        values[alerts.KEYS[rule]] = {"value": value, by: places, "limit": limit}
        shown = "-" if value is None else f"{value:.1f}%" if rule is alerts.Rule.FAILED_WRITES else str(value)
        if log_is_away and rule in (alerts.Rule.LAG, alerts.Rule.RETENTION):
            shown = UNKNOWN
        words.append(f"{rule.replace('_', ' ')} {shown} ({'no limit' if limit is None else f'limit {limit:g}'})")
    return Section("rules", values, lines=("rules: " + ", ".join(words),))


# types


def _type_alerts(state: LedgerState) -> Iterator[Alert]:
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


def _types_section(state: LedgerState, after_seconds: float, now_ms: int, unseen: Collection[TypeDay]) -> Section:
    """All types by the ledger's word; the days of `unseen` have files that are not yet as the newest entry says."""
    names = sorted(state.types)
    types = [_told_type(state, name, after_seconds, now_ms, unseen) for name in names]
    lanes = [
        f"lagging: {name} in {each} at {lane.position}, {lane.deferred} records wait"
        f" ({lane.cause.value}, since {_since(lane):%Y-%m-%d %H:%M:%SZ})"
        for name in names
        for each, lane in _lanes(state, name)
    ]
    return Section("types", types, HEADINGS, tuple(_cells(each) for each in types), tuple(lanes[:LANES_SHOWN]))


def _told_type(
    state: LedgerState, name: str, after_seconds: float, now_ms: int, unseen: Collection[TypeDay]
) -> dict[str, Any]:
    """One type: `gap_records` is of the partition where it is furthest back, `writes` are the last that are known."""
    known = state.types[name]
    return {
        "type": name,
        "rows": known.rows,
        "files": known.files,
        "size_bytes": known.size_bytes,
        "gap_records": max((alerts.gap_records(state, each, name) for each, _ in state.current()), default=0),
        "lagging": [_lane(state, each, lane) for each, lane in _lanes(state, name)],
        "pending_renames": _pending(state, name),
        "writes": len(known.outcomes),
        "failed_writes_percent": alerts.failed_percent(known.outcomes),
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
