"""The workloads of the simulation: batches into tables, messages at most once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from penstock.claims.protocol.records import (
    ClaimingMessages,
    FreeingPartition,
    Record,
    Seeking,
)
from penstock.claims.protocol.state import GroupState
from penstock.logs.log import Partition
from tests.support.coordination import INTERVAL
from tests.unit.claims.simulation.executions import ConsumerWorkload
from tests.unit.claims.simulation.model_table import Table, ViolationError
from tests.unit.claims.simulation.processes import Job, PlainWorkload, Process, Workload

__all__ = ["WORKLOADS", "ViolationError"]


class TableWorkload(PlainWorkload):
    """Batches: the position is read behind the fence, the commit comes when the rows are ready."""

    def __init__(self, seed: int, rng: random.Random, unchecked: bool) -> None:
        self.table = Table(seed, not unchecked)
        self.rng = rng
        self.seed = seed
        self._reached: dict[Partition, int] = {}

    def floor(self, partition: Partition) -> int:
        return self.table.token(partition)

    def work(self, process: Process, now: float, hostile: bool) -> list[Record]:
        """Commit what is ready whatever happened meanwhile: the table must refuse it. Begin only behind the gate."""
        self._land(process, now)
        process.agent.using(process.jobs)
        for partition, token in process.held(now).items():
            if partition not in process.jobs and self.rng.random() < 0.7:
                self._begin(process, partition, token, now, hostile)
        return []

    def _land(self, process: Process, now: float) -> None:
        for partition, job in list(process.jobs.items()):
            if job.ready_at > now or job.lease is not None:
                continue
            del process.jobs[partition]
            if self.table.commit(partition, job.token, job.start, job.end):
                process.positions[partition] = job.end
                process.agent.progress(partition, job.end)
            else:
                process.fenced.pop(partition, None)

    def _begin(self, process: Process, partition: Partition, token: int, now: float, hostile: bool) -> None:
        position = self._fenced(process, partition, token)
        if position is not None:
            seconds = self.rng.choice((1.0, 3.0, 8.0, 25.0)) if hostile else 2.0
            process.jobs[partition] = Job(token, position, position + self.rng.randint(1, 9), now + seconds)

    def _fenced(self, process: Process, partition: Partition, token: int) -> int | None:
        if process.fenced.get(partition) != token:
            position = self.table.fence(partition, token)
            if position is None:
                return None
            process.fenced[partition], process.positions[partition] = token, position
        return process.positions[partition]

    def some_position(self, partition: Partition) -> int:
        return self.rng.randint(0, self.table.position(partition) + 3)

    def mark(self) -> None:
        self._reached = dict(self.table.written)

    def check_progress(self, partitions: Sequence[Partition], state: GroupState) -> None:
        idle = [
            partition
            for partition in partitions
            if self.table.written.get(partition, 0) <= self._reached.get(partition, 0)
        ]
        if idle:
            raise ViolationError(f"seed {self.seed}: no work after the calm on {idle}")


class OnceWorkload(PlainWorkload):
    """Messages at most once: claimed in the log first, then executed; what was not executed is in the loss ledger."""

    def __init__(self, seed: int, rng: random.Random, unchecked: bool) -> None:
        self.seed = seed
        self.rng = rng
        self.unchecked = unchecked
        self.executed: dict[Partition, set[int]] = defaultdict(set)
        self.accepted = 0
        self.refused = 0
        self.seeks = 0
        self._marked = 0
        self._sought: dict[Partition, int] = {}
        self._first: dict[tuple[Partition, int], int] = {}
        """Where each owner began: no process goes back before that, to what another may be about to execute."""

    def work(self, process: Process, now: float, hostile: bool) -> list[Record]:
        participant = process.participant
        process.agent.using(process.jobs)
        if participant is None:
            return []
        sending: list[Record] = []
        held = process.held(now)
        for partition, job in list(process.jobs.items()):
            claim = participant.view.claim(partition)
            sought = job.lease is not None and (claim.seeks != job.lease or job.ready_at <= now)
            if claim.token != job.token or not claim.held_by(participant.who) or sought:
                del process.jobs[partition]
            elif job.ready_at <= now and (self.unchecked or (claim.claimed or 0) >= job.end):
                del process.jobs[partition]
                self._execute(partition, job)
                if self.rng.random() < 0.9 or not hostile:
                    participant.holdings.progress(partition, job.end)
            elif job.lease is None and job.ready_at + 2 * INTERVAL <= now:
                # The claim of the messages may be lost: it is sent again, for the same messages.
                job.ready_at = now
                claiming = {"token": job.token, "end": job.end}
                sending.append(participant.record_about(ClaimingMessages, partition, **claiming))
        for partition, token in held.items():
            claim = participant.view.claim(partition)
            if partition in process.jobs or self.rng.random() < 0.3:
                continue
            start = max(claim.position or 0, claim.claimed or 0)
            first = self._first.setdefault((partition, token), start)
            if hostile and start - 3 >= first and self.rng.random() < 0.02:
                seeking = {"if_token": token, "position": start - 3}
                sending.append(participant.record_about(Seeking, partition, **seeking))
                process.jobs[partition] = Job(token, start, start, now + 70, claim.seeks)
                continue
            end = start + self.rng.randint(1, 9)
            process.jobs[partition] = Job(token, start, end, now + self.rng.choice((0.0, 1.0, 8.0)))
            sending.append(participant.record_about(ClaimingMessages, partition, token=token, end=end))
        return participant.outbox.sending(sending, process.monotonic(now))

    def _execute(self, partition: Partition, job: Job) -> None:
        if job.token < self._sought.get(partition, 0):
            return
        for offset in range(job.start, job.end):
            if offset in self.executed[partition]:
                raise ViolationError(f"seed {self.seed}: {partition} executed {offset} twice")
            self.executed[partition].add(offset)
            self.accepted += 1

    def some_position(self, partition: Partition) -> int:
        return self.rng.randint(0, max(self.executed[partition], default=0))

    def appended(self, record: Record, refusal: str | None, after: GroupState) -> None:
        """What follows a seek may be executed again; what an older owner executes was before it.

        Also the last owner is an older one, if no process holds the partition.
        """
        if isinstance(record, ClaimingMessages):
            self.refused += refusal is not None
        if isinstance(record, Seeking | FreeingPartition) and refusal is None and record.position is not None:
            self.seeks += 1
            executed = self.executed[record.partition]
            self.executed[record.partition] = {item for item in executed if item < record.position}
            claim = after.claim(record.partition)
            self._sought[record.partition] = claim.token + (not claim.held)

    def mark(self) -> None:
        self._marked = self.accepted

    def check_progress(self, partitions: Sequence[Partition], state: GroupState) -> None:
        if partitions and self.accepted <= self._marked:
            raise ViolationError(f"seed {self.seed}: nothing is executed after the calm")
        for partition in partitions:
            claim = state.claim(partition)
            listed = {offset for start, end in claim.given_up for offset in range(start, end)}
            missing = set(range(claim.position or 0)) - listed - self.executed[partition]
            if missing:
                raise ViolationError(
                    f"seed {self.seed}: {partition} lost {sorted(missing)} without a line in the ledger"
                )


WORKLOADS: dict[str, Callable[[int, random.Random, bool], Workload]] = {
    "table": TableWorkload,
    "once": OnceWorkload,
    "least": partial(ConsumerWorkload, delivery="at_least_once"),
    "latest": partial(ConsumerWorkload, delivery="at_least_once", latest=True),
    "most": partial(ConsumerWorkload, delivery="at_most_once"),
}
