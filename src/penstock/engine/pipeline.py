"""One round of a job: claim, plan, write, commit, mirror. Nothing is kept between rounds but caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from penstock.claims import Claims, StaticClaims
from penstock.claims.group import GroupClaims
from penstock.engine.events import Listener, Silence
from penstock.engine.reports import Written
from penstock.engine.sharing import Hands, RangeWork
from penstock.engine.starting import Starter
from penstock.engine.writing import BatchWriter
from penstock.errors import FencedError, PenstockError, TransientError
from penstock.failpoints import Failpoint
from penstock.flow.compile import visible_schema
from penstock.flow.sql import output_schema
from penstock.job.spec import Delivery, JobSpec, NewColumnPolicy
from penstock.log.kafka import KafkaLog
from penstock.log.mirror import mirror
from penstock.log.offsets import Batch, Bounds, Partition
from penstock.plan import BeyondEndError, Lane, Terms, Wait, plan
from penstock.tables.delta.table import Table, open_or_create
from penstock.tables.environment import Environment, new_batch_id
from penstock.tables.proposal import Outcome, Proposal, SlicePart
from penstock.tables.quarantine import Quarantine
from penstock.tables.state import TableState

RECORD_BYTES_ASSUMED = 100.0
"""Parquet bytes per record before the first commit has taught the real size."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did: a batch's outcome, or a wait."""

    outcome: Outcome | None = None
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


