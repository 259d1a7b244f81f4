"""How a rollup stands: its watermark and what holds it, open windows, and points that were left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table, find_table
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.status.model import JobStatus, Section, shown_path
from penstock.tables.rollup.closing.decide import PartialsFile
from penstock.tables.rollup.closing.files import partials_files
from penstock.tables.rollup.closing.standing import LEAST_MS, Standing, late_key, standing_of, updated_key
from penstock.tables.rollup.closing.watermark import PartitionTime, Watermark, watermark
from penstock.tables.rollup.publishing.publishing import published_key
from penstock.tables.rollup.spec import PARTITION_SUMS, RollupSpec, Window, partials_job
from penstock.tables.single.facts import TableFacts, facts_status, read_table

LEFT_OUT = {"blacklisted": "blacklisted", "non_numeric": "not numeric", "non_finite": "not finite"}
"""Values of fields that gave no point."""


def rollup_status(job: JobSpec[RollupSpec], open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
    """Ask both tables and the log how the job stands."""
    of_partials = partials_job(job)
    facts = read_table(of_partials)
    if facts is None:
        return JobStatus(job.name, shown_path(job), None)
    base = facts_status(of_partials, facts, open_log, now)
    windows = find_table(job.table.windows_place, job.name)
    section = _section(job, facts, windows, base, int(now() * 1000))
    return replace(base, table=shown_path(job), sections=(*base.sections, section))


def _section(
    job: JobSpec[RollupSpec],
    facts: TableFacts,
    windows: Table | None,
    base: JobStatus,
    now_ms: int,
) -> Section:
    numbers = {} if windows is None else windows.transactions()
    standing = standing_of(job.name, facts.table.transactions(), numbers)
    files = partials_files(facts.table.handle)
    times, idle_after_ms = _partition_times(facts, base), job.table.idle_after_ms
    # The committed one while the log does not answer.
    mark = Watermark(standing.watermark_ms, None)
    if base.log_error is None:
        mark = watermark(times, standing.watermark_ms, idle_after_ms, now_ms)
    by_interval = [_interval(job.name, each, standing, files, numbers) for each in job.table.windows]
    sums = {name: sum(each.numbers.get(name, 0) for each in facts.states.values()) for name in PARTITION_SUMS}
    values: dict[str, Any] = {
        "watermark": _instant(mark.at_ms),
        "held_by": None if mark.holder is None else str(mark.holder.partition),
        "held_because": None if mark.holder is None else mark.holder.reason.value,
        "without_points": [
            str(partition) for partition, time in times.items() if time.without_points(now_ms, idle_after_ms)
        ],
        "closes": standing.closed,
        "closing": standing.close > standing.closed,
        "windows": by_interval,
        "updated": numbers.get(updated_key(job.name), 0),
        "partials_files": len(files),
        "partials_rows": sum(each.rows for each in files),
        **sums,
    }
    if job.table.publish is not None:
        buckets = range(job.table.publish.buckets)
        values["published"] = min(numbers.get(published_key(job.name, each), 0) for each in buckets)
    return Section(
        "rollup",
        values,
        headings=("interval", "closed until", "open windows", "late points"),
        rows=tuple(
            (each["interval"], _shown(each["closed_until"]) or "-", f"{each['open']:,}", f"{each['late']:,}")
            for each in by_interval
        ),
        lines=tuple(f"{name:<10} {told}" for name, told in _told(values, reached=base.log_error is None).items()),
    )


def _told(values: Mapping[str, Any], *, reached: bool) -> dict[str, str]:
    """What stands below the table, by topic."""
    told = {
        "watermark": _told_watermark(values, reached),
        "points": f"{values['points']:,} counted, {_told_left_out(values)}",
        "closes": f"{values['closes']:,} complete{', another one is under way' if values['closing'] else ''}",
        "partials": f"{values['partials_rows']:,} rows in {_counted(values['partials_files'], 'file')}",
    }
    if values["without_points"]:
        names = ", ".join(values["without_points"])
        told["no points"] = f"{names}: records arrive, none of them held a point for idle_after"
    if values["updated"]:
        told["closes"] += f", {_counted(values['updated'], 'row')} corrected by late points"
    if values["future"]:
        told["points"] += f"; {_counted(values['future'], 'record')} too far in the future"
    if "published" in values:
        told["published"] = f"{values['published']:,} of {_counted(values['closes'], 'close')}"
    return told


def _told_watermark(values: Mapping[str, Any], reached: bool) -> str:
    at = _shown(values["watermark"]) or "not known yet"
    if not reached:
        return f"{at}, as of the last close"
    return f"{at}, held back by {values['held_by']}: {values['held_because']}" if values["held_by"] else at


def _told_left_out(values: Mapping[str, Any]) -> str:
    found = [f"{values[name]:,} {text}" for name, text in LEFT_OUT.items() if values[name]]
    return f"left out: {', '.join(found)}" if found else "none left out"


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _partition_times(facts: TableFacts, base: JobStatus) -> dict[Partition, PartitionTime]:
    """As the closing process would see them."""
    return {
        each.partition: PartitionTime.of(each.position, each.end, facts.states[each.partition].numbers)
        for each in base.partitions
        # Of a topic that was removed, the log tells no end: it does not count.
        if each.end is not None
    }


def _interval(
    job: str, window: Window, standing: Standing, files: Sequence[PartialsFile], numbers: Mapping[str, int]
) -> dict[str, Any]:
    closed = standing.closed_until_ms
    known = closed != LEAST_MS
    return {
        "interval": window.name,
        "closed_until": _instant(closed - closed % window.millis) if known else None,
        "open": _open_windows(window, closed if known else None, files),
        "late": numbers.get(late_key(job, window.name), 0),
    }


def _open_windows(window: Window, closed_ms: int | None, files: Sequence[PartialsFile]) -> int:
    """Windows with points that are not closed, whatever their number of series, as far as files tell their times."""
    open_from = -(2**62) if closed_ms is None else closed_ms - closed_ms % window.millis
    spans = sorted(
        (max(each.first_ms, open_from) // window.millis, each.last_ms // window.millis)
        for each in files
        if each.last_ms >= open_from
    )
    count, counted_to = 0, -(2**62)
    for first, last in spans:
        count += max(0, last - max(first, counted_to + 1) + 1)
        counted_to = max(counted_to, last)
    return count


def _instant(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def _shown(instant: str | None) -> str | None:
    """As other times of a status are shown, to the second."""
    return None if instant is None else f"{instant[:10]} {instant[11:19]}Z"
