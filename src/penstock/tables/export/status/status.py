"""How an export stands: its partitions, its types, their days, and the monitoring rules of seed 000."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from penstock.environment import Environment
from penstock.errors import PenstockError
from penstock.job.spec import JobSpec
from penstock.lake.state import Totals
from penstock.logs.log import Bounds, Partition
from penstock.logs.registry import OpenLog
from penstock.status.model import UNKNOWN, Alert, JobStatus, PartitionColumn, PartitionStatus, Section, shown_path
from penstock.tables.export.export import ExportTable
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.names import Day
from penstock.tables.export.spec import AlertLimits, ExportSpec
from penstock.tables.export.state import Cause, ExportState, Lag
from penstock.tables.export.status import alerts
from penstock.tables.export.status.day_answers import TypeDays, instant, type_days
from penstock.tables.single.facts import facts_status, read_facts

LAGS_SHOWN = 20
DAYS_SHOWN = 3
HEADINGS = ("type", "rows", "files", "MiB", "lag", "failed", "watermark", "complete to", "open", "reopened")


class TypeAlert(StrEnum):
    TYPE_LAGGING = "type lagging"


def export_status(job: JobSpec[ExportSpec], open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
    """Ask the logs of the export and Kafka how the job stands; nothing is finished or changed on the way."""
    table = ExportTable(ExportLogs(job, Environment(now=now)))
    state = table.logs.state()
    if state.version < 0:
        return _with_sections(JobStatus(job.name, shown_path(job), None), table, state, alerts.Measured())
    facts = read_facts(job, table.logs.job_log)
    states = {
        partition: replace(known, totals=known.totals + type_totals(table.logs, partition))
        for partition, known in facts.states.items()
    }
    common = facts_status(job, replace(facts, states=states), open_log, now, lambda each: _with_types(each, state))
    ends = {each.partition: each.end for each in common.partitions if each.end is not None}
    expiring = _expiring(job, open_log, state, common, now())
    measured = alerts.measure(state, facts.incarnations.current, ends, expiring)
    return _with_sections(common, table, state, measured)


def type_totals(logs: ExportLogs, partition: Partition) -> Totals:
    """What the logs of all types count of a partition; the job log counts the records that were read."""
    totals = [log.known_state([partition]).of(partition).totals for _, log in logs.type_logs()]
    return Totals(
        **{
            name: sum(getattr(known, name) for known in totals)
            for name in ("written", "quarantined", "filtered", "replayed")
        }
    )


def _with_sections(common: JobStatus, table: ExportTable, state: ExportState, measured: alerts.Measured) -> JobStatus:
    """With what only exports report."""
    limits, days = table.logs.export.alerts, type_days(table, sorted(state.types))
    pending = Counter({name: len(known.pending) for name, known in days.items() if known.pending})
    lines = (f"files that wait to be renamed to their final names: {pending.total()}",) if pending else ()
    return replace(
        common,
        alerts=(
            *common.alerts,
            *_type_alerts(state, pending, table.logs.unreadable),
            *alerts.breaches(measured, limits),
        ),
        sections=(
            _types_section(table.logs, days),
            Section(
                "pending_renames", [{"type": name, "files": count} for name, count in pending.items()], lines=lines
            ),
            _rules_section(measured, limits, common.log_error is not None),
        ),
    )


def _expiring(
    job: JobSpec[ExportSpec], open_log: OpenLog, state: ExportState, common: JobStatus, now: float
) -> Mapping[Partition, int]:
    """Below which offsets waiting records are near their end; nothing where the log does not say."""
    waiting = {
        each.partition: Bounds(each.first, each.end)
        for each in common.partitions
        if state.of(each.partition).lags and each.first is not None and each.end is not None
    }
    if not waiting:
        return {}
    with closing(open_log(job)) as log:
        try:
            return log.expiring(waiting, job.table.alerts.retention_percent_max, now)
        except PenstockError:
            return {}


def _with_types(each: PartitionStatus, state: ExportState) -> PartitionStatus:
    """`position` is what is read; below the global position every type is written."""
    here = state.of(each.partition)
    lowest = here.position_of()
    return replace(
        each,
        shown_position=lowest,
        further=(
            PartitionColumn("global_position", "global", "position", lowest),
            PartitionColumn("deferred", "deferred", "written", each.totals.deferred),
        ),
    )


def _rules_section(measured: alerts.Measured, limits: AlertLimits, log_is_away: bool) -> Section:
    """The rules with their limits; what only the log could say is unknown while it is away."""
    expiring: Counter[str] = Counter()
    for (_, name), count in measured.expiring_records.items():
        expiring[name] += count
    lag, apart = alerts.named(measured.lag_records), alerts.named(measured.discrepancy_records)
    by_type = dict(measured.failed_writes_percent_by_type)
    rules: Mapping[alerts.Rule, tuple[float | None, str, dict[str, Any]]] = {
        alerts.Rule.FAILED_WRITES: (measured.failed_writes_percent, "types", by_type),
        alerts.Rule.LAG: (max(lag.values(), default=None), "partitions", lag),
        alerts.Rule.DISCREPANCY: (max(apart.values(), default=None), "partitions", apart),
        alerts.Rule.RETENTION: (expiring.total(), "types", dict(expiring)),
    }
    values, texts = {}, []
    for rule, (value, by, places) in rules.items():
        limit = alerts.limit_of(rule, limits)
        values[alerts.KEYS[rule]] = {"value": value, by: places, "limit": limit}
        shown = "-" if value is None else f"{value:.1f}%" if rule is alerts.Rule.FAILED_WRITES else str(value)
        if log_is_away and rule in (alerts.Rule.LAG, alerts.Rule.RETENTION):
            shown = UNKNOWN
        texts.append(f"{rule.replace('_', ' ')} {shown} ({'no limit' if limit is None else f'limit {limit:g}'})")
    return Section("rules", values, lines=("rules: " + ", ".join(texts),))


# types


def _type_alerts(state: ExportState, pending: Mapping[str, int], unreadable: Mapping[str, str]) -> Iterator[Alert]:
    """The types that a person has to help; one that only waits for its rotation is well."""
    for name in sorted(state.types):
        failing = [lag for _, lag in _lags(state, name) if lag.cause is Cause.FAILING]
        if failing:
            deferred = sum(lag.deferred for lag in failing)
            since = min(map(_since, failing))
            text = f"type {name} cannot be written since {since:%Y-%m-%dT%H:%M:%SZ}: {deferred} records wait"
            yield Alert(TypeAlert.TYPE_LAGGING, text)
        if name in unreadable:
            yield Alert(TypeAlert.TYPE_LAGGING, f"type {name} cannot be read: {unreadable[name]}")
        if pending.get(name):
            yield Alert(TypeAlert.TYPE_LAGGING, f"type {name}: {pending[name]} files wait for their final names")


def _types_section(logs: ExportLogs, days: Mapping[str, TypeDays]) -> Section:
    types = [_type_values(logs, known) for known in days.values()]
    lags = [
        f"lagging: {name} in {partition} at {lag.position}, {lag.deferred} records wait"
        f" ({lag.cause.value}, since {_since(lag):%Y-%m-%d %H:%M:%SZ})"
        for name, known in days.items()
        for partition, lag in _lags(known.state, name)
    ]
    return Section("types", types, HEADINGS, tuple(map(_cells, types)), tuple(lags[:LAGS_SHOWN]))


def _type_values(logs: ExportLogs, days: TypeDays) -> dict[str, Any]:
    """One type: `gap_records` is of the partition where it is furthest back, `writes` are the last that are known."""
    state, name = days.state, days.type
    known, log = state.types[name], logs.refreshed(name) if name in logs.export.all_types else None
    files = () if log is None else log.active_files()
    current = [state.partition_of(key) for key, _ in state.current()]
    return {
        "type": name,
        "rows": sum(file.rows or 0 for file in files),
        "files": len(files),
        "size_bytes": sum(file.size_bytes for file in files),
        "gap_records": max((alerts.gap_records(state, partition, name) for partition in current), default=0),
        "lagging": [_lag_values(state, partition, lag) for partition, lag in _lags(state, name)],
        "pending_renames": len(days.pending),
        "writes": known.writes,
        "failed_writes_percent": alerts.failed_percent([known]),
        "watermark": instant(days.watermark_ms),
        "last_complete_day": days.last_complete(),
        "open_days": days.open_days(),
        "reopened_days": days.reopened_days(),
    }


def _lag_values(state: ExportState, partition: Partition, lag: Lag) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.number,
        "position": lag.position,
        "gap_records": (state.of(partition).position or 0) - lag.position,
        "deferred": lag.deferred,
        "cause": lag.cause.value,
        "since": _since(lag).isoformat(),
    }


def _lags(state: ExportState, name: str) -> list[tuple[Partition, Lag]]:
    """Where a type lags, in topics as they are now."""
    return [(state.partition_of(key), here.lags[name]) for key, here in sorted(state.current()) if name in here.lags]


def _since(lag: Lag) -> datetime:
    return datetime.fromtimestamp(lag.since_ms / 1000, UTC)


def _cells(values: Mapping[str, Any]) -> tuple[str, ...]:
    percent = values["failed_writes_percent"]
    return (
        values["type"],
        str(values["rows"]),
        str(values["files"]),
        f"{values['size_bytes'] / 2**20:.1f}",
        str(values["gap_records"]),
        "-" if percent is None else f"{percent:.1f}%",
        values["watermark"] or "-",
        values["last_complete_day"] or "-",
        _days(values["open_days"]),
        _days(values["reopened_days"]),
    )


def _days(days: Sequence[Day]) -> str:
    more = len(days) - DAYS_SHOWN
    return (" ".join(days[-DAYS_SHOWN:]) + (f" and {more} more" if more > 0 else "")) or "-"
