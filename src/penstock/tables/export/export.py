"""An export as the rounds of its job see it: many types from one log, and none waits for another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import PenstockError, TransientError
from penstock.flow.write.manifest import Counts, Marks
from penstock.flow.write.report import UNROUTED, Share
from penstock.lake.proposal import Outcome, Proposal
from penstock.lake.state import TableState
from penstock.logs.log import Batch, Log, Partition, Slice
from penstock.staging.batch_job import ReadChecks
from penstock.staging.reports import Gathered
from penstock.tables.export.catch_up import CatchUpBatch, check_residue
from penstock.tables.export.chores import (
    CatchUp,
    FailingTypes,
    IdlePartitions,
    RaiseEventTimes,
    WaitingRecords,
    next_catch_up,
)
from penstock.tables.export.commits import JobCommits, RoutedPart, TypeCommits
from penstock.tables.export.days import DayMarkers
from penstock.tables.export.events import CatchUpPlanned, RecordsVanished, TypeCannotBeWritten, TypeWrittenAgain
from penstock.tables.export.finishing import Finishing
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.root_claims import RootClaims
from penstock.tables.export.state import Cause, ExportState
from penstock.tables.export.status.alerts import measured_rules
from penstock.tables.kind import Chore, Landed, View
from penstock.tables.quarantine.table import Quarantine


class TypeLaggingError(TransientError):
    """A bounded run has done everything else, and a type still cannot be written."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Which types a slice is written for, each from an offset, and why not for the others."""

    takes: Mapping[str, int]
    taken_from: Mapping[str, int]
    """Further offsets where a type's log is ahead: it has what lies between already."""
    lagging: Mapping[str, Cause] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    """Where the last slice ends that has files of a type."""


@dataclass(frozen=True, slots=True)
class WrittenShares:
    """A batch of all types, ready for its commits."""

    found: Gathered
    roles: Mapping[Partition, Roles]
    main: bool
    staged_at: float

    @property
    def marks(self) -> Marks:
        return self.found.marks


