"""One round of a job: claim, plan, write, commit, mirror, whatever kind of table it writes to.

Nothing is kept between rounds but caches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from penstock.claims import Claims, StaticClaims
from penstock.claims.group import GroupClaims
from penstock.engine.ownership import StartedTable, Starter
from penstock.engine.ranges import RangeCallbacks, RangeWork
from penstock.environment import Environment, new_batch_id
from penstock.errors import FencedError, PenstockError, TransientError
from penstock.events import Listener, NullListener
from penstock.failpoints import Failpoint
from penstock.flow.write.manifest import Marks
from penstock.job.spec import Delivery, JobSpec, KafkaLogSpec
from penstock.lake.proposal import Outcome, Refusal
from penstock.lake.state import TableWord
from penstock.logs.kafka.epochs import lost_tails
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.mirror import mirror
from penstock.logs.log import Batch, Bounds, EpochMark, Partition
from penstock.plan import BeyondEndError, Lane, LostTailError, Terms, Wait, plan

W = TypeVar("W")
"""What the write step leaves behind for the commit."""
RECORD_BYTES_ASSUMED = 100.0
"""Parquet bytes per record before the first commit has taught the real size."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a process gives to the rounds of its jobs."""

    environment: Environment = field(default_factory=Environment)
    listener: Listener = field(default_factory=NullListener)
    claims: Claims = field(default_factory=StaticClaims)
    failpoint: Failpoint | None = None
    stopping: Callable[[], bool] = lambda: False
    open_log: Callable[[KafkaLogSpec], KafkaLog] = KafkaLog


@contextmanager
def answering_log(job: JobSpec, context: Context) -> Iterator[KafkaLog]:
    """A log that has answered once: for one that cannot be read no table is made. Closed if the block fails."""
    log = context.open_log(job.log)
    try:
        log.partitions()
        yield log
    except BaseException:
        log.close()
        raise


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did: a batch's outcome, or a wait."""

    outcome: Landed | None = None
    wait: Wait | None = None
    caught_up: bool = False


@dataclass(slots=True)
class Seen:
    """Caches of a process: losing them costs time, never a record."""

    waiting_since: dict[Partition, float] = field(default_factory=dict)
    record_bytes: float = RECORD_BYTES_ASSUMED
    ended: set[Partition] = field(default_factory=set)
    """Partitions that were read to their end at least once, so that newer records arrived since."""
    mirrored: dict[Partition, int] = field(default_factory=dict)
    """The positions that this process last tried to show in the consumer group."""
    was_behind: bool = False
    """Whether the last batch was a catch-up."""


class Landed(Protocol):
    """What a commit of a batch tells."""

    @property
    def version(self) -> int | None: ...

    @property
    def accepted(self) -> Sequence[LandedPart]: ...

    @property
    def refused(self) -> Sequence[Refusal]: ...


class LandedPart(Protocol):
    @property
    def partition(self) -> Partition: ...

    @property
    def token(self) -> int: ...


