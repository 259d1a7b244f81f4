"""The rounds of a routed job: many types from one log, each into its own place, none waiting for another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from penstock.engine.ownership import StartedTable
from penstock.engine.rounds import Context, JobRounds, answering_log
from penstock.environment import new_batch_id
from penstock.errors import TransientError
from penstock.flow.write.manifest import Counts
from penstock.job.checks.spark import refuse_unshared
from penstock.job.spec import ExportSpec, JobSpec, job_of
from penstock.lake.state import TableWord
from penstock.logs.log import Batch, Bounds, Partition, Slice
from penstock.plan import Wait
from penstock.plan.planner import records_per_batch_max
from penstock.tables.export.alerts import RULES_EVENT, rule_fields
from penstock.tables.export.catching_up.catch_up import CatchUpTerms, catch_up, check_residue
from penstock.tables.export.catching_up.failing import FailingTypes
from penstock.tables.export.catching_up.waiting import WaitingRecords
from penstock.tables.export.days.days import MILLIS_PER_SECOND, closable, next_boundary_ms
from penstock.tables.export.ledger.entry import EntryKind
from penstock.tables.export.ledger.proposal import RoutedPart
from penstock.tables.export.ledger.state import Cause, LedgerState
from penstock.tables.export.opening import open_export
from penstock.tables.export.replays import LedgerRuns
from penstock.tables.export.table import Draft, LedgerOutcome
from penstock.tables.export.writer import ExportWriter, Roles, WrittenShares
from penstock.tables.quarantine.table import Listed, QuarantineTable, open_quarantine, refuse_earlier_life


class TypeBehindError(TransientError):
    """A bounded run has done everything else, and a type still cannot be written."""


@dataclass(frozen=True, slots=True)
class CatchUpBatch(Batch):
    """Slices below the positions, for types that are behind."""

    takes: Mapping[Partition, Mapping[str, int]] = field(default_factory=dict)
    routing: str = ""
    """The id of the routing under which their records were counted."""


class ExportPipeline(JobRounds[WrittenShares]):
    """The five steps of a routed job."""

    def __init__(self, job: JobSpec, spark: SparkSession, context: Context | None = None) -> None:
        context = context or Context()
        routed = job_of(job, ExportSpec)
        self.export = routed.table
        self.spark = spark
        refuse_unshared(job, spark.sparkContext.master)
        with answering_log(job, context) as log:
            self.table = open_export(routed, context.environment)
            refuse_earlier_life(job, self.table.life, open_quarantine(job, context.environment))
            self.table.agree_on_types()
            super().__init__(job, context, log)
            self.writer = ExportWriter(routed, spark, self.table, self.log, self.listener, context.failpoint)
            life = self.table.life
            assert life is not None
            self.quarantine = QuarantineTable(job, self.environment, life)
            self.quarantine.finish_replay(LedgerRuns(self.table))
            self.failing = FailingTypes(routed.table.retry_seconds)
            self._flushing = False
            self._ends: dict[Partition, int] = {}
            self._expiring: Mapping[Partition, int] = {}
            self._vanished = self._vanished_now()
            self._idle_since: dict[Partition, float] = {}
            self.waiting = WaitingRecords(
                self.log, job.on.gap, routed.table.alerts.retention_percent_max, self.listener
            )
            self._named_topics: set[str] = set()
            self._claimed_topic_ids: set[str] = set()
            self.table.finishing.sweep_markers()
            self.tell_days()

    @property
    def stateful(self) -> StartedTable:
        return self.table

    # plan

    def _next_batch(
        self,
        tokens: Mapping[Partition, int],
        state: TableWord,
        bounds: Mapping[Partition, Bounds],
        flush_now: bool,
        ends: Mapping[Partition, int] | None,
    ) -> Batch | Wait:
        self._flushing = flush_now
        self._ends = {each: bounds[each].end for each in tokens}
        held = {each: bounds[each] for each in tokens}
        self._expiring = self.waiting.expiring(self.table.ledger.known, held, self.environment.now())
        self._claim_names(tokens)
        self._tell_vanished()
        self._tell_rules()
        return super()._next_batch(tokens, state, bounds, flush_now, ends)

    def catch_up(
        self, tokens: Mapping[Partition, int], bounds: Mapping[Partition, Bounds], flush_now: bool
    ) -> Batch | None:
        """The next slices of types that are behind and due."""
        state = self.table.state()
        behind = [each for each in tokens if state.of(each).lanes]
        if not behind:
            return None
        self._look_at_failing(state, behind)
        self.waiting.tell_gaps(state, {each: bounds[each] for each in behind})
        terms = CatchUpTerms(
            rotations={name: spec.rotation for name, spec in self.export.types.items()},
            now=self.environment.now(),
            gap=self.job.on.gap,
            flush_now=flush_now,
            resting=self.failing.resting(self.environment.now()),
            records_max=max(1, records_per_batch_max(self.job.flush, self.seen.record_bytes) // len(behind)),
        )
        planned = [
            found for each in behind if (found := catch_up(each, state.of(each), bounds[each], terms)) is not None
        ]
        if not planned:
            return None
        # A Spark job routes in one way; what was counted under another comes next.
        routing = planned[0].routing
        planned = [each for each in planned if each.routing == routing]
        takes = {each.piece.partition: each.takes for each in planned}
        names = sorted({name for each in planned for name in each.takes})
        self.listener.event("catch-up planned", types=names, offsets=sum(each.piece.offsets for each in planned))
        return CatchUpBatch(new_batch_id(), tuple(each.piece for each in planned), takes, routing)

    def _look_at_failing(self, state: LedgerState, partitions: Iterable[Partition]) -> None:
        """Before a type that failed is read again: whether its folder takes files now. A look costs little."""
        now = self.environment.now()
        lanes = {name: lane for each in partitions for name, lane in state.of(each).lanes.items()}
        for name, lane in lanes.items():
            if lane.cause is not Cause.FAILING or not self.failing.may_look(name, now, self._flushing):
                continue
            self.table.forget_probes(name)
            reason = self.table.probe_folder(name, name)
            if reason is None:
                self.table.complete()
            if reason is None and name not in self.table.failing_types():
                self.failing.forgive(name)
            else:
                self.failing.note(name, reason or self.table.failing_types()[name], now)

    # write

    def write(self, batch: Batch) -> WrittenShares | None:
        state = self.table.state()
        if isinstance(batch, CatchUpBatch):
            roles = {
                each.partition: Roles(takes := batch.takes[each.partition], {}, self._ahead(each.partition, takes))
                for each in batch.slices
            }
            return self.writer.write(batch, roles, main=False, routing=batch.routing)
        return self.writer.write(batch, {each.partition: self._roles(each, state) for each in batch.slices}, main=True)

    def _roles(self, piece: Slice, state: LedgerState) -> Roles:
        """Who takes part in a slice of the partition itself: every type but those that are behind or not due."""
        takes: dict[str, int] = {}
        behind: dict[str, Cause] = {}
        lanes = state.of(piece.partition).lanes
        resting = self.failing.resting(self.environment.now())
        for name, spec in self.export.all_types.items():
            if name in lanes:
                behind[name] = lanes[name].cause
            elif name in resting or name in state.pending_types():
                behind[name] = Cause.FAILING
            elif spec.rotation is not None and not self._flushing:
                behind[name] = Cause.ROTATION
            else:
                takes[name] = piece.start
        return Roles(takes, behind, self._ahead(piece.partition, takes))

    def _ahead(self, partition: Partition, takes: Mapping[str, int]) -> dict[str, int]:
        return {name: self.table.ahead_of(partition, name, start) for name, start in takes.items()}

    # commit

    def land(self, batch: Batch, tokens: Mapping[Partition, int], written: WrittenShares) -> LedgerOutcome:
        self._check_log(batch, written.marks)
        parts = tuple(self._part(piece, tokens[piece.partition], written) for piece in batch.slices)
        outcome = self.table.land(batch.id, self._writable(parts))
        self.reach("committed")
        if outcome.version is not None:
            self._after_landing(batch, outcome, written)
        self._heed(outcome.refused, len(parts))
        return outcome

    def _part(self, piece: Slice, token: int, written: WrittenShares) -> RoutedPart:
        shares = written.of(piece.partition)
        roles = written.roles[piece.partition]
        seen = [share.event_ms_max for share in shares.values() if share.event_ms_max is not None]
        # A clock that runs ahead must not close days: nothing is later than now.
        now_ms = int(self.environment.now() * 1000)
        watermark_ms = min(max(seen), now_ms) if seen else None
        part = RoutedPart(
            piece,
            token,
            shares,
            roles.takes,
            roles.behind,
            written.main,
            watermark_ms,
            roles.taken_from,
            self.table.routing.id,
            written.mark_of(piece.partition),
        )
        for name, share in shares.items():
            if share.failed:
                self._fail(name, share.failed, costly=True)
                part = part.without(name)
        if not written.main:
            taken = {name: shares[name].counts.read if name in shares else 0 for name in part.takes}
            kept = {name: count for name, count in taken.items() if name not in part.behind}
            may_vanish = self.writer.checks.holes_allowed(piece.partition.topic)
            check_residue(piece, self.table.state().of(piece.partition), kept, may_vanish)
        return part

    def _writable(self, parts: tuple[RoutedPart, ...]) -> tuple[RoutedPart, ...]:
        """The parts without the types whose folders take no files now: they stay behind alone (RULES L4)."""
        days: dict[str, set[str]] = {}
        for part in parts:
            for name, share in part.written.items():
                days.setdefault(name, set()).update(share.days)
        for name, wanted in days.items():
            reason = self.table.probe(name, sorted(wanted))
            if reason is not None:
                self._fail(name, reason)
                parts = tuple(part.without(name) for part in parts)
        return parts

    def _fail(self, name: str, reason: str, costly: bool = False) -> None:
        self.table.forget_probes(name)
        if self.failing.note(name, reason, self.environment.now(), costly):
            self.listener.event("type cannot be written", type=name, reason=reason)

    def _after_landing(self, batch: Batch, outcome: LedgerOutcome, written: WrittenShares) -> None:
        for name, reason in self.table.failing_types().items():
            self._fail(name, reason)
        landed = [part for part in outcome.accepted if isinstance(part, RoutedPart)]
        total = sum((part.counted for part in landed), Counts())
        files = [file for part in landed for file in part.files]
        size_bytes = sum(file.size_bytes for file in files)
        if total.written:
            self.seen.record_bytes = size_bytes / total.written
        self.quarantine.append_listed(self._listed(part.partition for part in outcome.accepted))
        self.reach("quarantined")
        self.tell_days()
        self._tell_recovered(outcome)
        self.listener.event(
            "batch committed",
            batch=batch.id,
            version=outcome.version,
            catch_up=not written.main,
            read=total.read,
            written=total.written,
            quarantined=total.quarantined,
            filtered=total.filtered,
            files=len(files),
            size_bytes=size_bytes,
            seconds=round(self.environment.now() - written.staged_at, 3),
        )
        self._tell_rules()

    def _tell_vanished(self) -> None:
        """Records that were left to a type and that the log no longer had: lost, and said so (I7)."""
        vanished = self._vanished_now()
        if vanished > self._vanished:
            self.listener.event("records vanished", records=vanished - self._vanished)
        self._vanished = vanished

    def _vanished_now(self) -> int:
        return sum(here.totals.vanished for here in self.table.ledger.known.partitions.values())

    def _tell_rules(self) -> None:
        """The seed's monitoring rules over the partitions of this process."""
        known, limits = self.table.ledger.known, self.export.alerts
        self.listener.event(RULES_EVENT, **rule_fields(known, self._ends, limits, self._expiring))

    def _tell_recovered(self, outcome: LedgerOutcome) -> None:
        for part in outcome.accepted:
            if not isinstance(part, RoutedPart):
                continue
            for name in part.written:
                if name not in self.table.failing_types() and self.failing.recovered(name):
                    self.listener.event("type written again", type=name)

    def settle(self, state: TableWord, *partitions: Partition) -> None:
        """Append the quarantine files that the ledger lists and the quarantine table lacks (RULES Q1)."""
        self.quarantine.append_left(self._listed(partitions))

    def _listed(self, partitions: Iterable[Partition]) -> list[Listed]:
        ledger = self.table.state()
        return [
            Listed(each, listing.number, "", listing.files)
            for each in partitions
            if (listing := ledger.of(each).listing) is not None and self.quarantine.lacks(each, listing.number)
        ]

    # what a routed job has beside

    def shown_position(self, state: TableWord, partition: Partition) -> int:
        return self.table.ledger.known.global_position(partition) or 0

    def is_behind(self, partitions: Iterable[Partition]) -> bool:
        state = self.table.state()
        stuck = bool(state.pending or self.table.failing_types())
        return stuck or any(state.of(each).lanes for each in partitions)

    def rest(self, tokens: Mapping[Partition, int], bounds: Mapping[Partition, Bounds]) -> None:
        """Let the watermark of idle partitions follow the clock; a bounded run ends only when no type is behind."""
        now = self.environment.now()
        if self._flushing or not self.failing.resting(now):
            self.table.complete()
            for name, reason in self.table.failing_types().items():
                self._fail(name, reason)
        state = self.table.state()
        if self._flushing and self.failing.reasons and self.is_behind(tokens):
            names = ", ".join(f"{name} ({reason})" for name, reason in sorted(self.failing.reasons.items()))
            raise TypeBehindError(f"types cannot be written: {names}", hint="the other types are up to date")
        if self._flushing and (gaps := self.waiting.gaps(state, {each: bounds[each] for each in tokens})):
            raise gaps[0]
        idle_seconds = self.export.days.idle_seconds
        idle: dict[Partition, int] = {}
        for partition in tokens:
            here = state.of(partition)
            if here.position != bounds[partition].end:
                self._idle_since.pop(partition, None)
                continue
            since = self._idle_since.setdefault(partition, now)
            seen_ms = int((now - idle_seconds) * 1000)
            after = self.export.days.complete_after_seconds
            boundary_ms = next_boundary_ms(here.watermark_ms, seen_ms, after, state.reopened.values())
            if now - since >= idle_seconds and boundary_ms is not None:
                idle[partition] = seen_ms
        if self._says_more(state, idle):
            self.table.append(
                lambda newest: Draft(EntryKind.IDLE, idle=idle) if self._says_more(newest, idle) else None
            )
        self.tell_days()

    def _says_more(self, newest: LedgerState, idle: Mapping[Partition, int]) -> bool:
        """Whether an entry without rows would tell anything: of idle partitions, days, or files out of place."""
        now_ms = int(self.environment.now() * MILLIS_PER_SECOND)
        days = closable(newest, self.export.days.complete_after_seconds, now_ms)
        return bool(idle or days or self._misplaced() != newest.pending_types())

    def _misplaced(self) -> frozenset[str]:
        """The types with files that are not where readers look for them."""
        return frozenset(each.rename.type for each in self.table.finishing.leftover.renames)

    def _claim_names(self, partitions: Iterable[Partition]) -> None:
        topics = {each.topic for each in partitions} - self._named_topics
        if topics:
            self.table.claim_names(topics)
            self._named_topics |= topics
        topic_ids = {each.topic_id for each in partitions} - self._claimed_topic_ids
        if topic_ids:
            self.table.claim_topics(topic_ids)
            self._claimed_topic_ids |= topic_ids

    def tell_days(self) -> None:
        """Tell which days the ledger's entries completed and opened again."""
        for marks in self.table.finishing.marked:
            for name, day in marks.opened:
                self.listener.event("day opened again", type=name, day=day)
            for name, day in marks.completed:
                self.listener.event("day complete", type=name, day=day)
            for reason in sorted(set(marks.failed.values())):
                self.listener.event("day marker failed", reason=reason)
        self.table.finishing.marked.clear()