class ExportTable:
    """The logs of an export, its files and its days, without the log that it reads."""

    def __init__(self, logs: ExportLogs) -> None:
        self.logs = logs
        self.job = logs.job
        self.environment = logs.environment
        self.markers = DayMarkers(
            logs.storage,
            logs.places,
            logs.environment,
            logs.export.days.complete_after_seconds,
            logs.days_of,
            self._refresh,
            self._is_pending,
        )
        self.finishing = Finishing(logs, self.markers)
        self.types = TypeCommits(logs, self.markers)
        self.commits = JobCommits(logs)
        self.claims = RootClaims(logs.storage, logs.job, logs.space)

    def finish_pending(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Put the files in place that earlier commits left; the types that cannot be finished, with the reason."""
        wanted = list(self.logs.export.all_types if names is None else names)
        failed = self.finishing.finish(self.finishing.pending(None if names is None else wanted))
        return {name: reason for name, reason in self.logs.unreadable.items() if name in wanted} | failed

    def _refresh(self, name: str) -> int:
        log = self.logs.find_type_log(name)
        if log is None:
            return -1
        log.refresh()
        return log.version

    def _is_pending(self, name: str, day: str) -> bool:
        pending = self.finishing.pending([name])
        return name in self.logs.unreadable or any(rename.day == day for rename in pending)


class Export(ExportTable):
    """The types of an export, each of which may wait or fail alone."""

    divisible = True

    def __init__(self, logs: ExportLogs, quarantine: Quarantine, log: Log) -> None:
        super().__init__(logs)
        self.spec = logs.export
        self.quarantine = quarantine
        self.failing = FailingTypes(self.spec.retry_seconds)
        self.waiting = WaitingRecords(
            log, self.job.on.gap, self.spec.alerts.retention_percent_max, self.environment.listener
        )
        self._checks = ReadChecks(self.job, log)
        self._idle = IdlePartitions(self.spec.days)
        self._owned: set[Partition] = set()
        self._is_settled = False
        """Whether nothing is left to finish of commits up to now, as far as this process knows."""
        self._ends: Mapping[Partition, int] = {}
        self._expiring: Mapping[Partition, int] = {}
        self._vanished = self._vanished_now()

    def state(self, partitions: Iterable[Partition]) -> TableState:
        return self.logs.job_log.state(partitions)

    def commit(self, proposal: Proposal) -> Outcome:
        return self.commits.handshake(proposal)

    def shown_position(self, partition: Partition) -> int:
        return self.logs.known_state().of(partition).position_of() or 0

    def lags(self, partitions: Iterable[Partition]) -> bool:
        state = self.logs.state()
        return bool(self.failing.reasons) or any(state.of(partition).lags for partition in partitions)

    def close(self) -> None:
        """There is nothing open between two commits."""

    def record_bytes(self) -> float | None:
        return None

    def own(self, partitions: Iterable[Partition]) -> None:
        """Reserve names and topics below the root."""
        new = set(partitions) - self._owned
        if new:
            # Also against the topics that another process of the job has begun since this one started.
            known = set(self.logs.state().fingerprints)
            self.claims.refuse_other_names(known.union(self.job.log.topics))
            self.claims.claim_names({partition.topic for partition in new})
            self.claims.claim_topics({partition.topic_id for partition in new})
            self._owned |= new
            self._is_settled = False

    def settle(self, partitions: Iterable[Partition]) -> None:
        """Finish what commits of former owners left, and of our own if one did not come to its end (RULES Q1)."""
        if self._is_settled:
            return
        self.logs.refresh_types()
        self._note_failed(self.finish_pending())
        self._note_failed(self.logs.unreadable)
        self.quarantine.append_missing(self.logs.job_log, partitions)
        for name, log in self.logs.type_logs():
            self.quarantine.append_missing(log, partitions, name)
        self.markers.read(self.logs.state())
        self._put_markers()
        self._is_settled = True

    # chores

    def chores(self, view: View) -> Sequence[Chore]:
        """What idle partitions and complete days need, which is soon done, then what types wait for."""
        state = self.logs.state()
        held = {partition: view.bounds[partition] for partition in view.tokens}
        self._ends = {partition: bounds.end for partition, bounds in held.items()}
        self._expiring = self.waiting.expiring(state, held, view.now)
        self._report(state)
        self._probe_failing(state, view)
        self.waiting.report_gaps(state, held)
        resting = self.failing.resting(view.now) | self.logs.unreadable.keys()
        batch = next_catch_up(self.job, state, view, resting)
        if batch is None and view.idle:
            self._finish_failing(view)
        late = [late_ms for name in self.spec.all_types for late_ms in self.logs.days_of(name).values() if late_ms]
        idle = self._idle.event_times(state, view, late)
        return [*([RaiseEventTimes(idle)] if idle else []), *([] if batch is None else [CatchUp(batch)])]

    def perform(self, chore: RaiseEventTimes) -> None:
        self.commits.raise_event_times(chore.idle)
        self._put_markers()

    def _probe_failing(self, state: ExportState, view: View) -> None:
        """Before a type that failed is read again: whether its folder takes files now. A probe costs little."""
        lags = {name: lag for partition in view.tokens for name, lag in state.of(partition).lags.items()}
        for name, lag in lags.items():
            if lag.cause is not Cause.FAILING or not self.failing.may_probe(name, view.now, view.flush_now):
                continue
            self.finishing.forget_probes(name)
            folder = name if self.logs.is_plain else f"{name}/_delta_log"
            if (reason := self.finishing.probe_folder(folder)) is None:
                reason = self._finished([name]).get(name)
            if reason is None:
                self.failing.forgive(name)
            else:
                self.failing.note(name, reason, view.now)

    def _finish_failing(self, view: View) -> None:
        """Nothing is due: try once more what could not be put in its place; a bounded run ends with what is stuck."""
        stuck = [name for name in self.failing.reasons if view.flush_now or name not in self.failing.resting(view.now)]
        state = self.logs.state()
        failed = self._finished(stuck) if stuck else {}
        for name in stuck:
            if name in failed:
                self._fail(name, failed[name])
            elif not any(name in state.of(partition).lags for partition in view.tokens):
                self._recover(name)
        if view.flush_now and self.failing.reasons and self.lags(view.tokens):
            reasons = ", ".join(f"{name} ({reason})" for name, reason in sorted(self.failing.reasons.items()))
            raise TypeLaggingError(f"types cannot be written: {reasons}", hint="the other types are up to date")
        held = {partition: view.bounds[partition] for partition in view.tokens}
        if view.flush_now and (gaps := self.waiting.gaps(state, held)):
            raise gaps[0]
        self._put_markers()

    def _finished(self, names: Sequence[str]) -> dict[str, str]:
        """Finish what is pending of types that failed; those that still cannot be finished, with the reason."""
        failed: dict[str, str] = {}
        for name in names:
            try:
                self.logs.reopen(name)
                failed |= self.finish_pending([name])
            except PenstockError as error:
                failed[name] = error.primary
        return failed | {name: self.logs.unreadable[name] for name in names if name in self.logs.unreadable}

    def _put_markers(self) -> None:
        self.markers.put(self.logs.state(), [name for name in self.spec.all_types if name not in self.failing.reasons])

    def _report(self, state: ExportState) -> None:
        """Report the monitoring rules over the partitions of this process, and records that vanished."""
        vanished = self._vanished_now()
        if vanished > self._vanished:
            # Left to a type, and the log no longer had them: lost, and reported (I7).
            self.environment.listener.event(RecordsVanished(records=vanished - self._vanished))
        self._vanished = vanished
        self.environment.listener.event(measured_rules(state, self._ends, self._expiring, self.spec.alerts))

    def _vanished_now(self) -> int:
        return sum(here.totals.vanished for here in self.logs.known_state().partitions.values())

    # write

    def roles(self, batch: Batch) -> dict[Partition, Roles]:
        """Which types take part in each slice of a batch."""
        if isinstance(batch, CatchUpBatch):
            names = sorted({name for takes in batch.takes.values() for name in takes})
            self.environment.listener.event(CatchUpPlanned(types=names, offsets=batch.offsets))
            return {piece.partition: self._roles(piece, batch.takes[piece.partition]) for piece in batch.slices}
        state = self.logs.state()
        return {piece.partition: self._main_roles(piece, state, batch.flush) for piece in batch.slices}

    def _main_roles(self, piece: Slice, state: ExportState, flush: bool) -> Roles:
        """Of a slice of the partition itself: every type but those that lag, fail or are not due."""
        takes: dict[str, int] = {}
        lagging: dict[str, Cause] = {}
        lags = state.of(piece.partition).lags
        resting = self.failing.resting(self.environment.now()) | self.logs.unreadable.keys()
        for name, spec in self.spec.all_types.items():
            if name in lags:
                lagging[name] = lags[name].cause
            elif name in resting:
                lagging[name] = Cause.FAILING
            elif spec.rotation is not None and not flush:
                lagging[name] = Cause.ROTATION
            else:
                takes[name] = piece.start
        return self._roles(piece, takes, lagging)

    def _roles(
        self,
        piece: Slice,
        takes: Mapping[str, int],
        lagging: Mapping[str, Cause] | None = None,
    ) -> Roles:
        taken_from = {name: self.logs.taken_from(name, piece.partition, start) for name, start in takes.items()}
        return Roles(takes, taken_from, lagging or {}, self.logs.files_ends(takes, piece.partition))

    # commit

    def land(self, batch: Batch, tokens: Mapping[Partition, int], staged: WrittenShares) -> Landed:
        """Commit the types, then the job; then put plain files in their place."""
        self._is_settled = False
        parts = [self._part(piece, tokens[piece.partition], staged) for piece in batch.slices]
        # A process that lost its claim is refused here already, and not after types have taken its files.
        self.logs.job_log.refresh()
        refused = self.commits.refusals(parts)
        parts = [part for part in parts if part.partition not in {refusal.partition for refusal in refused}]
        if not parts:
            return Landed(Outcome(None, (), refused))
        parts, refusing = self._writable(parts)
        self.environment.reach("checked")
        landed = self.types.land(batch.id, parts)
        for name, reason in landed.failed.items():
            self._fail(name, reason, costly=True)
            parts = [part.without(name) for part in parts]
        failed = self.finishing.finish(landed.renames)
        self._note_failed(failed)
        written = set(landed.landed)
        in_tasks = {name for part in parts for name, share in part.shares.items() if share.failed}
        failures = (*in_tasks, *refusing, *landed.failed, *failed)
        outcomes = {**dict.fromkeys(written, True), **dict.fromkeys(failures, False)}
        steady = [part for part in parts if part.partition not in landed.moved]
        if moved := [part for part in parts if part.partition in landed.moved]:
            # Planned again, unless the job has moved on too: then another process holds the partition.
            self.logs.job_log.refresh()
            refused = (*refused, *self.commits.refusals(moved))
        outcome = self.commits.land(batch.id, steady, outcomes) if steady else Outcome(None)
        self.environment.reach("committed")
        self.quarantine.append(outcome.accepted, landed.landed)
        outcome = replace(outcome, refused=(*refused, *outcome.refused))
        if outcome.version is None:
            return Landed(outcome)
        self.environment.reach("quarantined")
        self._is_settled = True
        return self._landed(outcome, steady, written - failed.keys(), staged.main)

    def _landed(self, outcome: Outcome, parts: Sequence[RoutedPart], written: Iterable[str], main: bool) -> Landed:
        self._recover_written(written)
        self._put_markers()
        self._report(self.logs.known_state())
        accepted = {part.partition for part in outcome.accepted}
        landed = [part for part in parts if part.partition in accepted]
        files = [file for part in landed for file in part.files]
        counts = sum((part.counted for part in landed), Counts())
        return Landed(outcome, counts, len(files), sum(file.size_bytes for file in files), catch_up=not main)

    def _part(self, piece: Slice, token: int, staged: WrittenShares) -> RoutedPart:
        roles = staged.roles[piece.partition]
        shares = self._with_logs(staged.found.of(piece.partition), roles)
        times = [share.event_ms_max for share in shares.values() if share.event_ms_max is not None]
        part = RoutedPart(
            piece,
            token,
            shares,
            roles.takes,
            roles.taken_from,
            roles.lagging,
            staged.main,
            # A clock that runs ahead must not close days: nothing is later than now.
            min(max(times), self.markers.now_ms()) if times else None,
            staged.found.mark_of(piece.partition),
        )
        for name, share in shares.items():
            if share.failed:
                self._fail(name, share.failed, costly=True)
                part = part.without(name)
        if not staged.main:
            taken = {name: shares[name].counts.read if name in shares else 0 for name in part.takes}
            kept = {name: count for name, count in taken.items() if name not in part.lagging}
            may_vanish = self._checks.holes_allowed(piece.partition.topic)
            check_residue(piece, self.logs.known_state().of(piece.partition), kept, may_vanish)
        return part

    def _with_logs(self, shares: Mapping[str, Share], roles: Roles) -> Mapping[str, Share]:
        """What is bad of a type whose columns are not known yet, so that it has no log, is listed by the job log."""
        missing = [name for name in shares if name in roles.takes and self.logs.columns_of(name) is None]
        unrouted = sum((shares[name] for name in missing), shares.get(UNROUTED, Share()))
        kept = {name: share for name, share in shares.items() if name not in missing}
        return {**kept, UNROUTED: unrouted} if missing else shares

    def _writable(self, parts: list[RoutedPart]) -> tuple[list[RoutedPart], set[str]]:
        """The parts without the types whose folders take no files now, which wait alone; and those types."""
        refusing: set[str] = set()
        days: dict[str, set[str]] = {}
        for part in parts:
            for name, share in part.written.items():
                days.setdefault(name, set()).update(share.days)
        for name, wanted in days.items():
            if (reason := self.finishing.probe(name, wanted)) is not None:
                self._fail(name, reason)
                parts = [part.without(name) for part in parts]
                refusing.add(name)
        return parts, refusing

    def _note_failed(self, failed: Mapping[str, str]) -> None:
        for name, reason in failed.items():
            self._fail(name, reason)

    def _fail(self, name: str, reason: str, costly: bool = False) -> None:
        self.finishing.forget_probes(name)
        if self.failing.note(name, reason, self.environment.now(), costly):
            self.environment.listener.event(TypeCannotBeWritten(type=name, reason=reason))

    def _recover_written(self, written: Iterable[str]) -> None:
        """Types that failed and were written now have recovered, unless a file of an earlier batch is still stuck."""
        names = [name for name in sorted(written) if name in self.failing.reasons]
        stuck = self._finished(names)
        self._note_failed(stuck)
        for name in names:
            if name not in stuck:
                self._recover(name)

    def _recover(self, name: str) -> None:
        if self.failing.recovered(name):
            self.environment.listener.event(TypeWrittenAgain(type=name))