class Pipeline:
    """The five steps of one job over its log and table."""

    def __init__(
        self,
        job: JobSpec,
        spark: SparkSession,
        environment: Environment | None = None,
        listener: Listener | None = None,
        failpoint: Failpoint | None = None,
        claims: Claims | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.job = job
        self.spark = spark
        self.log = KafkaLog(job.log)
        self.environment = environment or Environment()
        self.listener = listener or Silence()
        self.claims = claims or StaticClaims()
        self.seen = Seen()
        self.table = self._open_table()
        self.starter = Starter(job, self.log, self.table, self.claims, self.listener, self.reach)
        self.writer = BatchWriter(job, spark, self.table, self.log, self.listener, failpoint, stopping)
        self.ranges = self._range_work()
        self.quarantine = Quarantine(job, self.table, self.environment)
        self.quarantine.finish_replay()
        self._learn_record_bytes()

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
        planned = self.plan(alone, state, bounds, flush_now, ends)
        if isinstance(planned, Batch) and self.job.delivery is Delivery.AT_MOST_ONCE:
            planned = self.announce(planned, tokens)
        ranged = self.ranges.work(idle=bool(shared) or isinstance(planned, Wait)) if self.ranges else None
        if isinstance(planned, Wait) and ranged is not None:
            return Round(outcome=ranged)
        if isinstance(planned, Wait):
            return Round(wait=planned, caught_up=planned.until is None and (ends is None or self._reached(ends)))
        self.reach("planned")
        written = self.writer.write(planned)
        if written is None:
            return Round()
        self.reach("staged")
        outcome = self.commit(planned, tokens, written)
        self._count_waiting_anew(planned, bounds, planned_at)
        self.mirror([part.partition for part in outcome.accepted if self.claims.keeps(part.partition, part.token)])
        return Round(outcome=outcome, caught_up=self._reached(ends))

    def _reached(self, ends: Mapping[Partition, int] | None) -> bool:
        """Whether the table is at the ends that a bounded run set out for, whichever process brought it there."""
        if ends is None:
            return False
        state = self.table.state(ends)
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
        return self.claims.held(partitions, self.table.state(partitions).tokens)

    # plan

    def plan(
        self,
        tokens: Mapping[Partition, int],
        state: TableState,
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
        return Batch(batch.id, slices) if slices else Wait(self.environment.now())

    def _lane(
        self, partition: Partition, state: TableState, bounds: Bounds, now: float, ends: Mapping[Partition, int] | None
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

    def commit(self, batch: Batch, tokens: Mapping[Partition, int], written: Written) -> Outcome:
        """Land what is still ours of a batch: claims may have been lost while it was written."""
        batch = self._still_ours(batch, tokens)
        return self.land(batch, tokens, written) if batch.slices else Outcome(None)

    def land(self, batch: Batch, tokens: Mapping[Partition, int], written: Written) -> Outcome:
        """The one act that makes rows visible and moves positions; a refused partition means another owner."""
        self._check_identity(batch)
        parts = tuple(
            SlicePart(
                piece,
                tokens[piece.partition],
                written.counts_of(piece),
                written.files_of(piece),
                written.quarantine_files_of(piece),
            )
            for piece in batch.slices
        )
        outcome = self.table.commit(Proposal(self.job.name, batch.id, parts, written.staged_at), written.schema)
        self.reach("committed")
        if outcome.version is not None:
            self._learn(written)
            self.quarantine.append(outcome.accepted)
            self.reach("quarantined")
            self._tell(batch, outcome, written)
        for refusal in outcome.refused:
            self.listener.event("slice refused", partition=str(refusal.partition), reason=refusal.reason)
        if outcome.refused and not self.claims.shared:
            first = outcome.refused[0]
            raise FencedError(
                f"the table refused {len(outcome.refused)} of {len(parts)} slices: {first.partition}: {first.reason}",
                detail="another process works on this job",
                hint="stop the other process; with `claims: static` a job has one process",
            )
        return outcome

    def settle(self, state: TableState, *partitions: Partition) -> None:
        """Complete the quarantine of earlier commits of these partitions, whoever made them (RULES Q1)."""
        self.quarantine.append_missing({each: state.of(each).quarantine_mark for each in partitions})

    def _still_ours(self, batch: Batch, tokens: Mapping[Partition, int]) -> Batch:
        """The batch without the slices whose claim was lost while it was written; the table would refuse them too."""
        kept = []
        for piece in batch.slices:
            if self.claims.keeps(piece.partition, tokens[piece.partition]):
                kept.append(piece)
            else:
                self.listener.event("slice dropped", partition=str(piece.partition), reason="the claim was lost")
        return Batch(batch.id, tuple(kept))

    def _tell_progress(
        self, tokens: Mapping[Partition, int], state: TableState, bounds: Mapping[Partition, Bounds]
    ) -> None:
        positions = {each: state.of(each).position or 0 for each in tokens}
        self.claims.progress(positions, {each: max(0, bounds[each].end - positions[each]) for each in tokens})

    def _check_identity(self, batch: Batch) -> None:
        """A recreated topic is read silently as the old one: compare the ids once more (RULES P3)."""
        ids = self.log.topic_ids({piece.partition.topic for piece in batch.slices})
        for piece in batch.slices:
            now = ids.get(piece.partition.topic)
            if now != piece.partition.topic_id:
                raise TransientError(
                    f"topic {piece.partition.topic} was deleted or recreated while a batch was written"
                )

    def _tell(self, batch: Batch, outcome: Outcome, written: Written) -> None:
        total = written.total
        self.listener.event(
            "batch committed",
            batch=batch.id,
            version=outcome.version,
            read=total.read,
            written=total.written,
            quarantined=total.quarantined,
            filtered=total.filtered,
            files=len(written.files),
            size_bytes=written.size_bytes,
            seconds=round(self.environment.now() - written.staged_at, 3),
        )

    # mirror

    def _mirror_others_work(self, tokens: Mapping[Partition, int], state: TableState) -> None:
        """Show what others did on our partitions: a helper by its ranges, or an owner that died behind its commit."""
        if self.claims.shared:
            moved = [each for each in tokens if state.of(each).position != self.seen.mirrored.get(each)]
            if moved:
                self.mirror(moved)

    def mirror(self, partitions: list[Partition]) -> None:
        """Show the table's positions in the consumer group; best effort, never read back (RULES P5)."""
        state = self.table.state(partitions)
        positions = {each: state.of(each).position or 0 for each in partitions}
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

    def _range_work(self) -> RangeWork | None:
        """Ranges are for jobs whose processes share partitions; at most once has its own order of things."""
        claims = self.claims
        if not isinstance(claims, GroupClaims) or self.job.claims is None or not self.job.claims.ranges:
            return None
        if self.job.delivery is Delivery.AT_MOST_ONCE:
            return None
        hands = Hands(self.writer.write, self.settle, self.land, self.reach)
        return RangeWork(claims, self.log, self.table, self.job.flush, hands, self.listener)

    def reach(self, step: str) -> None:
        self.environment.reach(step)

    def _open_table(self) -> Table:
        visible = visible_schema(self.job, self.job.schema)
        schema = output_schema(self.spark, visible, self.job.sql) if self.job.sql else visible
        policy = self.job.on.new_column
        if self.job.sql and self.job.sql.select:
            policy = NewColumnPolicy.ADD
        return open_or_create(self.job.table, self.job.name, schema, policy, self.environment)

    def _learn(self, written: Written) -> None:
        if written.total.written:
            self.seen.record_bytes = written.size_bytes / written.total.written

    def _learn_record_bytes(self) -> None:
        """Take the size of a record from the newest commit that has one."""
        for record in self.table.handle.history(20):
            ours = record.get("penstock")
            if isinstance(ours, dict) and ours.get("rows"):
                self.seen.record_bytes = ours["size_bytes"] / ours["rows"]
                return
