"""One round of a job: claim, plan, write, commit, mirror, whatever its log and its kind of table.

Rounds share only caches. Chores of the table alternate with new batches, so that neither delays the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias

from pyspark.sql import SparkSession

from penstock import events
from penstock.claims import Claims, StaticClaims
from penstock.engine.ages import Ages
from penstock.engine.compaction import Compact, Compaction
from penstock.engine.ownership import LogBounds, Starter, Tokens
from penstock.engine.pulse import with_signs
from penstock.environment import Environment, new_batch_id
from penstock.errors import FencedError, InvariantError, PenstockError, TransientError
from penstock.flow.write.manifest import EpochMarks
from penstock.job.spark import refuse_unshared
from penstock.job.spec import JobSpec
from penstock.lake.proposal import Outcome, Refusal
from penstock.lake.state import DeltaState
from penstock.logs.log import Batch, Bounds, EpochMark, Log, Partition
from penstock.logs.registry import OpenLog
from penstock.logs.registry import open_log as open_log_of
from penstock.plan import BeyondEndError, LostTailError, PartitionInput, PlanTerms, Wait, plan
from penstock.spark.session import may_be_given_a_master
from penstock.tables.inference import with_seen_fields
from penstock.tables.kind import Chore, Landed, S, SchemaChanged, View, Writer
from penstock.tables.registry import kind_of

Ends: TypeAlias = Mapping[Partition, int] | None
"""Where a bounded run stops; None: nowhere."""
REPEATS_MAX = 2
"""How often work may change nothing: another process may have done it, but not several times in a row."""
RECORD_BYTES_ASSUMED = 100.0
"""Parquet bytes per record until the first commit shows the real size."""


@dataclass(frozen=True, slots=True)
class BatchLanded:
    """A batch was committed; some of its slices may have been refused."""

    outcome: Outcome
    done: bool = False


@dataclass(frozen=True, slots=True)
class ChoreDone:
    """A chore was done, or a batch has to be planned again."""

    name: str
    done: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing is due before `until`; None: no record waits at all."""

    until: float | None
    done: bool = False


RoundResult = BatchLanded | ChoreDone | Waiting
"""What a round did. `done`: a bounded run has reached its ends, and nothing is left to do."""


@dataclass(slots=True)
class Cache:
    """Caches of a process: losing them costs time, never a record."""

    waiting_since: dict[Partition, float] = field(default_factory=dict)
    record_bytes: float = RECORD_BYTES_ASSUMED
    ended: set[Partition] = field(default_factory=set)
    """Partitions that were read to their end at least once, so that newer records arrived since."""
    mirrored: dict[Partition, int] = field(default_factory=dict)
    """The positions that this process last tried to show in the consumer group."""
    ends_asked_at: float | None = None
    """The clock just before the log was asked for the ends of a bounded run."""
    chore_last: bool = False
    """Whether the last round gave its turn to a chore."""
    chore: str = ""
    """The name of the last chore."""
    work: tuple[object, int] | None = None
    """The last chore, or batch that waited for columns, with the version of the table before it."""
    repeats: int = 0


