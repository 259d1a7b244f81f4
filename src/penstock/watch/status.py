"""How a job stands: positions, lag, last commits, quarantine, gaps and what needs a person's eye."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from penstock.claims.admin import owners
from penstock.claims.reading import CoordinatedGroup
from penstock.errors import PenstockError
from penstock.job.spec import JobSpec, Secret
from penstock.log.kafka import KafkaLog
from penstock.log.mirror import mirrored
from penstock.log.offsets import Partition
from penstock.tables.delta.keys import topic_fingerprint
from penstock.tables.state import PartitionState, Totals
from penstock.verify.facts import TableFacts, read_log, read_table
from penstock.verify.laws import LogFacts
from penstock.verify.log_offsets import record_times

COMMITS_SHOWN = 5
AGE_SECONDS_MAX = 5.0
"""How long to wait for the oldest unread records of all partitions together."""
HIDDEN = "******"


class AlertKind(StrEnum):
    GAP_AHEAD = "gap ahead"
    RECREATED = "topic recreated"
    TOPIC_GONE = "topic gone"
    BEYOND_END = "position beyond end"
    QUARANTINE = "quarantine not empty"
    MIRROR_BEHIND = "mirror behind"
    LOG_UNREACHABLE = "log unreachable"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that a person should look at."""

    kind: AlertKind
    text: str


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition; what only the log knows is None while it is not reachable."""

    partition: Partition
    position: int | None
    token: int
    totals: Totals
    first: int | None = None
    end: int | None = None
    lag_seconds: float | None = None
    """The age of the oldest unread record; None if there is none, or if it did not come in time."""
    mirrored: int | None = None
    """The offset that the job's consumer group shows."""
    owner: str | None = None
    """The client id that holds the partition's claim."""

    @property
    def lag_records(self) -> int | None:
        """Offsets up to the end of the log that are not read yet; those without a record count too."""
        if self.end is None or self.position is None:
            return None
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class CommitStatus:
    """One of the last commits of the table, by whomever."""

    version: int
    at: datetime
    kind: str
    rows: int | None
    """None for a commit that Penstock did not make, and for one without rows of its own."""
    quarantined: int = 0
    slices: int = 0


@dataclass(frozen=True, slots=True)
class RecordedGap:
    """Offsets that were passed over, lost by the log or given up after a crash, and the commit that says so."""

    partition: Partition
    start: int
    end: int
    version: int
    at: datetime


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How a job stands. `version` is None while it has not started."""

    job: str
    table: str
    version: int | None
    partitions: tuple[PartitionStatus, ...] = ()
    commits: tuple[CommitStatus, ...] = ()
    """The newest first."""
    quarantine_rows: int = 0
    gap_offsets: int = 0
    """All that were ever recorded; `gaps` has those that the table's history still tells of."""
    gaps: tuple[RecordedGap, ...] = ()
    given_up_offsets: int = 0
    """All that at-most-once ever lost; `given_up` has those that the table's history still tells of."""
    given_up: tuple[RecordedGap, ...] = ()
    alerts: tuple[Alert, ...] = ()
    log_error: str | None = None
    exit_code: int = 0
    """Of the error that kept the log's side away; 0 otherwise."""

    @property
    def started(self) -> bool:
        return self.version is not None

    def as_json(self) -> dict[str, Any]:
        """The status as plain values for `--json`."""
        return {
            "job": self.job,
            "started": self.started,
            "table": self.table,
            "version": self.version,
            "partitions": [_partition_json(each) for each in self.partitions],
            "commits": [{**asdict(each), "at": each.at.isoformat()} for each in self.commits],
            "quarantine_rows": self.quarantine_rows,
            "gap_offsets": self.gap_offsets,
            "gaps": [_gap_json(each) for each in self.gaps],
            "given_up_offsets": self.given_up_offsets,
            "given_up": [_gap_json(each) for each in self.given_up],
            "alerts": [{"kind": each.kind.name.lower(), "text": each.text} for each in self.alerts],
            "log_error": self.log_error,
        }


@dataclass(frozen=True, slots=True)
class LogView:
    """What the log says of a job; `facts` is None while it is not reachable, and `error` says why."""

    facts: LogFacts | None = None
    ages: Mapping[Partition, float] = field(default_factory=dict)
    mirrored: Mapping[Partition, int] = field(default_factory=dict)
    owners: Mapping[Partition, str] = field(default_factory=dict)
    error: PenstockError | None = None


