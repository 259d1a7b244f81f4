"""How a routed job stands: its partitions, its types, their days, and the monitoring rules of seed 000."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock.environment import Environment
from penstock.errors import PenstockError, UserError, did_you_mean
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.proof.offsets.incarnations import TopicIncarnations
from penstock.status.log_lag import alerts, read_log_view
from penstock.status.model import (
    COMMITS_SHOWN,
    Alert,
    AlertKind,
    CommitStatus,
    JobStatus,
    LogView,
    PartitionStatus,
    RecordedGap,
    shown_path,
)
from penstock.tables.export.alerts import Measured, Rule, breaches, failed_percent, gap_records, measure
from penstock.tables.export.days.days import watermark_of
from penstock.tables.export.ledger.entry import Entry
from penstock.tables.export.ledger.state import Cause, Day, Lane, LedgerState, Rename, RoutedPartition
from penstock.tables.export.opening import open_export
from penstock.tables.export.spec import AlertLimits, ExportSpec
from penstock.tables.export.status.day_answers import DayAnswer, answer, instant, last_complete_day

ENTRIES_SEARCHED = 20
"""How many of the newest entries are searched for gaps."""
_KINDS = {
    Rule.FAILED_WRITES: AlertKind.FAILED_WRITES,
    Rule.LAG: AlertKind.LAG,
    Rule.DISCREPANCY: AlertKind.DISCREPANCY,
    Rule.RETENTION: AlertKind.RETENTION,
}


@dataclass(frozen=True, slots=True)
class ExportPartitionStatus(PartitionStatus):
    """A partition of a routed job: `position` is what is read, below `global_position` every type is written."""

    global_position: int | None = None
    read_again_from: int | None = None
    """The lowest offset that the log still has to give; a backfill takes what is there."""

    @property
    def needed_position(self) -> int | None:
        return self.read_again_from

    @property
    def shown_position(self) -> int | None:
        return self.global_position

    def as_json(self) -> dict[str, Any]:
        return {**PartitionStatus.as_json(self), "global_position": self.global_position}


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """A type that is behind in a partition."""

    partition: Partition
    position: int
    gap_records: int
    """Offsets between it and the partition's position."""
    deferred: int
    cause: Cause
    since: datetime

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "position": self.position,
            "gap_records": self.gap_records,
            "deferred": self.deferred,
            "cause": self.cause.value,
            "since": self.since.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """One type: what is written of it, where it is behind, and how its days stand."""

    name: str
    rows: int
    files: int
    size_bytes: int
    gap_records: int
    """Of the partition where it is furthest behind."""
    lanes: tuple[LaneStatus, ...]
    pending_renames: int
    writes: int
    """How many of the last writes are remembered; `failed_writes_percent` is of these."""
    failed_writes_percent: float | None
    watermark_ms: int | None
    last_complete_day: Day | None
    open_days: tuple[Day, ...]
    reopened_days: tuple[Day, ...]

    @property
    def failing(self) -> bool:
        return bool(self.pending_renames) or any(each.cause is Cause.FAILING for each in self.lanes)

    def as_json(self) -> dict[str, Any]:
        return {
            "type": self.name,
            "rows": self.rows,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "gap_records": self.gap_records,
            "behind": [each.as_json() for each in self.lanes],
            "pending_renames": self.pending_renames,
            "writes": self.writes,
            "failed_writes_percent": self.failed_writes_percent,
            "watermark": instant(self.watermark_ms),
            "last_complete_day": self.last_complete_day,
            "open_days": list(self.open_days),
            "reopened_days": list(self.reopened_days),
        }


@dataclass(frozen=True, slots=True)
class ExportStatus(JobStatus):
    """How a routed job stands; commits are the entries of its ledger."""

    types: tuple[TypeStatus, ...] = ()
    pending: tuple[Rename, ...] = ()
    measured: Measured = field(default_factory=Measured)
    limits: AlertLimits = field(default_factory=AlertLimits)

    def as_json(self) -> dict[str, Any]:
        return {
            **JobStatus.as_json(self),
            "types": [each.as_json() for each in self.types],
            "pending_renames": [{"type": each.type, "target": each.target} for each in self.pending],
            "rules": rules_json(self.measured, self.limits),
        }


