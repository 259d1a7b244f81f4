"""How an export stands: its partitions, its types, their days, and the monitoring rules of seed 000."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from penstock.environment import Environment
from penstock.errors import PenstockError
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.status.frame import TableView, job_status, read_log_view
from penstock.status.model import (
    COMMITS_SHOWN,
    UNKNOWN,
    Alert,
    CommitStatus,
    JobStatus,
    LogView,
    PartitionColumn,
    PartitionStatus,
    RecordedGap,
    Section,
    shown_path,
)
from penstock.tables.export.delta_types import open_export
from penstock.tables.export.ledger.entry import Entry
from penstock.tables.export.ledger.state import LedgerState, Rename, RoutedPartition
from penstock.tables.export.proof.facts import incarnations_of
from penstock.tables.export.spec import AlertLimits, ExportSpec
from penstock.tables.export.status.alerts import Measured, Rule, breaches, limit_of, measure
from penstock.tables.export.status.types import TypeStatus, type_alerts, type_status, types_section

ENTRIES_SEARCHED = 20
"""How many of the newest entries are searched for gaps."""


@dataclass(frozen=True, slots=True)
class ExportStatus:
    """How an export stands: what every job tells, and what only exports do. Commits are the entries of its ledger."""

    common: JobStatus
    types: tuple[TypeStatus, ...] = ()
    pending: tuple[Rename, ...] = ()
    measured: Measured = field(default_factory=Measured)
    limits: AlertLimits = field(default_factory=AlertLimits)

    def whole(self) -> JobStatus:
        """With the sections and alerts of exports."""
        broken = (Alert(each.rule, each.text) for each in breaches(self.measured, self.limits))
        return replace(
            self.common,
            alerts=(*self.common.alerts, *type_alerts(self.types), *broken),
            sections=(
                types_section(self.types),
                pending_section(self.pending),
                rules_section(self.measured, self.limits, self.common.log_error is not None),
            ),
        )


def export_status(job: JobSpec[ExportSpec], open_log: OpenLog, now: Callable[[], float]) -> ExportStatus:
    """Ask ledger and log how the job stands; nothing is finished or changed on the way."""
    table = open_export(job, Environment(now=now))
    state = table.state()
    if state.number == 0:
        return ExportStatus(JobStatus(job.name, shown_path(job), None), limits=job.table.alerts)
    entries = table.ledger.last(ENTRIES_SEARCHED)
    told = TableView(
        version=state.number,
        incarnations=incarnations_of(state),
        states=state.partitions,
        commits=tuple(_commit(each) for each in entries[:COMMITS_SHOWN]),
        gaps=tuple(gap for entry in entries for gap in _gaps(entry)),
    )
    view = read_log_view(job, open_log, told, now)
    common = job_status(job, told, view, lambda each: _with_types(each, state))
    after, now_ms, unseen = job.table.days.complete_after_seconds, int(now() * 1000), table.finishing.unseen(state)
    ends = {each.partition: each.end for each in common.partitions if each.end is not None}
    return ExportStatus(
        common,
        types=tuple(type_status(state, name, after, now_ms, unseen) for name in sorted(state.types)),
        pending=state.pending,
        measured=measure(state, told.incarnations.current, ends, _expiring(job, open_log, state, view, now())),
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


def _with_types(each: PartitionStatus, state: LedgerState) -> PartitionStatus:
    """`position` is what is read; below the global position every type is written."""
    lowest = state.global_position(each.partition)
    return replace(
        each,
        needed_position=_read_again_from(state.of(each.partition)),
        shown_position=lowest,
        further=(
            PartitionColumn("global_position", "global", "position", lowest),
            PartitionColumn("deferred", "deferred", "written", each.totals.deferred),
        ),
    )


def _read_again_from(here: RoutedPartition) -> int | None:
    if here.position is None:
        return None
    return min([here.position, *(max(lane.position, lane.counted_from) for lane in here.lanes.values())])


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


def pending_section(pending: Sequence[Rename]) -> Section:
    """Files that could not be moved to their place."""
    lines = (f"files that wait to be moved to their place: {len(pending)}",) if pending else ()
    return Section("pending_renames", [{"type": each.type, "target": each.target} for each in pending], lines=lines)


def rules_section(measured: Measured, limits: AlertLimits, log_is_away: bool) -> Section:
    """The rules with their limits; what only the log could tell is unknown while it is away."""
    percent = measured.failed_writes_percent
    values: Mapping[Rule, object] = {
        Rule.FAILED_WRITES: "-" if percent is None else f"{percent:.1f}%",
        Rule.LAG: max(measured.lag_records.values(), default=UNKNOWN if log_is_away else "-"),
        Rule.DISCREPANCY: max(measured.discrepancy_records.values(), default="-"),
        Rule.RETENTION: UNKNOWN if log_is_away else sum(measured.expiring_records.values()),
    }
    told = (f"{rule.value.replace('_', ' ')} {values[rule]} ({_limit(limit_of(rule, limits))})" for rule in Rule)
    return Section("rules", _rules_json(measured, limits), lines=("rules: " + ", ".join(told),))


def _limit(limit: float | None) -> str:
    return "no limit" if limit is None else f"limit {limit:g}"


def _rules_json(measured: Measured, limits: AlertLimits) -> dict[str, Any]:
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
