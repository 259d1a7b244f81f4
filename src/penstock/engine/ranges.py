"""Ranges in the engine: idle processes help with a partition that lags, each with offsets of its own (RULES M5).

A range is its own batch. It is written at once, parked while the table is not there yet, and committed in order: the
table accepts it only where its position is the range's start, so nothing is skipped or doubled whoever is late. A range
is over once the table has it to its end, never before: the coordination log follows the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias

from penstock import events
from penstock.claims.group import GroupClaims
from penstock.claims.member.range_client import HeldRange, RangeClient
from penstock.engine.ownership import LogBounds, Tokens
from penstock.environment import Environment, new_batch_id
from penstock.errors import OutcomeUnknownError, PenstockError, TransientError
from penstock.job.spec import JobSpec
from penstock.lake.state import TableState
from penstock.logs.log import Batch, Bounds, Log, Partition
from penstock.plan import range_slice
from penstock.tables.kind import S, SchemaChanged, Writer

HOT_RANGES = 3
"""A partition is shared once its lag fills so many ranges, and somebody is idle."""
PARKED_MAX = 4
"""Written ranges that wait for the table; beyond that only those are taken that others wait for."""

Land: TypeAlias = Callable[[Batch, Tokens, S], object]
"""Brings a batch into the table, as the rounds of the job do."""


@dataclass(frozen=True, slots=True)
class _Parked(Generic[S]):
    held: HeldRange
    batch: Batch
    written: S

    @property
    def start(self) -> int:
        """Where its rows begin: after the range's own start if the table stood inside the range."""
        return self.batch.slices[0].start


