"""The part of a status that is the same for every kind of table: the state in the table, compared with the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from penstock.errors import PenstockError
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.state import DeltaPartition
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.proof.numbers import TopicIncarnations, read_log
from penstock.reporting.model import Alert, AlertKind, JobStatus, LogView, PartitionStatus, shown_path
from penstock.reporting.verdicts import Judgement, Observation, Thresholds, Verdict, broken_limits, judge

AGE_SECONDS_MAX = 5.0
"""How long to wait for the oldest unread records of all partitions together."""


States = Mapping[Partition, DeltaPartition]
"""The state of a job's partitions in its table, also of topics that were recreated since."""


@dataclass(frozen=True, slots=True)
class Past:
    """What the history of a table shows of a job before now, for verdicts."""

    now: float
    committed_at: float | None = None
    positions: Mapping[Partition, tuple[Observation, ...]] = field(default_factory=dict)
    """Oldest first."""
    shown_beyond: Mapping[Partition, int] = field(default_factory=dict)
    """Offsets in the consumer group that the table's newest position is below."""


def job_status(
    job: JobSpec,
    version: int,
    incarnations: TopicIncarnations,
    states: States,
    log: LogView,
    past: Past,
    further: Callable[[PartitionStatus], PartitionStatus] = lambda status: status,
) -> JobStatus:
    """The status of a job; `further` adds to a partition what only this kind of table reports."""
    totals = [state.totals for state in states.values()]
    identity = dict(_identity_alerts(incarnations.fingerprints, log.facts.topic_ids)) if log.facts else {}
    shown = (further(_partition_status(place, states[place], log)) for place in incarnations.current)
    partitions = tuple(_judged(job, status, log, past, identity) for status in shown)
    quarantine_rows = sum(counted.quarantined - counted.replayed for counted in totals)
    status = JobStatus(
        job=job.name,
        table=shown_path(job),
        version=version,
        partitions=partitions,
        quarantine_rows=quarantine_rows,
        gap_offsets=sum(counted.gap for counted in totals),
        alerts=tuple(alerts(job, partitions, identity, log, quarantine_rows)),
        log_error=log.error.primary if log.error else None,
        exit_code=log.error.exit_code if log.error else 0,
    )
    return status.judged(*(Judgement(Verdict.ERR, alert.text) for alert in identity.values()))


def _judged(
    job: JobSpec, status: PartitionStatus, log: LogView, past: Past, identity: Mapping[str, Alert]
) -> PartitionStatus:
    fault = log.error.primary if log.error else ""
    if (of_topic := identity.get(status.partition.topic)) is not None:
        fault = of_topic.text
    elif of_position := next(_position_faults(status), None):
        fault = of_position[1]
    facts = replace(status.facts, fault=fault, rewound_from=past.shown_beyond.get(status.partition))
    window = past.positions.get(status.partition, ())
    return replace(status, judgement=judge(facts, window, Thresholds.of(job), past.now, past.committed_at))


def _partition_status(partition: Partition, state: DeltaPartition, log: LogView) -> PartitionStatus:
    bounds = log.facts.bounds.get(partition) if log.facts else None
    return PartitionStatus(
        partition=partition,
        position=state.position,
        token=state.token,
        totals=state.totals,
        first=bounds.first if bounds else None,
        end=bounds.end if bounds else None,
        lag_seconds=log.ages.get(partition),
        mirrored=log.mirrored.get(partition),
        shown_position=state.position,
        retention_seconds=log.retention.get(partition.topic),
    )


def read_log_view(
    job: JobSpec, open_log: OpenLog, incarnations: TopicIncarnations, states: States, now: Callable[[], float]
) -> LogView:
    """Ask the log; if it does not answer, the view has the error."""
    with closing(open_log(job)) as log:
        try:
            facts = read_log(log, incarnations)
            unread = {
                partition: max(position, bounds.first)
                for partition, bounds in facts.bounds.items()
                if (position := states[partition].position) is not None and position < bounds.end
            }
            times = log.record_times(unread, AGE_SECONDS_MAX)
            offsets = log.shown(facts.bounds)
            topics = {partition.topic for partition in facts.bounds}
            retention = {topic: kept for topic in topics if (kept := log.retention_seconds(topic)) is not None}
        except PenstockError as error:
            return LogView(error=error)
    asked_at = now()
    return LogView(facts, {partition: max(0.0, asked_at - at) for partition, at in times.items()}, offsets, retention)


def alerts(
    job: JobSpec,
    partitions: Iterable[PartitionStatus],
    identity: Mapping[str, Alert],
    view: LogView,
    quarantine_rows: int,
) -> Iterator[Alert]:
    """Alerts, the most serious first."""
    if view.error is not None:
        yield Alert(AlertKind.LOG_UNREACHABLE, view.error.reason)
    yield from identity.values()
    for partition in partitions:
        yield from _partition_alerts(partition)
        for rule, reason in broken_limits(partition.facts, job.alerts).items():
            yield Alert(AlertKind(rule), f"{partition.partition}: {reason}")
    if quarantine_rows:
        yield Alert(AlertKind.QUARANTINE, f"records in quarantine: {quarantine_rows}")


def _identity_alerts(fingerprints: Mapping[str, int], topic_ids: Mapping[str, str]) -> Iterator[tuple[str, Alert]]:
    """By topic."""
    for topic, fingerprint in sorted(fingerprints.items()):
        if topic not in topic_ids:
            yield topic, Alert(AlertKind.TOPIC_GONE, f"topic {topic} no longer exists")
        elif topic_fingerprint(topic_ids[topic]) != fingerprint:
            text = f"topic {topic} was recreated; the positions belong to the earlier one"
            yield topic, Alert(AlertKind.RECREATED, text)


def _position_faults(status: PartitionStatus) -> Iterator[tuple[AlertKind, str]]:
    """Why the position does not fit what the log has."""
    lowest = status.shown_position
    if status.position is None or lowest is None or status.first is None or status.end is None:
        return
    if status.position > status.end:
        yield AlertKind.BEYOND_END, f"position {status.position} is beyond the log's end {status.end}"
    if lowest < status.first:
        yield AlertKind.GAP_AHEAD, f"the log no longer has offsets [{lowest}, {status.first})"


def _partition_alerts(status: PartitionStatus) -> Iterator[Alert]:
    for kind, text in _position_faults(status):
        yield Alert(kind, f"{status.partition}: {text}")
    lowest = status.shown_position
    if status.first is None or lowest is None:
        return
    # Before its first slice a job mirrors nothing.
    if status.totals.offsets and (status.mirrored or 0) < lowest:
        group = "no offset" if status.mirrored is None else f"offset {status.mirrored}"
        text = f"{status.partition}: the consumer group shows {group}, the job's position is {lowest}"
        yield Alert(AlertKind.MIRROR_LAGGING, text)
