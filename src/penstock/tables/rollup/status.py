"""The status of a rollup: its watermark and what holds it, open windows, and points that were left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from penstock.job.spec import JobSpec
from penstock.lake.delta.opening import find_table
from penstock.logs.registry import OpenLog
from penstock.reporting.model import Cell, CellState, JobStatus, Section, Strip, shown_path
from penstock.tables.rollup.decide import PartialsFile, open_windows
from penstock.tables.rollup.files import partials_files
from penstock.tables.rollup.numbers import LATE, LEAST_MS, PUBLISHED, UPDATED, CloseState, close_state, number_key
from penstock.tables.rollup.spec import PARTITION_SUMS, RollupSpec, Window, partials_job
from penstock.tables.rollup.watermark import PartitionTime, Watermark, watermark
from penstock.tables.single.facts import TableFacts, facts_status, read_table

WINDOWS_SHOWN_MAX = 48
"""Of an interval."""
LEFT_OUT = {"blacklisted": "blacklisted", "non_numeric": "not numeric", "non_finite": "not finite"}
"""Counts of fields that gave no point."""


def rollup_status(job: JobSpec[RollupSpec], open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
    """Read it from both tables and the log."""
    of_partials = partials_job(job)
    facts = read_table(of_partials)
    if facts is None:
        return JobStatus(job.name, shown_path(job), None)
    base = facts_status(of_partials, facts, open_log, now)
    windows = find_table(job.table.windows_place, job.name)
    numbers = {} if windows is None else windows.transactions()
    state = close_state(job.name, facts.table.transactions(), numbers)
    files = partials_files(facts.table)
    intervals = [
        {**_interval(window, state, files), "late": numbers.get(number_key(job.name, LATE, window.name), 0)}
        for window in job.table.windows
    ]
    values: dict[str, Any] = {
        **_watermark_values(job, facts, base, state, int(now() * 1000)),
        "closes": state.closed,
        "closing": state.under_way,
        "windows": intervals,
        "updated": numbers.get(number_key(job.name, UPDATED), 0),
        "partials_files": len(files),
        "partials_rows": sum(file.rows for file in files),
        **{name: sum(state.numbers.get(name, 0) for state in facts.states.values()) for name in PARTITION_SUMS},
    }
    if job.table.publish is not None:
        buckets = range(job.table.publish.buckets)
        values["published"] = min(numbers.get(number_key(job.name, PUBLISHED, bucket), 0) for bucket in buckets)
    section = Section(
        "rollup",
        values,
        headings=("interval", "closed until", "open windows", "late points"),
        rows=tuple(
            (row["interval"], _shown(row["closed_until"]) or "-", f"{row['open']:,}", f"{row['late']:,}")
            for row in intervals
        ),
        facts=_facts(values, reached=base.log_error is None),
        strips=tuple(_windows_strip(window, state, files) for window in job.table.windows),
    )
    return replace(base, table=shown_path(job), sections=(*base.sections, section))


def _watermark_values(
    job: JobSpec[RollupSpec], facts: TableFacts, base: JobStatus, state: CloseState, now_ms: int
) -> dict[str, Any]:
    """The watermark as the closing process computes it; the committed one while the log does not answer."""
    idle_after_ms = job.table.idle_after_ms
    times = {
        partition.partition: PartitionTime.of(
            partition.position, partition.end, facts.states[partition.partition].numbers
        )
        for partition in base.partitions
        # The log has no end of a removed topic: its partitions are ignored.
        if partition.end is not None
    }
    mark = Watermark(state.watermark_ms)
    if base.log_error is None:
        mark = watermark(times, state.watermark_ms, idle_after_ms, now_ms)
    return {
        "watermark": _instant(mark.at_ms),
        "held_by": None if mark.held_by is None else str(mark.held_by),
        "held_because": mark.reason,
        "without_points": [
            str(partition) for partition, time in times.items() if time.without_points(now_ms, idle_after_ms)
        ],
    }


def _interval(window: Window, state: CloseState, files: Sequence[PartialsFile]) -> dict[str, Any]:
    """How far an interval is closed, and how many of its windows are open."""
    has_closed = state.closed_until_ms != LEAST_MS
    closed_until = _instant(window.start_of(state.closed_until_ms)) if has_closed else None
    return {"interval": window.name, "closed_until": closed_until, "open": open_windows(window, state, files)}


def _windows_strip(window: Window, state: CloseState, files: Sequence[PartialsFile]) -> Strip:
    """The newest windows up to the last one with points."""
    open_from = window.start_of(state.closed_until_ms)
    if not files and state.closed_until_ms == LEAST_MS:
        return Strip(window.name, ())
    first = min([window.start_of(file.first_ms) for file in files], default=LEAST_MS)
    end = max([open_from, *(window.start_of(file.last_ms) + window.millis for file in files)])
    cells = []
    for number in range(WINDOWS_SHOWN_MAX, 0, -1):
        start = end - number * window.millis
        is_closed = first <= start < open_from
        has_points = any(file.first_ms < start + window.millis and start <= file.last_ms for file in files)
        label = (_shown(_instant(start)) or "")[:-4]
        if is_closed or has_points:
            cells.append(Cell(label, CellState.CLOSED if is_closed else CellState.OPEN))
    return Strip(window.name, tuple(cells))


def _facts(values: Mapping[str, Any], *, reached: bool) -> dict[str, str]:
    """What is stated below the table; `reached`: the log answered."""
    left_out = ", ".join(f"{values[name]:,} {text}" for name, text in LEFT_OUT.items() if values[name])
    watermark = _shown(values["watermark"]) or "not known yet"
    if not reached:
        watermark += ", as of the last close"
    elif values["held_by"]:
        watermark += f", held back by {values['held_by']}: {values['held_because']}"
    lines = {
        "watermark": watermark,
        "points": f"{values['points']:,} counted, {f'left out: {left_out}' if left_out else 'none left out'}",
        "closes": f"{values['closes']:,} complete{', another one is under way' if values['closing'] else ''}",
        "partials": f"{values['partials_rows']:,} rows in {_counted(values['partials_files'], 'file')}",
    }
    if values["without_points"]:
        names = ", ".join(values["without_points"])
        lines["no points"] = f"{names}: records arrive, none of them held a point for idle_after"
    if values["updated"]:
        lines["closes"] += f", {_counted(values['updated'], 'row')} corrected by late points"
    if "published" in values:
        lines["published"] = f"{values['published']:,} of {_counted(values['closes'], 'close')}"
    return lines


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _instant(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def _shown(instant: str | None) -> str | None:
    """A time in the format of other statuses, to the second."""
    return None if instant is None else f"{instant[:10]} {instant[11:19]}Z"
