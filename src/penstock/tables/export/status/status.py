"""How an export stands: its partitions, its types, their days, and the monitoring rules of seed 000."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from penstock.environment import Environment
from penstock.errors import PenstockError
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.status.frame import TableView, job_status
from penstock.status.log_lag import read_log_view
from penstock.status.model import (
    COMMITS_SHOWN,
    Alert,
    CommitStatus,
    JobStatus,
    LogView,
    PartitionColumn,
    PartitionStatus,
    RecordedGap,
    shown_path,
)
from penstock.tables.export.delta_types import open_export
from penstock.tables.export.ledger.entry import Entry
from penstock.tables.export.ledger.state import LedgerState, Rename, RoutedPartition
from penstock.tables.export.proof.facts import incarnations_of
from penstock.tables.export.spec import AlertLimits, ExportSpec
from penstock.tables.export.status.alerts import Measured, breaches, measure
from penstock.tables.export.status.sections import pending_section, rules_section, types_section
from penstock.tables.export.status.types import TypeStatus, type_alerts, type_status

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
    view = read_log_view(job, open_log, told.incarnations, told.positions, now)
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
