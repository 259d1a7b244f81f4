"""An export as the rounds of its job see it: many types from one log, and none waits for another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.environment import Environment
from penstock.errors import TransientError
from penstock.flow.write.manifest import Counts, Marks
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import position_key
from penstock.lake.proposal import FencePart, Outcome, Proposal, StartPart
from penstock.lake.storage import open_storage
from penstock.logs.log import Batch, Log, Partition, Slice
from penstock.staging.batch_job import ReadChecks
from penstock.staging.reports import Gathered
from penstock.tables.export.catch_up import check_residue
from penstock.tables.export.chores import (
    CatchUp,
    CatchUpBatch,
    FailingTypes,
    IdleMarks,
    IdlePartitions,
    Telling,
    WaitingRecords,
    next_catch_up,
)
from penstock.tables.export.events import CatchUpPlanned, TypeCannotBeWritten, TypeWrittenAgain
from penstock.tables.export.ledger.days import MILLIS_PER_SECOND, closable
from penstock.tables.export.ledger.entry import EntryKind
from penstock.tables.export.ledger.proposal import RoutedPart
from penstock.tables.export.ledger.state import Cause, LedgerState
from penstock.tables.export.replays import LedgerRuns
from penstock.tables.export.spec import quarantine_url
from penstock.tables.export.table import Draft, ExportTable
from penstock.tables.kind import Chore, Landed, View
from penstock.tables.quarantine.replay import finish_replay
from penstock.tables.quarantine.table import Listed, Quarantine, QuarantineGoneError, keys_behind


class TypeLaggingError(TransientError):
    """A bounded run has done everything else, and a type still cannot be written."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Who is written in a slice: the types that take part, each from an offset, and why the others do not."""

    takes: Mapping[str, int]
    lagging: Mapping[str, Cause] = field(default_factory=dict)
    taken_from: Mapping[str, int] = field(default_factory=dict)
    """Further offsets where a type's own table is ahead: it has what lies between already."""


@dataclass(frozen=True, slots=True)
class WrittenShares:
    """A batch of all types, ready for its commit."""

    found: Gathered
    roles: Mapping[Partition, Roles]
    main: bool
    staged_at: float

    @property
    def marks(self) -> Marks:
        return self.found.marks


class LedgerQuarantine(Quarantine):
    """The quarantine of an export, whose ledger lists the files."""

    def __init__(self, job: JobSpec, environment: Environment) -> None:
        self.url = quarantine_url(job)
        self._job = job
        self._environment = environment
        self._table = None


