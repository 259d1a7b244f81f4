"""How a job with a single Delta table stands: positions, lag, last commits, quarantine, gaps and alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.job.spec import JobSpec
from penstock.lake.state import PartitionState
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.status.log_lag import alerts, read_log_view
from penstock.status.model import (
    COMMITS_SHOWN,
    CommitStatus,
    JobStatus,
    LogView,
    PartitionStatus,
    RecordedGap,
    shown_path,
)
from penstock.tables.delta.facts import read_table


def table_status(job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
    """Ask table and log how the job stands; a log that does not answer leaves the table's side."""
    path = shown_path(job)
    facts = read_table(job)
    if facts is None:
        return JobStatus(job.name, path, None)
    positions = {each: state.position for each, state in facts.states.items()}
    view = read_log_view(job, open_log, facts.incarnations, positions, now)
    partitions = tuple(_partition_status(each, facts.states[each], view) for each in facts.incarnations.current)
    quarantine_rows = sum(state.totals.quarantined - state.totals.replayed for state in facts.states.values())
    return JobStatus(
        job=job.name,
        table=path,
        version=facts.version,
        partitions=partitions,
        commits=tuple(_commit(record) for record in facts.history[:COMMITS_SHOWN]),
        quarantine_rows=quarantine_rows,
        gap_offsets=sum(state.totals.gap for state in facts.states.values()),
        gaps=tuple(recorded_gaps(facts.history, job.name)),
        given_up_offsets=sum(state.totals.given_up for state in facts.states.values()),
        given_up=tuple(recorded_gaps(facts.history, job.name, "given_up")),
        alerts=tuple(alerts(partitions, facts.incarnations.fingerprints, view, quarantine_rows)),
        log_error=view.error.primary if view.error else None,
        exit_code=view.error.exit_code if view.error else 0,
    )


def recorded_gaps(history: Iterable[Mapping[str, Any]], job: str, count: str = "gap") -> Iterator[RecordedGap]:
    """The offsets that the retained commits of a job have passed over under that count, in the order of the history."""
    for record in history:
        ours = record.get("penstock")
        if not isinstance(ours, dict) or ours.get("job") != job:
            continue
        for piece in ours.get("slices", ()):
            if piece.get(count):
                partition = Partition(piece["topic"], piece["topic_id"], piece["partition"])
                end = piece["start"] + piece[count]
                yield RecordedGap(partition, piece["start"], end, int(record["version"]), _instant(record))


def _partition_status(partition: Partition, state: PartitionState, view: LogView) -> PartitionStatus:
    bounds = view.facts.bounds.get(partition) if view.facts else None
    return PartitionStatus(
        partition=partition,
        position=state.position,
        token=state.token,
        totals=state.totals,
        first=bounds.first if bounds else None,
        end=bounds.end if bounds else None,
        lag_seconds=view.ages.get(partition),
        mirrored=view.mirrored.get(partition),
        owner=view.owners.get(partition),
    )


def _commit(record: Mapping[str, Any]) -> CommitStatus:
    ours = record.get("penstock")
    version = int(record["version"])
    if not isinstance(ours, dict):
        return CommitStatus(version, _instant(record), f"other: {record.get('operation', 'unknown')}", None)
    slices = ours.get("slices", ())
    quarantined = sum(piece.get("quarantined", 0) for piece in slices)
    return CommitStatus(
        version, _instant(record), str(ours.get("kind")), ours.get("rows"), int(quarantined), len(slices)
    )


def _instant(record: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(record["timestamp"] / 1000, UTC)
