"""How a job with a single Delta table stands: positions, lag, last commits, quarantine, gaps and alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.job.spec import JobSpec
from penstock.lake.delta.provenance import provenance_of
from penstock.logs.registry import OpenLog
from penstock.status.frame import TableView, job_status
from penstock.status.log_lag import read_log_view
from penstock.status.model import COMMITS_SHOWN, CommitStatus, JobStatus, RecordedGap, shown_path
from penstock.tables.single.facts import TableFacts, read_table


def table_status(job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
    """Ask table and log how the job stands; a log that does not answer leaves the table's side."""
    facts = read_table(job)
    return JobStatus(job.name, shown_path(job), None) if facts is None else facts_status(job, facts, open_log, now)


def facts_status(job: JobSpec, facts: TableFacts, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
    """The same, where the table was asked already."""
    table = TableView(
        version=facts.table.version,
        incarnations=facts.incarnations,
        states=facts.states,
        commits=tuple(_commit(record) for record in facts.history[:COMMITS_SHOWN]),
        gaps=tuple(recorded_gaps(facts.history, job.name)),
        given_up=tuple(recorded_gaps(facts.history, job.name, "given_up")),
    )
    return job_status(job, table, read_log_view(job, open_log, table.incarnations, table.positions, now))


def recorded_gaps(history: Iterable[Mapping[str, Any]], job: str, count: str = "gap") -> Iterator[RecordedGap]:
    """The offsets that the retained commits of a job have passed over under that count, in the order of the history."""
    for record in history:
        ours = provenance_of(record)
        if ours is None or ours.job != job:
            continue
        for piece in ours.slices:
            offsets: int = getattr(piece.totals, count)
            if offsets:
                end = piece.start + offsets
                yield RecordedGap(piece.place, piece.start, end, int(record["version"]), _instant(record))


def _commit(record: Mapping[str, Any]) -> CommitStatus:
    ours = provenance_of(record)
    version = int(record["version"])
    if ours is None:
        return CommitStatus(version, _instant(record), f"other: {record.get('operation', 'unknown')}", None)
    quarantined = sum(piece.quarantined for piece in ours.slices)
    return CommitStatus(version, _instant(record), ours.kind, ours.rows, quarantined, len(ours.slices))


def _instant(record: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(record["timestamp"] / 1000, UTC)
