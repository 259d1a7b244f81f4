"""The status of an export: its partitions, its types, their days, and alerts.

Logs and files are only read: nothing is finished or changed on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from penstock.environment import Environment
from penstock.errors import UserError, did_you_mean
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.status.model import (
    Alert,
    DayAnswer,
    DayState,
    JobStatus,
    PartitionColumn,
    PartitionStatus,
    Section,
    shown_path,
)
from penstock.tables.export.catch_up import is_rotation_due
from penstock.tables.export.export import ExportTable
from penstock.tables.export.logs import ExportLogs, type_totals
from penstock.tables.export.monitoring import Rule, measure
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.state import Day, ExportState, Lag, instant
from penstock.tables.single.facts import facts_status, read_facts

HEADINGS = ("type", "rows", "files", "MiB", "lag", "watermark", "complete to", "open since")
Pending = Counter[tuple[str, Day]]
"""How many files of a type and day are not renamed yet."""


class TypeAlert(StrEnum):
    TYPE_LAGGING = "type lagging"


def export_status(job: JobSpec[ExportSpec], open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
    """The status of the job from the logs of the export and from Kafka."""
    table = ExportTable(ExportLogs(job, Environment(now=now)))
    state = table.logs.state()
    if state.version < 0:
        return JobStatus(job.name, shown_path(job), None, sections=(Section("types", [], HEADINGS),))
    facts = read_facts(job, table.logs.job_log)
    states = {
        partition: replace(counted, totals=counted.totals + type_totals(table.logs, partition))
        for partition, counted in facts.states.items()
    }
    common = facts_status(job, replace(facts, states=states), open_log, now, lambda shown: _with_types(shown, state))
    ends = {shown.partition: shown.end for shown in common.partitions}
    started = {partition: ends.get(partition) for partition in facts.incarnations.current}
    rules = measure(state, started, job.table.alerts)
    pending = _pending_files(table)
    types = [_type_values(table, state, name, rules.type_lag_records[name], pending) for name in sorted(state.types)]
    alerts = [Alert(Rule(rule), text) for rule, texts in rules.alerts.items() for text in texts]
    return replace(
        common,
        alerts=(*common.alerts, *_type_alerts(table, state, types), *alerts),
        sections=(Section("types", types, HEADINGS, tuple(map(_cells, types))),),
    )


def _with_types(shown: PartitionStatus, state: ExportState) -> PartitionStatus:
    """`position` is what is read; below the global position every type is written."""
    lowest = state.of(shown.partition).position_of()
    further = (
        PartitionColumn("global_position", "global", "position", lowest),
        PartitionColumn("deferred", "deferred", "written", shown.totals.deferred),
    )
    return replace(shown, shown_position=lowest, further=further)


def _pending_files(table: ExportTable) -> Pending:
    return Counter((rename.type, rename.day) for rename in table.finishing.pending())


def _type_alerts(table: ExportTable, state: ExportState, types: Sequence[Mapping[str, Any]]) -> Iterator[Alert]:
    """The types that need a person; a type that only waits for its rotation does not."""
    for values in types:
        name, spec = values["type"], table.logs.export.types.get(values["type"])
        rotation, now = None if spec is None else spec.rotation, table.environment.now()
        due = [lag for _, lag in _lags(state, name) if is_rotation_due(rotation, lag, now)]
        texts = []
        if due:
            since, deferred = instant(min(lag.since_ms for lag in due)), sum(lag.deferred for lag in due)
            texts.append(f"type {name} is due and not written since {since}: {deferred} records wait")
        if name in table.logs.unreadable:
            texts.append(f"type {name} cannot be read: {table.logs.unreadable[name]}")
        if values["pending_renames"]:
            texts.append(f"type {name}: {values['pending_renames']} files wait for their final names")
        yield from (Alert(TypeAlert.TYPE_LAGGING, text) for text in texts)


def _type_values(
    table: ExportTable, state: ExportState, name: str, gap_records: int, pending: Pending
) -> dict[str, Any]:
    """One type; `gap_records` is of the partition where its lag is largest."""
    log, days = table.logs.find_type_log(name, refresh=True), table.logs.days_of(name)
    files = () if log is None else log.active_files()
    complete = [day for day in days if table.markers.is_complete(name, day)]
    return {
        "type": name,
        "rows": sum(file.rows or 0 for file in files),
        "files": len(files),
        "size_bytes": sum(file.size_bytes for file in files),
        "gap_records": gap_records,
        "lagging": [
            {
                "topic": partition.topic,
                "partition": partition.number,
                "position": lag.position,
                "gap_records": (state.of(partition).position or 0) - lag.position,
                "deferred": lag.deferred,
                "since": instant(lag.since_ms),
            }
            for partition, lag in _lags(state, name)
        ],
        "pending_renames": sum(count for (of_type, _), count in pending.items() if of_type == name),
        "watermark": instant(table.markers.watermark_of(name)),
        "last_complete_day": max((day for day in complete if (name, day) not in pending), default=None),
        "open_days": sorted(days.keys() - set(complete)),
    }


def _lags(state: ExportState, name: str) -> list[tuple[Partition, Lag]]:
    """Where a type lags, in topics as they are now."""
    return [(state.partition_of(key), part.lags[name]) for key, part in sorted(state.current()) if name in part.lags]


def _cells(values: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        values["type"],
        str(values["rows"]),
        str(values["files"]),
        f"{values['size_bytes'] / 2**20:.1f}",
        str(values["gap_records"]),
        values["watermark"] or "-",
        values["last_complete_day"] or "-",
        min(values["open_days"], default="-"),
    )


# a day


def day_answers(job: JobSpec[ExportSpec], day: Day, requested: Sequence[str] = ()) -> tuple[DayAnswer, ...]:
    """Whether a day is complete for the requested types, or for all; if not, what holds it back."""
    table = ExportTable(ExportLogs(job, Environment()))
    state = table.logs.state()
    names = sorted({*job.table.types, *state.types})
    for name in requested:
        if name not in names:
            hint = did_you_mean(name, names) or f"its types are {', '.join(names)}"
            raise UserError(f"{job.name} has no type {name}", hint=hint)
    pending = _pending_files(table) if state.version >= 0 else Counter()
    return tuple(_day_answer(table, state, name, day, pending[name, day]) for name in requested or names)


def _day_answer(table: ExportTable, state: ExportState, name: str, day: Day, pending: int) -> DayAnswer:
    logs, needed_ms = table.logs, table.markers.needed_ms(name, day)
    answer = DayState.REOPENED if logs.days_of(name).get(day) else DayState.OPEN
    marks = {state.partition_of(key): partition.watermark_of(name) for key, partition in sorted(state.current())}
    behind = [
        f"{partition} is at {instant(mark) or 'no event time yet'}"
        for partition, mark in marks.items()
        if mark is None or mark < needed_ms
    ]
    if name in logs.unreadable:
        reason = f"the log of the type cannot be read: {logs.unreadable[name]}"
    elif not marks:
        reason = "the job has no position yet"
    elif not table.markers.is_complete(name, day):
        held = "; ".join(behind) or "the clock is not there yet"
        reason = f"the watermark has to reach {instant(needed_ms)}: {held}"
    elif pending:
        answer, reason = DayState.NOT_VISIBLE, f"{pending} files of it wait for their final names"
    else:
        mark = instant(table.markers.watermark_of(name))
        answer, reason = DayState.COMPLETE, f"the watermark {mark} is past {instant(needed_ms)}"
    return DayAnswer(name, day, answer, reason)