def export_status(job: JobSpec[ExportSpec], open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
    """Ask ledger and log how the job stands; nothing is finished or changed on the way."""
    table = open_export(job, Environment(now=now))
    state = table.state()
    if state.number == 0:
        return ExportStatus(job.name, shown_path(job), None, limits=job.table.alerts)
    current = dict(sorted(state.current()))
    fingerprints = {topic: number for topic, number in state.fingerprints.items() if number is not None}
    incarnations = TopicIncarnations(current=tuple(current), fingerprints=fingerprints)
    view = read_log_view(job, open_log, incarnations, {each: here.position for each, here in current.items()}, now)
    partitions = tuple(_partition(each, here, state, view) for each, here in current.items())
    entries = table.ledger.last(ENTRIES_SEARCHED)
    totals = [here.totals for here in state.partitions.values()]
    quarantine_rows = sum(each.quarantined - each.replayed for each in totals)
    after, now_ms, unseen = job.table.days.complete_after_seconds, int(now() * 1000), table.finishing.unseen(state)
    types = tuple(type_status(state, name, after, now_ms, unseen) for name in sorted(state.types))
    ends = {each.partition: each.end for each in partitions if each.end is not None}
    measured = measure(state, current, ends, _expiring(job, open_log, state, view, now()))
    return ExportStatus(
        job=job.name,
        table=shown_path(job),
        version=state.number,
        partitions=partitions,
        commits=tuple(_commit(each) for each in entries[:COMMITS_SHOWN]),
        quarantine_rows=quarantine_rows,
        gap_offsets=sum(each.gap for each in totals),
        gaps=tuple(gap for entry in entries for gap in _gaps(entry)),
        given_up_offsets=sum(each.given_up for each in totals),
        alerts=(
            *alerts(partitions, fingerprints, view, quarantine_rows),
            *type_alerts(types),
            *(Alert(_KINDS[each.rule], each.text) for each in breaches(measured, job.table.alerts)),
        ),
        log_error=view.error.primary if view.error else None,
        exit_code=view.error.exit_code if view.error else 0,
        types=types,
        pending=state.pending,
        measured=measured,
        limits=job.table.alerts,
    )


def _expiring(
    job: JobSpec[ExportSpec], open_log: OpenLog, state: LedgerState, view: LogView, now: float
) -> Mapping[Partition, int]:
    """Below which offsets waiting records are near their end; nothing where the log does not say."""
    bounds = view.facts.bounds if view.facts else {}
    waiting = {each: held for each, held in bounds.items() if state.of(each).lanes}
    if not waiting:
        return {}
    with closing(open_log(job)) as log:
        try:
            return log.expiring(waiting, job.table.alerts.retention_percent_max, now)
        except PenstockError:
            return {}


def day_answers(job: JobSpec[ExportSpec], day: Day, wanted: Sequence[str] = ()) -> tuple[DayAnswer, ...]:
    """How a day stands for the types asked for, or for all; by ledger and files, so also while the log is away."""
    environment = Environment()
    table = open_export(job, environment)
    state = table.state()
    known = sorted({*job.table.all_types, *state.types})
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known) or f"its types are {', '.join(known)}"
            raise UserError(f"{job.name} has no type {name}", hint=hint)
    after = job.table.days.complete_after_seconds
    unseen, now_ms = table.finishing.unseen(state), int(environment.now() * 1000)
    return tuple(answer(state, name, day, after, now_ms, unseen[name, day]) for name in (wanted or known))


def type_status(
    state: LedgerState,
    name: str,
    after_seconds: float,
    now_ms: int | None = None,
    unseen: Collection[tuple[str, Day]] = (),
) -> TypeStatus:
    """One type by the ledger's word; the days of `unseen` have files that are not yet as the newest entry says."""
    known = state.types[name]
    current = dict(sorted(state.current()))
    lanes = [(each, here.lanes[name]) for each, here in current.items() if name in here.lanes]
    return TypeStatus(
        name=name,
        rows=known.rows,
        files=known.files,
        size_bytes=known.size_bytes,
        gap_records=max((gap_records(state, each, name) for each in current), default=0),
        lanes=tuple(_lane(each, lane, current[each].position or 0) for each, lane in lanes),
        pending_renames=sum(each.type == name for each in state.pending),
        writes=len(known.outcomes),
        failed_writes_percent=failed_percent(known.outcomes),
        watermark_ms=watermark_of(state, name, now_ms),
        last_complete_day=last_complete_day(state, name, after_seconds, now_ms, unseen),
        open_days=tuple(sorted(day for each, day in state.open_days if each == name)),
        reopened_days=tuple(sorted(day for each, day in state.reopened if each == name)),
    )