class Rounds(Generic[S]):
    """The five steps of one job over its log and a table of some kind."""

    def __init__(self, job: JobSpec, log: Log, claims: Claims, writer: Writer[S], environment: Environment) -> None:
        self.job = job
        self.log = log
        self.claims = claims
        self.writer = writer
        self.table = writer.table
        self.environment = environment
        self.listener = environment.listener
        self.at_step = environment.at_step
        self.cache = Cache(record_bytes=self.table.record_bytes() or RECORD_BYTES_ASSUMED)
        self.starter = Starter(job, log, self.table, claims, self.listener, self.at_step)
        self.compaction = Compaction(job, kind_of(job), environment)
        self.ages = Ages(log, environment.now)

    def close(self) -> None:
        """Close the table and the log; the claims belong to the process."""
        self.table.close()
        self.log.close()

    def round(self, flush_now: bool = False, ends: Ends = None) -> RoundResult:
        """Do one batch or chore, or return how long to wait. `ends` bounds the partitions, as in `run --once`."""
        begun_at = self.environment.now()
        partitions = self.log.partitions()
        tokens = self.claim(partitions)
        asked_at = self.environment.now()
        bounds = self.log.bounds(tokens)
        tokens, state = self.starter.begin(tokens, partitions, bounds)
        self._report_progress(tokens, state, bounds)
        self._mirror_others_work(tokens)
        self.table.own(tokens)
        self.table.finish_pending(tokens)
        planned_at = self.environment.now()
        planned = self.plan(tokens, state, bounds, flush_now, ends)
        if isinstance(planned, Batch):
            planned = replace(planned, read_to_end_at=self._read_to_end(planned, bounds, asked_at, ends))
        idle = isinstance(planned, Wait)
        view = View(tokens, bounds, planned_at, self.cache.record_bytes, flush_now, idle)
        compact = self.compaction.due(state.version) if partitions and partitions[0] in tokens else []
        due = self._in_turn(planned, [*self.table.chores(view), *compact])
        if isinstance(due, Batch):
            self.listener.event(events.BatchPlanned(batch=due.id, offsets=due.offsets, slices=len(due.slices)))
        batch = due if isinstance(due, Batch | Wait) else due.batch
        if isinstance(batch, Batch):
            batch = replace(
                batch,
                log_ends={piece.partition: bounds[piece.partition].end for piece in batch.slices},
                steps={"plan": self.environment.now() - begun_at},
            )
            return self._run_batch(batch, tokens, state.version, bounds, planned_at, ends)
        if isinstance(due, Wait):
            return Waiting(due.until, done=due.until is None and self._is_done(tokens, ends))
        assert not isinstance(due, Batch)
        if isinstance(due, Compact):
            self.compaction.perform(due)
        else:
            self.table.perform(due)
            self._refuse_standstill(due, state.version)
        return ChoreDone(due.name)

    def _in_turn(self, planned: Batch | Wait, chores: Sequence[Chore]) -> Batch | Wait | Chore:
        """A new batch and a chore alternate; of several chores the most urgent that was not the last one."""
        self.cache.chore_last = bool(chores) and not (isinstance(planned, Batch) and self.cache.chore_last)
        if not self.cache.chore_last:
            return planned
        chore = next((chore for chore in chores if chore.name != self.cache.chore), chores[0])
        self.cache.chore = chore.name
        return chore

    def _refuse_standstill(self, work: object, version: int) -> None:
        """Raise if the same work was done three times at one version of the table: it would be due again and again."""
        self.cache.repeats = self.cache.repeats + 1 if self.cache.work == (work, version) else 0
        self.cache.work = (work, version)
        if self.cache.repeats >= REPEATS_MAX:
            raise InvariantError(
                f"job {self.job.name} makes no progress",
                detail=f"the same work was done {REPEATS_MAX + 1} times and changed nothing: {work}",
                hint="a fault of Penstock: please report it with this text",
            )

    def _run_batch(
        self, batch: Batch, tokens: Tokens, version: int, bounds: LogBounds, planned_at: float, ends: Ends
    ) -> RoundResult:
        self.at_step("planned")
        staged = self.writer.stage(batch)
        if isinstance(staged, SchemaChanged):
            self._refuse_standstill(("columns for", batch.slices), version)
            return ChoreDone("columns")
        self.at_step("staged")
        steps = {**batch.steps, **_task_steps(staged.seconds, self.environment.now() - staged.staged_at)}
        outcome = self.commit(replace(batch, steps=_rounded(steps)), tokens, staged)
        # Records after a slice that reached the end arrived after the plan: their wait starts at the plan.
        ended = {piece.partition for piece in batch.slices if piece.end == bounds[piece.partition].end}
        self.cache.ended |= ended
        self.cache.waiting_since |= dict.fromkeys(ended, planned_at)
        self.mirror([part.partition for part in outcome.accepted if self.claims.keeps(part.partition, part.token)])
        return BatchLanded(outcome, done=ends is not None and self._is_done(tokens, ends))

    def _is_done(self, tokens: Tokens, ends: Ends) -> bool:
        """Whether nothing is left: for a bounded run the table is at the ends, whichever process brought it there."""
        if self.table.lags(tokens if ends is None else ends):
            return False
        if ends is None:
            return True
        state = self.table.state(ends)
        return all((state.of(partition).position or 0) >= end for partition, end in ends.items())

    def present_ends(self) -> dict[Partition, int]:
        """Where the log ends now, for a run that stops there."""
        self.cache.ends_asked_at = self.environment.now()
        return {key: bounds.end for key, bounds in self.log.bounds(self.log.partitions()).items()}

    def _read_to_end(self, batch: Batch, bounds: LogBounds, asked_at: float, ends: Ends) -> dict[Partition, float]:
        """The partitions that the batch reads to the log's end, with the clock before that end was asked for."""
        reached = {piece.partition: asked_at for piece in batch.slices if piece.end == bounds[piece.partition].end}
        if ends is not None and self.cache.ends_asked_at is not None:
            at_ends = (piece.partition for piece in batch.slices if piece.end == ends.get(piece.partition))
            reached = {**dict.fromkeys(at_ends, self.cache.ends_asked_at), **reached}
        return reached

    # claim

    def claim(self, partitions: tuple[Partition, ...]) -> dict[Partition, int]:
        """The partitions of this process with their tokens."""
        if not partitions and not self.starter.nothing_matched:
            self.starter.nothing_matched = True
            self.listener.event(events.NoTopicMatches(pattern=self.job.log.topic_pattern))
        return self.claims.held(partitions, self.table.state(partitions).tokens)

    # plan

    def plan(self, tokens: Tokens, state: DeltaState, bounds: LogBounds, flush_now: bool, ends: Ends) -> Batch | Wait:
        now = self.environment.now()
        lanes = tuple(self._lane(partition, state, bounds[partition], now, ends) for partition in tokens)
        terms = PlanTerms(self.job.flush, self.job.on.gap, self.cache.record_bytes, now, flush_now)
        return plan(lanes, terms, new_batch_id())

    def _lane(self, partition: Partition, state: DeltaState, bounds: Bounds, now: float, ends: Ends) -> PartitionInput:
        position = state.of(partition).position
        if position is None:
            raise TransientError(f"{partition} has no position yet")
        if position > bounds.end:
            raise BeyondEndError(partition, position, bounds.end)
        if ends is not None:
            end = max(position, min(bounds.end, ends.get(partition, position)))
            bounds = Bounds(min(bounds.first, end), end)
        if position == bounds.end:
            self.cache.ended.add(partition)
            self.cache.waiting_since.pop(partition, None)
            return PartitionInput(partition, position, bounds, None)
        if partition in self.cache.ended:
            self.cache.waiting_since.setdefault(partition, now)
        return PartitionInput(partition, position, bounds, self.cache.waiting_since.get(partition))

    # commit

    def commit(self, batch: Batch, tokens: Tokens, staged: S) -> Outcome:
        """Commit the slices of a batch that this process still owns: claims may have been lost while it was written."""
        owned = self._still_owned(batch, tokens)
        if not owned.slices or (not self.table.divisible and len(owned.slices) < len(batch.slices)):
            return Outcome(None)
        begun_at = self.environment.now()
        self._check_log(owned, staged.marks)
        landed = self.table.land(owned, tokens, staged)
        if landed.outcome.version is not None:
            self._report_landed(owned, landed, staged.staged_at, begun_at)
        self._handle_refusals(landed.outcome.refused, len(owned.slices))
        return landed.outcome

    def _report_landed(self, batch: Batch, landed: Landed, staged_at: float, commit_at: float) -> None:
        counts, now = landed.counts, self.environment.now()
        accepted = {part.partition for part in landed.outcome.accepted}
        if counts.written:
            self.cache.record_bytes = landed.size_bytes / counts.written
        self.listener.event(
            events.BatchCommitted(
                batch=batch.id,
                version=landed.outcome.version,
                catch_up=landed.catch_up,
                read=counts.read,
                written=counts.written,
                quarantined=counts.quarantined,
                filtered=counts.filtered,
                files=len(landed.file_sizes),
                size_bytes=landed.size_bytes,
                seconds=round(now - staged_at, 3),
                steps=_rounded({**batch.steps, "commit": now - commit_at}),
                slices={
                    str(piece.partition): (piece.start, piece.end)
                    for piece in batch.slices
                    if piece.partition in accepted
                },
                file_sizes=landed.file_sizes,
                outputs=landed.outputs,
            )
        )

    def _handle_refusals(self, refused: Sequence[Refusal], slices: int) -> None:
        """Report refused slices; without shared claims no other process is expected, and this one ends."""
        for refusal in refused:
            self.listener.event(events.SliceRefused(partition=str(refusal.partition), reason=refusal.reason))
        if refused and not self.claims.shared:
            raise FencedError(
                f"the table refused {len(refused)} of {slices} slices: {refused[0].partition}: {refused[0].reason}",
                detail="another process works on this job",
                hint="stop the other process; with `claims: static` a job has one process",
            )

    def _still_owned(self, batch: Batch, tokens: Tokens) -> Batch:
        """The batch without the slices whose claim was lost while it was written; the table would refuse them too."""
        kept = []
        for piece in batch.slices:
            if self.claims.keeps(piece.partition, tokens[piece.partition]):
                kept.append(piece)
            else:
                self.listener.event(events.SliceDropped(partition=str(piece.partition), reason="the claim was lost"))
        return replace(batch, slices=tuple(kept))

    def _report_progress(self, tokens: Tokens, state: DeltaState, bounds: LogBounds) -> None:
        positions = {partition: state.of(partition).position or 0 for partition in tokens}
        unread = {place: max(positions[place], bounds[place].first) for place in tokens}
        lags = {place: max(0, bounds[place].end - unread[place]) for place in tokens}
        self.claims.progress(positions, lags)
        if self.environment.watched:
            self.ages.read({place: offset for place, offset in unread.items() if lags[place]})
        progress = {
            str(place): events.PartitionProgress(
                positions[place],
                bounds[place].first,
                bounds[place].end,
                self.ages.of(place, unread[place]) if lags[place] else None,
                self.ages.retention.get(place.topic),
                place.topic_id,
            )
            for place in tokens
        }
        self.listener.event(events.ProgressMeasured(progress, self.claims.heartbeat_age()))

    def _check_log(self, batch: Batch, read: EpochMarks) -> None:
        """Before the commit, check that the log is still the one that the table and the batch were read from."""
        ids = self.log.topic_ids({piece.partition.topic for piece in batch.slices})
        state = self.table.state([piece.partition for piece in batch.slices])
        marks: dict[Partition, tuple[EpochMark, ...]] = {}
        for piece in batch.slices:
            if ids.get(piece.partition.topic) != piece.partition.topic_id:
                # A recreated topic would be read silently as the old one (RULES P3).
                raise TransientError(f"topic {piece.partition.topic} was deleted or recreated during a batch")
            before = state.of(piece.partition).mark
            of_batch = read.get((piece.partition.topic, piece.partition.number), ())
            if before is not None or of_batch:
                marks[piece.partition] = of_batch if before is None else (before, *of_batch)
        for lost in self.log.lost_tails(marks):
            raise LostTailError(lost.partition, lost.mark, lost.end)

    # mirror

    def _mirror_others_work(self, tokens: Tokens) -> None:
        """Mirror what earlier owners committed: one may have died between its commit and its mirror."""
        if self.claims.shared:
            moved = [
                partition
                for partition in tokens
                if self.table.shown_position(partition) != self.cache.mirrored.get(partition)
            ]
            if moved:
                self.mirror(moved)

    def mirror(self, partitions: Sequence[Partition]) -> None:
        """Show the table's positions to lag tools; best effort, never read back (RULES P5)."""
        self.table.state(partitions)
        positions = {partition: self.table.shown_position(partition) for partition in partitions}
        self.cache.mirrored |= positions
        begun_at = self.environment.now()
        try:
            refused = self.log.show(positions)
        except PenstockError as error:
            self.listener.event(events.MirrorFailed(reason=error.primary, detail=error.detail))
            return
        self.listener.event(events.Mirrored(round(self.environment.now() - begun_at, 3)))
        for partition, reason in refused.items():
            self.listener.event(events.MirrorRefused(partition=str(partition), reason=reason))
        self.at_step("mirrored")


def _task_steps(tasks: Mapping[str, float], seconds: float) -> dict[str, float]:
    """The duration of a Spark job, divided among the steps as its tasks together divided theirs."""
    whole = sum(tasks.values())
    return {name: seconds * of_tasks / whole for name, of_tasks in tasks.items()} if whole else {"write": seconds}


def _rounded(steps: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 3) for name, seconds in steps.items()}


def open_rounds(
    job: JobSpec,
    spark: SparkSession,
    environment: Environment | None = None,
    claims: Claims | None = None,
    open_log: OpenLog = open_log_of,
) -> Rounds[Any]:
    """The rounds of a job: its log, its table, created if need be, and the writer of its kind."""
    claims = claims or StaticClaims()
    environment = with_signs(environment or Environment(), claims)
    if job.spark.master is None and may_be_given_a_master():
        refuse_unshared(job, spark.sparkContext.master)
    with ExitStack() as opened:
        log = opened.enter_context(closing(open_log(job)))
        # The log has to answer first: no table is created for a missing log.
        log.partitions()
        job = with_seen_fields(job, log, environment)
        rounds = Rounds(job, log, claims, kind_of(job).open_writer(job, spark, log, environment), environment)
        opened.pop_all()
    return rounds