class RangeWork(Generic[S]):
    """The ranges of one process: those it shares as an owner, and those it works on."""

    def __init__(
        self, job: JobSpec, log: Log, claims: GroupClaims, writer: Writer[S], environment: Environment, land: Land[S]
    ) -> None:
        self.job = job
        self.log = log
        self.claims = claims
        self.writer = writer
        self.table = writer.table
        self.listener = environment.listener
        self.reach = environment.reach
        self.land = land
        self._ranges = RangeClient(claims.agent, attempts_max=None)
        self._size = job.flush.max_messages_per_batch
        self._parked: list[_Parked[S]] = []

    def share(self, tokens: Tokens, state: TableState, bounds: LogBounds) -> frozenset[Partition]:
        """Open what lags to idle processes, close what does not, and return our partitions that are shared now."""
        return frozenset(
            partition
            for partition, token in tokens.items()
            if self._shares(partition, token, state.of(partition).position or 0, bounds[partition])
        )

    def _shares(self, partition: Partition, token: int, position: int, bounds: Bounds) -> bool:
        with self.claims.agent.looking() as participant:
            ranges = participant.view.claim(partition).ranges
            idle = participant.idle_others(self.claims.agent.now(), lag_max=self._size)
        if ranges is None:
            return position >= bounds.first and idle and self._open(partition, token, position, bounds.end)
        next_due = ranges.leases[0].start if ranges.leases else ranges.next
        if position < next_due and self._void(partition, token, next_due):
            return False
        left = bounds.end - ranges.next
        over = not ranges.leases and (left < self._size or not idle or ranges.next < bounds.first)
        if not over or not self._ranges.close(partition, token):
            return True
        self.listener.event(events.RangesClosed(partition=str(partition), position=position))
        return False

    def _open(self, partition: Partition, token: int, position: int, end: int) -> bool:
        """Share a partition that lags by several ranges; what retention took of it the planner records first."""
        lag = end - position
        if lag < HOT_RANGES * self._size or not self._ranges.open(partition, token, position):
            return False
        self.listener.event(events.RangesOpened(partition=str(partition), position=position, lag=lag))
        return True

    def _void(self, partition: Partition, token: int, next_due: int) -> bool:
        """End the sharing if ranges were reported as done that the table does not have: nobody else would write them.

        The table is asked again: it may have come to `next_due` since it was read for this round.
        """
        position = self.table.state([partition]).of(partition).position or 0
        if position >= next_due:
            return False
        shown = self.claims.correct(partition, token, position)
        if shown is None:
            return False
        self.listener.event(events.PositionCorrected(partition=str(partition), position=position, shown=shown))
        self.listener.event(events.RangesClosed(partition=str(partition), position=position))
        return True

    def work(self, idle: bool) -> bool:
        """Commit what is parked and due; an idle process then takes one more range. Whether there was work to do.

        Asked every round: others wait for what is parked here, however busy this process is.
        """
        if not self.claims.agent.working():
            self.close()
            return False
        self._return_lost()
        landed = self._land_due()
        if not idle:
            return landed
        taken = self._take()
        return self._land_due() or landed or taken

    def close(self) -> None:
        """Let others have what we did not finish."""
        for parked in self._parked:
            self._give_back(parked.held)
        self._parked.clear()

    def _return_lost(self) -> None:
        """Give back ranges that the log says are ours and nobody works on: our heartbeats would keep them for ever."""
        parked = {(each.held.partition, each.held.start) for each in self._parked}
        with self.claims.agent.looking() as participant:
            lost = [
                HeldRange(partition, lease.start, lease.end, claim.token, lease.lease)
                for partition, claim in participant.view.claims()
                for lease in claim.leases
                if lease.owner == participant.who and not lease.done and (partition, lease.start) not in parked
            ]
        for held in lost:
            self._give_back(held)

    def _take(self) -> bool:
        for partition, token in sorted(self._ranges.shared().items()):
            if self.table.state([partition]).of(partition).token != token:
                # The owner has not fenced the table yet, or is no owner any more.
                continue
            held = self._ranges.claim(partition, self._size, self._end_of_new(partition))
            if held is not None:
                self._do(held)
                return True
        return False

    def _do(self, held: HeldRange) -> None:
        """Write what the table does not have of a range: the log need not have the rest any more."""
        position = self.table.state([held.partition]).of(held.partition).position or 0
        if position >= held.end:
            self._finish(held)
        else:
            self._write(held, max(held.start, position))

    def _end_of_new(self, partition: Partition) -> int:
        """Where the last new range ends; 0 if only those are taken that others wait for."""
        bounds = self.log.bounds([partition])[partition]
        with self.claims.agent.looking() as participant:
            ranges = participant.view.claim(partition).ranges
        # Offsets that nobody claimed before the log lost them are left to the owner's planner.
        overtaken = ranges is not None and ranges.next < bounds.first
        return 0 if overtaken or len(self._parked) >= PARKED_MAX else bounds.end

    def _write(self, held: HeldRange, start: int) -> None:
        self.listener.event(events.RangeClaimed(partition=str(held.partition), start=start, end=held.end))
        try:
            # Retention may overtake a range: whoever takes it records the gap, or nobody could get past it.
            bounds = self.log.bounds([held.partition])[held.partition]
            piece = range_slice(held.partition, start, held.end, bounds, self.job.on.gap)
            batch = Batch(new_batch_id(), (piece,))
            written = self.writer.stage(batch)
        except PenstockError:
            self._give_back(held)
            raise
        if isinstance(written, SchemaChanged):
            self._give_back(held)
            return
        self._parked.append(_Parked(held, batch, written))
        self.reach("range_parked")

    def _land_due(self) -> bool:
        """Commit the parked ranges that the table has come to, in order; drop those that others have done."""
        landed = False
        for parked in sorted(self._parked, key=lambda each: (each.held.partition, each.start)):
            held = parked.held
            here = self.table.state([held.partition]).of(held.partition)
            if here.token == held.token and here.position is not None and here.position < parked.start:
                continue
            self._parked.remove(parked)
            if here.token == held.token and here.position == parked.start:
                self._land(parked)
                landed = True
            self._conclude(held)
        return landed

    def _conclude(self, held: HeldRange) -> None:
        """Report a range as done if the table has it to its end; else it is written again, from where the table is."""
        here = self.table.state([held.partition]).of(held.partition)
        if here.token == held.token and (here.position or 0) >= held.end:
            self._finish(held)
        else:
            self._give_back(held)

    def _land(self, parked: _Parked[S]) -> None:
        held = parked.held
        try:
            self.table.settle([held.partition])
            self.land(parked.batch, {held.partition: held.token}, parked.written)
        except PenstockError:
            self._give_back(held)
            raise
        self.reach("range_landed")

    def _finish(self, held: HeldRange) -> None:
        try:
            done = self._ranges.finish(held)
        except (TransientError, OutcomeUnknownError) as error:
            self.listener.event(events.RangeNotReported(partition=str(held.partition), reason=error.primary))
            return
        self.listener.event(events.RangeFinished(partition=str(held.partition), start=held.start, ours=done))

    def _give_back(self, held: HeldRange) -> None:
        try:
            self._ranges.give_back(held)
        except (TransientError, OutcomeUnknownError) as error:
            # It is given back again in the next round.
            self.listener.event(events.RangeNotReturned(partition=str(held.partition), reason=error.primary))