class Export:
    """The types of an export, each of which may wait or fail alone."""

    divisible = True

    def __init__(self, table: ExportTable, log: Log) -> None:
        self.job = job = table.job
        self.spec = job.table
        self.files = table
        self.environment = environment = table.environment
        self.quarantine = LedgerQuarantine(job, environment)
        finish_replay(LedgerRuns(table), self.quarantine.table())
        self.failing = FailingTypes(self.spec.retry_seconds)
        self.waiting = WaitingRecords(log, job.on.gap, self.spec.alerts.retention_percent_max, environment.listener)
        self.telling = Telling(table)
        self._checks = ReadChecks(job, log)
        self._idle = IdlePartitions(self.spec.days)
        self._owned: set[Partition] = set()
        table.finishing.remove_stale_markers()
        self.telling.days()

    def state(self, partitions: Iterable[Partition]) -> LedgerState:
        return self.files.state()

    def commit(self, proposal: Proposal) -> Outcome:
        parts = tuple(part for part in proposal.parts if isinstance(part, StartPart | FencePart))
        return self.files.land(proposal.batch_id, parts)

    def shown_position(self, partition: Partition) -> int:
        return self.files.ledger.known.global_position(partition) or 0

    def lags(self, partitions: Iterable[Partition]) -> bool:
        state = self.files.state()
        return bool(state.pending or self.files.failing_types()) or any(state.of(each).lanes for each in partitions)

    def close(self) -> None:
        """There is nothing open between two entries."""

    def record_bytes(self) -> float | None:
        return None

    def own(self, partitions: Iterable[Partition]) -> None:
        """Reserve file names and topics below the root."""
        new = set(partitions) - self._owned
        if new:
            # Also against the topics that another process of the job has begun since this one started.
            self.files.refuse_other_names()
            self.files.claims.claim_names({each.topic for each in new})
            self.files.claims.claim_topics({each.topic_id for each in new})
            self._owned |= new

    def settle(self, partitions: Iterable[Partition]) -> None:
        """Append the quarantine files that the ledger lists and the quarantine table lacks (RULES Q1)."""
        left = self._listed(partitions)
        if left and (table := self.quarantine.table()) is not None:
            table.refresh()
            left = [listed for listed in left if keys_behind(table, {listed.key: listed.end})]
        if not left:
            return
        there = {entry.path for entry in open_storage(self.quarantine.url, self.job.table.storage_options).list()}
        lost = [file for listed in left for file in listed.files if file.path not in there]
        if lost:
            losses = [f"{file.rows} records of {file.topic}/{file.partition}" for file in lost]
            raise QuarantineGoneError(self.job.name, self.quarantine.url, losses)
        self.quarantine.append_listed(left)

    def _listed(self, partitions: Iterable[Partition]) -> list[Listed]:
        ledger = self.files.state()
        return [
            Listed(key, listing.number, listing.files)
            for each in partitions
            if (listing := ledger.of(each).listing) is not None
            and keys_behind(self.quarantine.table(), {(key := position_key(self.job.name, each)): listing.number})
        ]

    # chores

    def chores(self, view: View) -> Sequence[Chore]:
        """What idle partitions and closed days have to tell, which is soon done, then what types wait for."""
        held = {each: view.bounds[each] for each in view.tokens}
        self.telling.look(view, self.waiting.expiring(self.files.ledger.known, held, view.now))
        state = self.files.state()
        self._look_at_failing(state, view)
        self.waiting.tell_gaps(state, held)
        batch = next_catch_up(self.job, state, view, self.failing.resting(view.now))
        if batch is None and view.idle:
            state = self._finished(view)
        idle = self._idle.marks(state, view)
        marks = [IdleMarks(idle)] if self._says_more(state, idle) else []
        return [*marks, *([] if batch is None else [CatchUp(batch)])]

    def perform(self, chore: IdleMarks) -> None:
        """Let the watermark of idle partitions follow the clock, in an entry without rows."""
        self.files.append(
            lambda newest: Draft(EntryKind.IDLE, idle=chore.idle) if self._says_more(newest, chore.idle) else None
        )
        self.telling.days()

    def _look_at_failing(self, state: LedgerState, view: View) -> None:
        """Before a type that failed is read again: whether its folder takes files now. A look costs little."""
        lanes = {name: lane for each in view.tokens for name, lane in state.of(each).lanes.items()}
        for name, lane in lanes.items():
            if lane.cause is not Cause.FAILING or not self.failing.may_look(name, view.now, view.flush_now):
                continue
            self.files.forget_probes(name)
            if (reason := self.files.probe_folder(name, name)) is None:
                self.files.complete()
                reason = self.files.failing_types().get(name)
            if reason is None:
                self.failing.forgive(name)
            else:
                self.failing.note(name, reason, view.now)

    def _finished(self, view: View) -> LedgerState:
        """Nothing is due: try once more what could not be put in its place; a bounded run ends with what is stuck."""
        if view.flush_now or not self.failing.resting(view.now):
            self.files.complete()
            for name, reason in self.files.failing_types().items():
                self._fail(name, reason)
        state = self.files.state()
        if view.flush_now and self.failing.reasons and self.lags(view.tokens):
            names = ", ".join(f"{name} ({reason})" for name, reason in sorted(self.failing.reasons.items()))
            raise TypeLaggingError(f"types cannot be written: {names}", hint="the other types are up to date")
        if view.flush_now and (gaps := self.waiting.gaps(state, {each: view.bounds[each] for each in view.tokens})):
            raise gaps[0]
        self.telling.days()
        return state

    def _says_more(self, newest: LedgerState, idle: Mapping[Partition, int]) -> bool:
        """Whether an entry without rows would tell anything: of idle partitions, days, or files out of place."""
        now_ms = int(self.environment.now() * MILLIS_PER_SECOND)
        days = closable(newest, self.spec.days.complete_after_seconds, now_ms)
        misplaced = frozenset(each.rename.type for each in self.files.finishing.leftover.renames)
        return bool(idle or days or misplaced != newest.pending_types())

    # write

    def roles(self, batch: Batch) -> dict[Partition, Roles]:
        """Who takes part in each slice of a batch."""
        if isinstance(batch, CatchUpBatch):
            names = sorted({name for takes in batch.takes.values() for name in takes})
            self.environment.listener.event(CatchUpPlanned(types=names, offsets=batch.offsets))
            return {
                each.partition: Roles(takes := batch.takes[each.partition], {}, self._ahead(each.partition, takes))
                for each in batch.slices
            }
        state = self.files.state()
        return {each.partition: self._main_roles(each, state, batch.flush) for each in batch.slices}

    def _main_roles(self, piece: Slice, state: LedgerState, flush: bool) -> Roles:
        """Of a slice of the partition itself: every type but those that wait, fail or are not due."""
        takes: dict[str, int] = {}
        lagging: dict[str, Cause] = {}
        lanes = state.of(piece.partition).lanes
        resting = self.failing.resting(self.environment.now())
        for name, spec in self.spec.all_types.items():
            if name in lanes:
                lagging[name] = lanes[name].cause
            elif name in resting or name in state.pending_types():
                lagging[name] = Cause.FAILING
            elif spec.rotation is not None and not flush:
                lagging[name] = Cause.ROTATION
            else:
                takes[name] = piece.start
        return Roles(takes, lagging, self._ahead(piece.partition, takes))

    def _ahead(self, partition: Partition, takes: Mapping[str, int]) -> dict[str, int]:
        return {name: self.files.ahead_of(partition, name, start) for name, start in takes.items()}

    # commit

    def land(self, batch: Batch, tokens: Mapping[Partition, int], staged: WrittenShares) -> Landed:
        parts = tuple(self._part(piece, tokens[piece.partition], staged) for piece in batch.slices)
        outcome = self.files.land(batch.id, self._writable(parts))
        self.environment.reach("committed")
        if outcome.version is None:
            return Landed(outcome)
        landed = [part for part in outcome.accepted if isinstance(part, RoutedPart)]
        for name, reason in self.files.failing_types().items():
            self._fail(name, reason)
        self.quarantine.append_listed(self._listed(part.partition for part in landed))
        self.environment.reach("quarantined")
        self.telling.days()
        for name in sorted({name for part in landed for name in part.written} - self.files.failing_types().keys()):
            if self.failing.recovered(name):
                self.environment.listener.event(TypeWrittenAgain(type=name))
        self.telling.rules()
        files = [file for part in landed for file in part.files]
        counts = sum((part.counted for part in landed), Counts())
        return Landed(outcome, counts, len(files), sum(file.size_bytes for file in files), catch_up=not staged.main)

    def _part(self, piece: Slice, token: int, staged: WrittenShares) -> RoutedPart:
        shares = staged.found.of(piece.partition)
        roles = staged.roles[piece.partition]
        seen = [share.event_ms_max for share in shares.values() if share.event_ms_max is not None]
        # A clock that runs ahead must not close days: nothing is later than now.
        now_ms = int(self.environment.now() * MILLIS_PER_SECOND)
        part = RoutedPart(
            piece,
            token,
            shares,
            roles.takes,
            roles.lagging,
            staged.main,
            min(max(seen), now_ms) if seen else None,
            roles.taken_from,
            self.files.routing.id,
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
            check_residue(piece, self.files.state().of(piece.partition), kept, may_vanish)
        return part

    def _writable(self, parts: tuple[RoutedPart, ...]) -> tuple[RoutedPart, ...]:
        """The parts without the types whose folders take no files now: they wait alone (RULES L4)."""
        days: dict[str, set[str]] = {}
        for part in parts:
            for name, share in part.written.items():
                days.setdefault(name, set()).update(share.days)
        for name, wanted in days.items():
            if (reason := self.files.probe(name, wanted)) is not None:
                self._fail(name, reason)
                parts = tuple(part.without(name) for part in parts)
        return parts

    def _fail(self, name: str, reason: str, costly: bool = False) -> None:
        self.files.forget_probes(name)
        if self.failing.note(name, reason, self.environment.now(), costly):
            self.environment.listener.event(TypeCannotBeWritten(type=name, reason=reason))
