"""The log's side of a status: ends, ages, the consumer group and owners; and the alerts that come from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing

from penstock.claims.admin.commands import owners
from penstock.claims.admin.log_reader import CoordinatedGroup
from penstock.errors import PenstockError
from penstock.job.spec import JobSpec, kafka_of
from penstock.lake.delta.keys import topic_fingerprint
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.proof.offsets.incarnations import TopicIncarnations
from penstock.proof.sources import read_log
from penstock.status.model import Alert, AlertKind, LogView, PartitionStatus

AGE_SECONDS_MAX = 5.0
"""How long to wait for the oldest unread records of all partitions together."""


def read_log_view(
    job: JobSpec,
    open_log: OpenLog,
    incarnations: TopicIncarnations,
    positions: Mapping[Partition, int | None],
    now: Callable[[], float],
) -> LogView:
    """Ask the log; one that does not answer gives a view with its error."""
    with closing(open_log(job)) as log:
        try:
            found = read_log(log, incarnations)
            unread = {
                each: max(position, bounds.first)
                for each, bounds in found.bounds.items()
                if (position := positions[each]) is not None and position < bounds.end
            }
            times = log.record_times(unread, AGE_SECONDS_MAX)
            offsets = log.shown(found.bounds)
        except PenstockError as error:
            return LogView(error=error)
    asked_at = now()
    return LogView(found, {each: max(0.0, asked_at - at) for each, at in times.items()}, offsets, _owners(job))


def _owners(job: JobSpec) -> Mapping[Partition, str]:
    """Who holds which partition; nobody where the job has no claims, or never ran with them."""
    if job.claims is None:
        return {}
    try:
        return owners(CoordinatedGroup(kafka_of(job), job.log.group, job.claims.topic))
    except PenstockError:
        return {}


def alerts(
    partitions: Iterable[PartitionStatus], fingerprints: Mapping[str, int], view: LogView, quarantine_rows: int
) -> Iterator[Alert]:
    """What a person should look at, the gravest first."""
    if view.error is not None:
        yield Alert(AlertKind.LOG_UNREACHABLE, view.error.primary)
    if view.facts is not None:
        yield from _identity_alerts(fingerprints, view.facts.topic_ids)
    for each in partitions:
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
    needed, shown = each.needed_position, each.shown_position
    if each.position is None or needed is None or shown is None or each.first is None or each.end is None:
        return
    if each.position > each.end:
        text = f"{each.partition}: position {each.position} is beyond the log's end {each.end}"
        yield Alert(AlertKind.BEYOND_END, text)
    if needed < each.first:
        yield Alert(AlertKind.GAP_AHEAD, f"{each.partition}: the log no longer has offsets [{needed}, {each.first})")
    # Before its first slice a job mirrors nothing.
    if each.totals.offsets and (each.mirrored or 0) < shown:
        group = "none" if each.mirrored is None else str(each.mirrored)
        text = f"{each.partition}: the consumer group shows {group}, the position is {shown}"
        yield Alert(AlertKind.MIRROR_LAGGING, text)
