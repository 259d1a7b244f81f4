"""What the page of a job shows of its kind of table and of its log: sections of its status, and a WAL's backlog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from penstock.console.rendering import duration, number
from penstock.console.state import WatchedJob
from penstock.logs.wal.log import WalLogSpec
from penstock.reporting.model import PartitionStatus, Section


def sections_of(job: WatchedJob) -> Sequence[Section]:
    """The sections, as of the newest status; none before the first."""
    if job.status is None:
        return ()
    backlog = [backlog_of(job.status.partitions)] if job.spec and isinstance(job.spec.log, WalLogSpec) else []
    return [*job.status.sections, *backlog]


def backlog_of(partitions: Iterable[PartitionStatus]) -> Section:
    """What each topic of a WAL holds for the job: the server deletes what every job has read."""
    rows = []
    by_topic = sorted(partitions, key=lambda status: status.partition.topic)
    for topic, statuses in groupby(by_topic, key=lambda status: status.partition.topic):
        held = list(statuses)
        unread = [status.lag_records for status in held if status.lag_records is not None]
        ages = [status.lag_seconds for status in held if status.lag_seconds is not None]
        stored = [status.end - status.first for status in held if status.end is not None and status.first is not None]
        shown = (number(sum(unread) if unread else None), duration(max(ages, default=None)))
        rows.append((topic, *shown, number(sum(stored) if stored else None)))
    return Section("wal backlog", {}, ("source", "unread", "oldest unread", "stored"), tuple(rows))