def type_alerts(types: Iterable[TypeStatus]) -> Iterator[Alert]:
    """The types that a person has to help; one that only waits for its rotation is well."""
    for each in types:
        failing = [lane for lane in each.lanes if lane.cause is Cause.FAILING]
        if failing:
            deferred = sum(lane.deferred for lane in failing)
            since = min(lane.since for lane in failing)
            text = f"type {each.name} cannot be written since {since:%Y-%m-%dT%H:%M:%SZ}: {deferred} records wait"
            yield Alert(AlertKind.TYPE_BEHIND, text)
        if each.pending_renames:
            text = f"type {each.name}: {each.pending_renames} files cannot be moved to their place"
            yield Alert(AlertKind.TYPE_BEHIND, text)


def rules_json(measured: Measured, limits: AlertLimits) -> dict[str, Any]:
    """The rules as plain values."""
    return {
        "failed_writes_percent": {
            "value": measured.failed_writes_percent,
            "types": dict(measured.failed_writes_percent_by_type),
            "limit": limits.failed_writes_percent_max,
        },
        "lag_records": {
            "value": max(measured.lag_records.values(), default=None),
            "partitions": {str(each): lag for each, lag in measured.lag_records.items()},
            "limit": limits.lag_records_max,
        },
        "discrepancy_records": {
            "value": max(measured.discrepancy_records.values(), default=None),
            "partitions": {str(each): apart for each, apart in measured.discrepancy_records.items()},
            "limit": limits.discrepancy_records_max,
        },
        "retention_percent": {
            "value": sum(measured.expiring_records.values()),
            "types": _by_type(measured.expiring_records),
            "limit": limits.retention_percent_max,
        },
    }


def _by_type(records: Mapping[tuple[Partition, str], int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (_, name), count in records.items():
        found[name] += count
    return dict(found)


def _partition(partition: Partition, here: RoutedPartition, state: LedgerState, view: LogView) -> ExportPartitionStatus:
    bounds = view.facts.bounds.get(partition) if view.facts else None
    return ExportPartitionStatus(
        partition=partition,
        position=here.position,
        token=here.token,
        totals=here.totals,
        first=bounds.first if bounds else None,
        end=bounds.end if bounds else None,
        lag_seconds=view.ages.get(partition),
        mirrored=view.mirrored.get(partition),
        owner=view.owners.get(partition),
        global_position=state.global_position(partition),
        read_again_from=_read_again_from(here),
    )


def _read_again_from(here: RoutedPartition) -> int | None:
    if here.position is None:
        return None
    return min([here.position, *(max(lane.position, lane.counted_from) for lane in here.lanes.values())])


def _lane(partition: Partition, lane: Lane, head: int) -> LaneStatus:
    since = datetime.fromtimestamp(lane.since, UTC)
    return LaneStatus(partition, lane.position, head - lane.position, lane.deferred, lane.cause, since)


def _commit(entry: Entry) -> CommitStatus:
    rows = sum(written.rows for piece in entry.slices for written in piece.written.values())
    quarantined = sum(piece.totals.quarantined for piece in entry.slices)
    at = datetime.fromtimestamp(entry.at, UTC)
    return CommitStatus(
        entry.number, at, entry.kind.value, rows if entry.slices else None, quarantined, len(entry.slices)
    )


def _gaps(entry: Entry) -> Iterator[RecordedGap]:
    at = datetime.fromtimestamp(entry.at, UTC)
    for piece in entry.slices:
        if piece.totals.gap:
            yield RecordedGap(piece.partition, piece.start, piece.start + piece.totals.gap, entry.number, at)
