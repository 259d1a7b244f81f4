"""The status of an export: its partitions, its types, their days, and alerts.

Logs and files are only read: nothing is finished or changed on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.environment import Environment
from penstock.errors import UserError, did_you_mean
from penstock.job.spec import JobSpec
from penstock.logs.registry import OpenLog
from penstock.reporting.model import (
    Alert,
    Cell,
    DayAnswer,
    DayState,
    JobStatus,
    PartitionColumn,
    PartitionStatus,
    Section,
    Strip,
    shown_path,
)
from penstock.reporting.verdicts import Judgement, Verdict
from penstock.tables.export.catch_up import is_rotation_due
from penstock.tables.export.export import ExportTable
from penstock.tables.export.logs import ExportLogs, type_totals
from penstock.tables.export.monitoring import ExportAlert, measure
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.state import Day, ExportState, instant
from penstock.tables.single.facts import facts_status, read_facts

DAYS_SHOWN_MAX = 92
"""Of a type, in its calendar."""
HEADINGS = ("type", "rows", "files", "MiB", "lag", "watermark", "complete to", "open since")
Pending = Counter[tuple[str, Day]]
"""How many files of a type and day are not renamed yet."""


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
    rules = measure(state, facts.incarnations.current, job.alerts)
    pending = Counter((rename.type, rename.day) for rename in table.finishing.pending())
    lags = rules.measured["type_lag_records"]
    types = [_type_values(table, name, lags[name], pending) for name in sorted(state.types)]
    lagging = [Alert(ExportAlert.TYPE_LAGGING, text) for text in _lagging(table, state, pending)]
    broken = [Alert(ExportAlert(rule), text) for rule, texts in rules.alerts.items() for text in texts]
    strips = tuple(_calendar(table, name, pending) for name in sorted(state.types))
    section = Section("types", types, HEADINGS, tuple(map(_cells, types)), strips=strips)
    own = [*(Judgement(Verdict.WARN, alert.text) for alert in lagging)]
    own += [Judgement(Verdict.ERR, alert.text) for alert in broken]
    judged = common.judged(common.judgement, *own)
    return replace(judged, alerts=(*common.alerts, *lagging, *broken), sections=(section,))


def _with_types(shown: PartitionStatus, state: ExportState) -> PartitionStatus:
    """`position` is what is read; below the global position every type is written."""
    lowest = state.of(shown.partition).position_of()
    further = (
        PartitionColumn("global_position", "global", "position", lowest),
        PartitionColumn("deferred", "deferred", "written", shown.totals.deferred),
    )
    return replace(shown, shown_position=lowest, further=further)


def _lagging(table: ExportTable, state: ExportState, pending: Pending) -> Iterator[str]:
    """The types that need a person; a type that only waits for its rotation does not."""
    for name in sorted(state.types):
        rotation = table.logs.export.types[name].rotation if name in table.logs.export.types else None
        lags = [partition.lags[name] for _, partition in state.started() if name in partition.lags]
        due = [lag for lag in lags if is_rotation_due(rotation, lag, table.environment.now())]
        if due:
            since, deferred = instant(min(lag.since_ms for lag in due)), sum(lag.deferred for lag in due)
            yield f"type {name} is due and not written since {since}: {deferred} records wait"
        if name in table.logs.unreadable:
            yield f"type {name} cannot be read: {table.logs.unreadable[name]}"
        if files := sum(count for (of_type, _), count in pending.items() if of_type == name):
            yield f"type {name}: {files} files wait for their final names"


def _type_values(table: ExportTable, name: str, gap_records: float, pending: Pending) -> dict[str, Any]:
    """One type, in the order of the headings; `gap_records` is of the partition where its lag is largest."""
    log, days = table.logs.find_type_log(name, refresh=True), table.logs.days_of(name)
    files = () if log is None else log.active_files()
    complete = {day for day in days if table.markers.is_complete(name, day)}
    return {
        "type": name,
        "rows": sum(file.rows or 0 for file in files),
        "files": len(files),
        "size_bytes": sum(file.size_bytes for file in files),
        "gap_records": gap_records,
        "watermark": instant(table.markers.watermark_of(name)),
        "last_complete_day": max((day for day in complete if (name, day) not in pending), default=None),
        "open_since": min(days.keys() - complete, default=None),
    }


def _calendar(table: ExportTable, name: str, pending: Pending) -> Strip:
    """The newest days of a type that have rows; those between them have none."""
    log, days = table.logs.find_type_log(name), table.logs.days_of(name)
    files = Counter[str]()
    for file in () if log is None else log.active_files():
        files[str(file.values[0])] += file.rows or 0
    most = max(files.values(), default=0)
    cells = []
    for day in sorted(days)[-DAYS_SHOWN_MAX:]:
        state = _day_state(table, name, day, pending[name, day])
        share = files[day] / most if most else 0.0
        cells.append(Cell(day, state, f"{files[day]:,} rows", share))
    return Strip(name, tuple(cells))


def _day_state(table: ExportTable, name: str, day: Day, pending: int) -> DayState:
    if not table.markers.is_complete(name, day):
        return DayState.REOPENED if table.logs.days_of(name).get(day) else DayState.OPEN
    return DayState.NOT_VISIBLE if pending else DayState.COMPLETE


def _cells(values: Mapping[str, Any]) -> tuple[str, ...]:
    shown = {**values, "size_bytes": f"{values['size_bytes'] / 2**20:.1f}"}
    return tuple("-" if value is None else str(value) for value in shown.values())


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
    pending = Counter((rename.type, rename.day) for rename in table.finishing.pending())
    return tuple(_day_answer(table, state, name, day, pending[name, day]) for name in requested or names)


def _day_answer(table: ExportTable, state: ExportState, name: str, day: Day, pending: int) -> DayAnswer:
    needed_ms = table.markers.needed_ms(name, day)
    needed, mark = instant(needed_ms), instant(table.markers.watermark_of(name))
    marks = {state.partition_of(key): partition.watermark_of(name) for key, partition in sorted(state.started())}
    is_known = bool(marks) and name not in table.logs.unreadable
    answer = _day_state(table, name, day, pending) if is_known else DayState.OPEN
    if name in table.logs.unreadable:
        reason = f"the log of the type cannot be read: {table.logs.unreadable[name]}"
    elif not marks:
        reason = "the job has no position yet"
    elif not table.markers.is_complete(name, day):
        behind = {partition: at_ms for partition, at_ms in marks.items() if at_ms is None or at_ms < needed_ms}
        held = [f"{partition} is at {instant(at_ms) or 'no event time yet'}" for partition, at_ms in behind.items()]
        reason = f"the watermark has to reach {needed}: {'; '.join(held) or 'the clock is not there yet'}"
    elif pending:
        reason = f"{pending} files of it wait for their final names"
    else:
        reason = f"the watermark {mark} is past {needed}"
    return DayAnswer(name, day, answer, reason)