def status(job: JobSpec, now: Callable[[], float] = time.time) -> JobStatus:
    """Ask table and log how the job stands; a log that does not answer leaves the table's side."""
    path = HIDDEN if isinstance(job.table.path, Secret) else job.table.path
    facts = read_table(job)
    if facts is None:
        return JobStatus(job.name, path, None)
    view = _read_log_view(job, facts, now)
    partitions = tuple(_partition_status(each, facts.states[each], view) for each in facts.lives.current)
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
        alerts=tuple(alerts(partitions, facts.lives.fingerprints, view, quarantine_rows)),
        log_error=view.error.primary if view.error else None,
        exit_code=view.error.exit_code if view.error else 0,
    )


def alerts(
    partitions: Iterable[PartitionStatus], fingerprints: Mapping[str, int], view: LogView, quarantine_rows: int
) -> Iterator[Alert]:
    """What a person should look at, the gravest first."""
    if view.error is not None:
        yield Alert(AlertKind.LOG_UNREACHABLE, view.error.primary)
    if view.facts is not None:
        yield from _identity_alerts(fingerprints, view.facts.topic_ids)
    known = tuple(partitions)
    for each in known:
        yield from _partition_alerts(each)
    if quarantine_rows:
        yield Alert(AlertKind.QUARANTINE, f"{quarantine_rows} records are in quarantine")


def _identity_alerts(fingerprints: Mapping[str, int], topic_ids: Mapping[str, str]) -> Iterator[Alert]:
    for topic, fingerprint in sorted(fingerprints.items()):
        if topic not in topic_ids:
            yield Alert(AlertKind.TOPIC_GONE, f"topic {topic} does not exist any more")
        elif topic_fingerprint(topic_ids[topic]) != fingerprint:
            yield Alert(AlertKind.RECREATED, f"topic {topic} was recreated; the positions belong to the earlier one")


def _partition_alerts(each: PartitionStatus) -> Iterator[Alert]:
    if each.position is None or each.first is None or each.end is None:
        return
    if each.position > each.end:
        yield Alert(
            AlertKind.BEYOND_END, f"{each.partition}: position {each.position} is beyond the log's end {each.end}"
        )
    if each.position < each.first:
        text = f"{each.partition}: the log no longer has offsets [{each.position}, {each.first})"
        yield Alert(AlertKind.GAP_AHEAD, text)
    # Before its first slice a job mirrors nothing.
    if each.totals.offsets and (each.mirrored or 0) < each.position:
        shown = "none" if each.mirrored is None else str(each.mirrored)
        text = f"{each.partition}: the consumer group shows {shown}, the position is {each.position}"
        yield Alert(AlertKind.MIRROR_BEHIND, text)


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


def _read_log_view(job: JobSpec, facts: TableFacts, now: Callable[[], float]) -> LogView:
    with closing(KafkaLog(job.log)) as log:
        try:
            found = read_log(log, facts.lives)
            unread = {
                each: max(position, bounds.first)
                for each, bounds in found.bounds.items()
                if (position := facts.states[each].position) is not None and position < bounds.end
            }
            times = record_times(job.log, unread, AGE_SECONDS_MAX)
            offsets = mirrored(log, job.log.group, found.bounds) if job.log.group else {}
        except PenstockError as error:
            return LogView(error=error)
    asked_at = now()
    return LogView(found, {each: max(0.0, asked_at - at) for each, at in times.items()}, offsets, _owners(job))


def _owners(job: JobSpec) -> Mapping[Partition, str]:
    """Who holds which partition; nobody where the job has no claims, or never ran with them."""
    if job.claims is None:
        return {}
    try:
        return owners(CoordinatedGroup(job.log, job.log.group, job.claims.topic, job.claims.heartbeat_seconds))
    except PenstockError:
        return {}


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


def _partition_json(each: PartitionStatus) -> dict[str, Any]:
    return {
        "topic": each.partition.topic,
        "topic_id": each.partition.topic_id,
        "partition": each.partition.number,
        "position": each.position,
        "first": each.first,
        "end": each.end,
        "lag_records": each.lag_records,
        "lag_seconds": each.lag_seconds,
        "mirrored": each.mirrored,
        "owner": each.owner,
        "token": each.token,
        **asdict(each.totals),
    }


def _gap_json(gap: RecordedGap) -> dict[str, Any]:
    return {
        "topic": gap.partition.topic,
        "partition": gap.partition.number,
        "start": gap.start,
        "end": gap.end,
        "version": gap.version,
        "at": gap.at.isoformat(),
    }
