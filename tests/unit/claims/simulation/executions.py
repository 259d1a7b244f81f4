"""A workload of plain consumers: the real streams, deliveries and acks of the library, over a log in memory.

What is executed is written down here, apart from what the consumers know, and compared with the state of the group.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import Message

from penstock.claims.member.consumer.start_offsets import Delivery, DeliveryOptions, StartOffsetFinder
from penstock.claims.member.consumer.stream_supervisor import Deliveries, StreamSupervisor
from penstock.claims.member.consumer.streams import Work
from penstock.claims.protocol.records import FreeingPartition, Record, ReleasingPartition, Seeking
from penstock.claims.protocol.state import Claim, GroupState
from penstock.errors import OutcomeUnknownError, TransientError
from penstock.events import Event
from penstock.logs.log import Bounds, Partition
from tests.support.group_in_memory import Fetched
from tests.unit.claims.simulation.model_table import ViolationError
from tests.unit.claims.simulation.processes import PlainWorkload, Process

IN_FLIGHT_MAX = 12
FETCHED_AT_ONCE = 5
GROWS_PER_SECOND = 0.1
HANDED_OUT_MAX = 100


@dataclass(slots=True)
class Lane:
    """One partition: how many records it has, and what became of them since its position was last set."""

    end: int = 0
    base: int = 0
    """Everything below was skipped when the position was set, or is done."""
    base_token: int = 0
    """Work under older tokens began before the position was set: it does not count."""
    begun: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    late: bool = False
    """It was added after the group had positions on its topic: it is read from its beginning."""

    @property
    def reached(self) -> int:
        """Everything below is finished."""
        reached = self.base
        while reached in self.finished:
            reached += 1
        return reached

    def move(self, position: int, token: int) -> None:
        self.base, self.base_token = position, token
        self.begun = {item for item in self.begun if item < position}
        self.finished = {offset for offset in self.finished if offset < position}


@dataclass(slots=True)
class Consumer:
    """The library's side of one process, without its threads."""

    process: Process
    supervisor: StreamSupervisor
    deliveries: Deliveries
    works: list[tuple[float, Work]] = field(default_factory=list)
    started: set[int] = field(default_factory=set)