class JobRounds(ABC, Generic[W]):
    """The five steps of one job over its log and a table of some kind."""

    def __init__(self, job: JobSpec, context: Context, log: KafkaLog) -> None:
        self.job = job
        self.log = log
        self.environment = context.environment
        self.listener = context.listener
        self.claims = context.claims
        self.seen = Seen()
        self.starter = Starter(job, self.log, self.stateful, self.claims, self.listener, self.reach)
        self.ranges = self._range_work()

    # what a kind of table does in its own way

    @property
    @abstractmethod
    def stateful(self) -> StartedTable:
        """The table."""

    @abstractmethod
    def write(self, batch: Batch) -> W | None:
        """Run the batch's Spark job; None if the table first had to change: the batch is planned again."""

    @abstractmethod
    def land(self, batch: Batch, tokens: Mapping[Partition, int], written: W) -> Landed:
        """The one act that makes rows visible and moves positions; a refused partition means another owner."""

    @abstractmethod
    def settle(self, state: TableWord, *partitions: Partition) -> None:
        """Complete what earlier commits of these partitions left to do, whoever made them (RULES Q1)."""

    def catch_up(
        self, tokens: Mapping[Partition, int], bounds: Mapping[Partition, Bounds], flush_now: bool
    ) -> Batch | None:
        """Work that lies behind the positions; a table of one type has none."""
        return None

    def shown_position(self, state: TableWord, partition: Partition) -> int:
        """The offset that the consumer group shows: below it nothing is read again."""
        return state.of(partition).position or 0

    def is_behind(self, partitions: Iterable[Partition]) -> bool:
        """Whether something below the positions is still to be written."""
        return False

    def rest(self, tokens: Mapping[Partition, int], bounds: Mapping[Partition, Bounds]) -> None:
        """Nothing is due: do what only a pause allows."""

    # the steps

    def close(self) -> None:
        """Give back what others can do; the claims themselves belong to the process."""
        if self.ranges is not None:
            self.ranges.close()
        self.log.close()

    def round(self, flush_now: bool = False, ends: Mapping[Partition, int] | None = None) -> Round:
        """Carry one batch through, or say how long to wait. `ends` bounds the partitions, as `run --once` does."""
        partitions = self.log.partitions()
        tokens = self.claim(partitions)
        bounds = self.log.bounds(tokens)
        tokens, state = self.starter.begin(tokens, partitions, bounds)
        self._tell_progress(tokens, state, bounds)
        self._mirror_others_work(tokens, state)
        shared = self.ranges.share(tokens, state, bounds) if self.ranges else frozenset[Partition]()
        self.settle(state, *tokens)
        planned_at = self.environment.now()
        alone = {each: token for each, token in tokens.items() if each not in shared}
        planned = self._next_batch(alone, state, bounds, flush_now, ends)
        if isinstance(planned, Batch) and self.job.delivery is Delivery.AT_MOST_ONCE:
            planned = self.announce(planned, tokens)
        ranged = self.ranges.work(idle=bool(shared) or isinstance(planned, Wait)) if self.ranges else None
        if isinstance(planned, Wait) and ranged is not None:
            return Round(outcome=ranged)
        if isinstance(planned, Wait):
            self.rest(alone, bounds)
            return Round(wait=planned, caught_up=planned.until is None and self._is_done(tokens, ends))
        self.reach("planned")
        written = self.write(planned)
        if written is None:
            return Round()
        self.reach("staged")
        outcome = self.commit(planned, tokens, written)
        self._count_waiting_anew(planned, bounds, planned_at)
        self.mirror([part.partition for part in outcome.accepted if self.claims.keeps(part.partition, part.token)])
        return Round(outcome=outcome, caught_up=ends is not None and self._is_done(tokens, ends))

    def _next_batch(
        self,
        tokens: Mapping[Partition, int],
        state: TableWord,
        bounds: Mapping[Partition, Bounds],
        flush_now: bool,
        ends: Mapping[Partition, int] | None,
    ) -> Batch | Wait:
        """What is new, or what lies behind; where both are there, in turns."""
        planned = self.plan(tokens, state, bounds, flush_now, ends)
        if isinstance(planned, Batch) and self.seen.was_behind:
            self.seen.was_behind = False
            return planned
        behind = self.catch_up(tokens, bounds, flush_now)
        self.seen.was_behind = behind is not None
        return behind or planned

    def _is_done(self, tokens: Mapping[Partition, int], ends: Mapping[Partition, int] | None) -> bool:
        """Whether nothing is left: for a bounded run the table is at the ends, whichever process brought it there."""
        if self.is_behind(tokens if ends is None else ends):
            return False
        if ends is None:
            return True
        state = self.stateful.state(ends)
        return all((state.of(each).position or 0) >= end for each, end in ends.items())

    def present_ends(self) -> dict[Partition, int]:
        """Where the log ends now, for a run that stops there."""
        return {each: bounds.end for each, bounds in self.log.bounds(self.log.partitions()).items()}

    # claim

    def claim(self, partitions: tuple[Partition, ...]) -> dict[Partition, int]:
        """The partitions of this process with their tokens."""
        if not partitions and not self.starter.nothing_matched:
            self.starter.nothing_matched = True
            self.listener.event("no topic matches", pattern=self.job.log.topic_pattern)
        return self.claims.held(partitions, self.stateful.state(partitions).tokens)

    # plan

    def plan(
        self,
        tokens: Mapping[Partition, int],
        state: TableWord,
        bounds: Mapping[Partition, Bounds],
        flush_now: bool,
        ends: Mapping[Partition, int] | None,
    ) -> Batch | Wait:
        now = self.environment.now()
        lanes = tuple(self._lane(each, state, bounds[each], now, ends) for each in tokens)
        terms = Terms(self.job.flush, self.job.on.gap, self.seen.record_bytes, now, flush_now)
        planned = plan(lanes, terms, new_batch_id())
        if isinstance(planned, Batch):
            self.listener.event("batch planned", batch=planned.id, offsets=planned.offsets, slices=len(planned.slices))
        return planned

    def announce(self, batch: Batch, tokens: Mapping[Partition, int]) -> Batch | Wait:
        """Claim the batch's messages for this process, before the first is read: nobody will write them again."""
        self.starter.announcing({piece.partition: tokens[piece.partition] for piece in batch.slices})
        granted = self.claims.announce({piece.partition: piece.end for piece in batch.slices}, tokens)
        self.reach("announced")
        slices = tuple(piece for piece in batch.slices if piece.partition in granted)
        return replace(batch, slices=slices) if slices else Wait(self.environment.now())

    def _lane(
        self, partition: Partition, state: TableWord, bounds: Bounds, now: float, ends: Mapping[Partition, int] | None
    ) -> Lane:
        position = state.of(partition).position
        if position is None:
            raise TransientError(f"{partition} has no position yet")
        if position > bounds.end:
            raise BeyondEndError(partition, position, bounds.end)
        if ends is not None:
            end = max(position, min(bounds.end, ends.get(partition, position)))
            bounds = Bounds(min(bounds.first, end), end)
        if position == bounds.end:
            self.seen.ended.add(partition)
            self.seen.waiting_since.pop(partition, None)
            return Lane(partition, position, bounds, None)
        if partition in self.seen.ended:
            self.seen.waiting_since.setdefault(partition, now)
        return Lane(partition, position, bounds, self.seen.waiting_since.get(partition))

    def _count_waiting_anew(self, batch: Batch, bounds: Mapping[Partition, Bounds], planned_at: float) -> None:
        """What lies behind a slice that reached the end came after the plan: it waits from then, not from before."""
        for piece in batch.slices:
            if piece.end == bounds[piece.partition].end:
                self.seen.ended.add(piece.partition)
                self.seen.waiting_since[piece.partition] = planned_at

    # commit

    def commit(self, batch: Batch, tokens: Mapping[Partition, int], written: W) -> Landed:
        """Land what is still ours of a batch: claims may have been lost while it was written."""
        batch = self._still_ours(batch, tokens)
        return self.land(batch, tokens, written) if batch.slices else Outcome(None)

    def _heed(self, refused: Sequence[Refusal], slices: int) -> None:
        """Tell of refused slices; where no other process is expected, that ends this one."""
        for refusal in refused:
            self.listener.event("slice refused", partition=str(refusal.partition), reason=refusal.reason)
        if refused and not self.claims.shared:
            raise FencedError(
                f"the table refused {len(refused)} of {slices} slices: {refused[0].partition}: {refused[0].reason}",
                detail="another process works on this job",
                hint="stop the other process; with `claims: static` a job has one process",
            )

    def _still_ours(self, batch: Batch, tokens: Mapping[Partition, int]) -> Batch:
        """The batch without the slices whose claim was lost while it was written; the table would refuse them too."""
        kept = []
        for piece in batch.slices:
            if self.claims.keeps(piece.partition, tokens[piece.partition]):
                kept.append(piece)
            else:
                self.listener.event("slice dropped", partition=str(piece.partition), reason="the claim was lost")
        return replace(batch, slices=tuple(kept))

    def _tell_progress(
        self, tokens: Mapping[Partition, int], state: TableWord, bounds: Mapping[Partition, Bounds]
    ) -> None:
        positions = {each: state.of(each).position or 0 for each in tokens}
        self.claims.progress(positions, {each: max(0, bounds[each].end - positions[each]) for each in tokens})

    def _check_log(self, batch: Batch, read: Marks) -> None:
        """Compare with the log, before the commit, what it was when the table was written and the batch read."""
        self._check_identity(batch)
        state = self.stateful.state([piece.partition for piece in batch.slices])
        marks: dict[Partition, tuple[EpochMark, ...]] = {}
        for piece in batch.slices:
            before = state.of(piece.partition).mark
            found = read.get((piece.partition.topic, piece.partition.number), ())
            if before is not None or found:
                marks[piece.partition] = found if before is None else (before, *found)
        for lost in lost_tails(self.log, marks):
            raise LostTailError(lost.partition, lost.mark, lost.end)

    def _check_identity(self, batch: Batch) -> None:
        """A recreated topic is read silently as the old one: compare the ids once more (RULES P3)."""
        ids = self.log.topic_ids({piece.partition.topic for piece in batch.slices})
        for piece in batch.slices:
            now = ids.get(piece.partition.topic)
            if now != piece.partition.topic_id:
                raise TransientError(
                    f"topic {piece.partition.topic} was deleted or recreated while a batch was written"
                )

    # mirror

    def _mirror_others_work(self, tokens: Mapping[Partition, int], state: TableWord) -> None:
        """Show what others did on our partitions: a helper by its ranges, or an owner that died behind its commit."""
        if self.claims.shared:
            moved = [each for each in tokens if self.shown_position(state, each) != self.seen.mirrored.get(each)]
            if moved:
                self.mirror(moved)

    def mirror(self, partitions: list[Partition]) -> None:
        """Show the table's positions in the consumer group; best effort, never read back (RULES P5)."""
        state = self.stateful.state(partitions)
        positions = {each: self.shown_position(state, each) for each in partitions}
        self.seen.mirrored |= positions
        try:
            report = mirror(self.log, self.job.log.group, positions)
        except PenstockError as error:
            self.listener.event("mirror failed", reason=error.primary, detail=error.detail)
            return
        for partition, reason in report.refused.items():
            self.listener.event("mirror refused", partition=str(partition), reason=reason)
        self.reach("mirrored")

    # what the steps share

    def _range_work(self) -> RangeWork[W] | None:
        """Ranges are for jobs whose processes share partitions; at most once has its own order of things."""
        claims = self.claims
        if not isinstance(claims, GroupClaims) or self.job.claims is None or not self.job.claims.ranges:
            return None
        if self.job.delivery is Delivery.AT_MOST_ONCE:
            return None
        callbacks = RangeCallbacks(self.write, self.settle, self.land, self.reach)
        return RangeWork(claims, self.log, self.stateful, self.job, callbacks, self.listener)

    def reach(self, step: str) -> None:
        self.environment.reach(step)