class ConsumerWorkload(PlainWorkload):
    """Records are executed one by one. At least once: all of them. At most once: none twice, and losses are listed."""

    def __init__(
        self, seed: int, rng: random.Random, unchecked: bool, delivery: Delivery = "at_least_once", latest: bool = False
    ) -> None:
        self.seed = seed
        self.again = 0
        self.seeks = 0
        self._rng = rng
        self._unchecked = unchecked
        self._options = DeliveryOptions(delivery, IN_FLIGHT_MAX, start="latest" if latest else "earliest")
        self._lanes: dict[Partition, Lane] = defaultdict(Lane)
        self._consumers: dict[Process, Consumer] = {}
        self._streams: set[tuple[Process, int, Partition, int]] = set()
        self._state = GroupState()
        self._growing = True
        self._accepted = self._marked = 0

    def _fail(self, what: str) -> None:
        raise ViolationError(f"seed {self.seed}: {what}")

    # the topics, as a consumer asks for them

    def grow(self, partitions: Sequence[Partition], seconds: float) -> None:
        for partition in partitions:
            if partition not in self._lanes:
                claims = self._state.claims.items()
                begun = any(
                    other.topic_id == partition.topic_id and claim.position is not None for other, claim in claims
                )
                self._lanes[partition].late = begun
            if self._growing and self._rng.random() < seconds * GROWS_PER_SECOND:
                self._lanes[partition].end += self._rng.randint(1, 2)

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        return {partition: Bounds(0, self._lanes[partition].end) for partition in partitions}

    def some_position(self, partition: Partition) -> int:
        return self._rng.randint(0, self._lanes[partition].end)

    # the work of one process

    def start(self, process: Process) -> None:
        topics = _Topics(self, process)
        starts = StartOffsetFinder(process.agent, topics, lambda: topics, self._options, _ignore)
        starts.know(frozenset(process.requested))
        supervisor = StreamSupervisor(process.agent, topics, starts, self._options, _ignore)
        deliveries = Deliveries(process.agent, supervisor, self._options.at_most_once and not self._unchecked)
        self._consumers[process] = Consumer(process, supervisor, deliveries)

    def closing(self, process: Process) -> None:
        with suppress(TransientError):
            self._consumers[process].supervisor.report()

    def work(self, process: Process, now: float, hostile: bool) -> list[Record]:
        consumer = self._consumers[process]
        with suppress(TransientError, OutcomeUnknownError):
            # As the thread of the supervisor, which reports it and goes on.
            consumer.supervisor._turn()
        self._check_starts(consumer)
        self._finish(consumer, now)
        for stream in consumer.supervisor.streams.values():
            end = min(self._lanes[stream.partition].end, stream.fetch_from + FETCHED_AT_ONCE - len(stream.queue))
            for offset in range(stream.fetch_from, end):
                stream.take(cast(Message, Fetched(offset)), offset + 1)
        if self._rng.random() < 0.8:
            for work in consumer.deliveries.hand_out(self._rng.randint(1, 6) if hostile else HANDED_OUT_MAX):
                seconds = self._rng.choice((0.0, 1.0, 8.0, 25.0)) if hostile else 1.0
                self._begin(process, work)
                consumer.works.append((now + seconds, work))
                if self._unchecked and not self._options.at_most_once:
                    self._done(consumer, work)
        return []

    def _check_starts(self, consumer: Consumer) -> None:
        """No process begins before the position that it has read of its group."""
        participant = consumer.process.participant
        for partition, stream in consumer.supervisor.streams.items():
            if stream.number in consumer.started or participant is None:
                continue
            consumer.started.add(stream.number)
            position = participant.view.claim(partition).position or 0
            if stream.acks.position < position:
                self._fail(f"{partition} is read from {stream.acks.position} on, its group is at {position}")

    def _begin(self, process: Process, work: Work) -> None:
        """The application executes a record: from here on it may have had its effect."""
        lane = self._lanes[work.partition]
        place = (process, work.stream, work.partition, work.offset)
        if place in self._streams:
            self._fail(f"{process.client_id} got {work.partition} {work.offset} twice under token {work.token}")
        self._streams.add(place)
        if work.token < lane.base_token:
            return
        self._accepted += 1
        if work.offset in lane.begun:
            self.again += 1
            if self._options.at_most_once:
                self._fail(f"{work.partition} executed {work.offset} twice")
        lane.begun.add(work.offset)

    def _finish(self, consumer: Consumer, now: float) -> None:
        """As `Member.done`; a claim that is lost meanwhile is what the documented loop expects."""
        for work_item in [item for item in consumer.works if item[0] <= now]:
            consumer.works.remove(work_item)
            work = work_item[1]
            lane = self._lanes[work.partition]
            if work.token >= lane.base_token:
                lane.finished.add(work.offset)
            if not self._unchecked or self._options.at_most_once:
                self._done(consumer, work)

    @staticmethod
    def _done(consumer: Consumer, work: Work) -> None:
        stream = consumer.supervisor.stream_of(work)
        if stream is not None:
            stream.acks.done(work.offset, work.token)

    # what the log holds

    def sent(self, process: Process, record: Record) -> None:
        """A process that releases a partition without work in flight reports everything that it has finished."""
        if not isinstance(record, ReleasingPartition):
            return
        consumer = self._consumers[process]
        used = frozenset() if process.participant is None else process.participant.holdings.in_use
        for beat in record.beats:
            stream = consumer.supervisor.streams.get(beat.partition)
            if stream is None or stream.token != beat.token or stream.stale or beat.partition in used:
                continue
            if beat.seeks == self._state.claim(beat.partition).seeks and (beat.position or 0) != stream.acks.position:
                self._fail(f"{beat.partition} is released at {beat.position}, {stream.acks.position} is reached")

    def appended(self, record: Record, refusal: str | None, after: GroupState) -> None:
        before, self._state = self._state, after
        if refusal is not None:
            return
        if isinstance(record, Seeking) or (isinstance(record, FreeingPartition) and record.position is not None):
            self.seeks += 1
            self._sought(record, before.claim(record.partition), after.claim(record.partition))
        if self._options.at_most_once:
            return
        for partition, claim in after.claims.items():
            if claim is not before.claim(partition) and (claim.position or 0) > self._lanes[partition].reached:
                reached = self._lanes[partition].reached
                self._fail(f"{partition} is at {claim.position} by {record}, finished is only what is below {reached}")

    def _sought(self, record: Seeking | FreeingPartition, before: Claim, after: Claim) -> None:
        lane, position = self._lanes[record.partition], after.position or 0
        skipped = position > lane.reached and (before.position is not None or lane.begun)
        if record.who.client_id != "admin" and (skipped or (lane.late and before.position is None and position > 0)):
            self._fail(f"{record.who} skips [{lane.reached}, {position}) of {record.partition}")
        lane.move(position, after.token)

    def lost(self) -> None:
        """Tokens and positions are lost: the group begins at `start`, and `latest` skips what was there."""
        self._state = GroupState()
        for lane in self._lanes.values():
            lane.base_token = 0
            if self._options.start_moves:
                lane.begun, lane.late = set(), False

    # after the calm

    def go_on(self) -> None:
        self._growing = True

    def mark(self) -> None:
        """Stop producing: what is there now must be finished soon."""
        self._marked = self._accepted
        self._growing = False

    def check_progress(self, partitions: Sequence[Partition], state: GroupState) -> None:
        for partition in partitions:
            lane, claim = self._lanes[partition], state.claim(partition)
            if max(claim.position or 0, lane.base) < lane.end:
                self._fail(f"{partition} is at {claim.position} after the calm, it has {lane.end} records")
            listed = {offset for start, end in claim.given_up for offset in range(start, end)}
            missing = set(range(lane.base, lane.end)) - lane.finished - listed
            if missing:
                self._fail(f"{partition}: {sorted(missing)} were never executed, and no ledger lists them")


@dataclass(frozen=True, slots=True)
class _Topics:
    """The topics of one process."""

    workload: ConsumerWorkload
    process: Process

    def partitions(self) -> tuple[Partition, ...]:
        return tuple(self.process.requested)

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        return self.workload.bounds(partitions)

    def close(self) -> None:
        """There is nothing to close."""


def _ignore(event: Event) -> None:
    """There is no listener."""
