"""Where a claimed partition is read from, in virtual time: nothing is lost, and nothing is believed at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from penstock.claims.member.consumer.start_offsets import (
    LASTING_INTERVALS,
    REPEATS_MIN,
    Delivery,
    DeliveryOptions,
    PositionOutOfRangeError,
    StartOffsetFinder,
)
from penstock.claims.protocol.records import Seeking
from penstock.errors import OutcomeUnknownError
from penstock.events import Event, ReadingInterrupted
from penstock.logs.log import Bounds, Partition
from tests.support.group_in_memory import INTERVAL, MemoryAgent, MemoryGroup
from tests.support.memory_log import MemoryLog

ZERO, ONE = Partition("web", "id-of-web", 0), Partition("web", "id-of-web", 1)
LATEST = DeliveryOptions(start="latest")
RESTARTED = Bounds(0, 3)
"""What a broker that has just restarted reports of a log with ten records."""


@dataclass(slots=True)
class Broker:
    """A log whose first answers after a restart are wrong; it counts the clients that asked."""

    log: MemoryLog
    wrong: dict[Partition, Bounds] = field(default_factory=dict)
    clients: int = 0

    def client(self) -> Broker:
        self.clients += 1
        return self

    def partitions(self) -> tuple[Partition, ...]:
        return self.log.partitions()

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        requested = tuple(partitions)
        return {**self.log.bounds(requested), **{item: self.wrong[item] for item in requested if item in self.wrong}}

    def close(self) -> None:
        """There is nothing to let go of."""


class Group:
    """Members over one log; each finds its starts when the test calls it."""

    def __init__(self, *partitions: Partition, records: int = 0) -> None:
        self.log = MemoryLog({partition: {} for partition in partitions})
        for item in partitions:
            self.log.append(item, *[b""] * records)
        self.broker = Broker(self.log)
        self.coordination = MemoryGroup()
        self.events: list[Event] = []

    def join(self, client_id: str, options: DeliveryOptions) -> tuple[MemoryAgent, StartOffsetFinder]:
        agent = self.coordination.join(client_id, self.log.partitions())
        starts = StartOffsetFinder(agent, self.broker.client(), self.broker.client, options, self.events.append)
        starts.know(frozenset(self.log.partitions()))
        starts.see_begun()
        return agent, starts

    def alone(self, options: DeliveryOptions, position: int) -> tuple[MemoryAgent, StartOffsetFinder]:
        """A member that holds partition 0, where the group has a position."""
        agent, starts = self.join("anna", options)
        self.coordination.pass_seconds(INTERVAL)
        [token] = agent.held().values()
        assert agent.send(Seeking, ZERO, if_token=token, position=position, reason="a test").refusal is None
        return agent, starts

    def wait_for_start(
        self, agent: MemoryAgent, starts: StartOffsetFinder, intervals: float = 10
    ) -> dict[Partition, int]:
        """Ask again and again, as the supervisor of a member does."""
        end = self.coordination.now + intervals * INTERVAL
        while self.coordination.now < end:
            result: dict[Partition, int] = {}
            with suppress(OutcomeUnknownError):
                result = starts.find(agent.held())
            if result:
                return result
            self.coordination.pass_seconds(1)
        return {}


# where a group begins


def test_p1_a_partition_that_came_with_a_member_is_read_from_its_beginning_where_the_group_has_a_position() -> None:
    group = Group(ZERO, records=5)
    anna, annas = group.join("anna", LATEST)
    group.coordination.pass_seconds(INTERVAL)
    assert annas.find(anna.held()) == {ZERO: 5}
    group.log.append(ONE, b"new", b"new")
    bert, berts = group.join("bert", LATEST)
    group.coordination.pass_seconds(3 * INTERVAL)
    assert set(bert.held()) == {ONE}
    assert berts.find(bert.held()) == {ONE: 0}


def test_p1_latest_is_fixed_for_every_partition_of_the_topic_when_its_group_begins() -> None:
    """Also for those that no member holds yet: what arrives there from then on is delivered."""
    group = Group(ZERO, ONE, records=5)
    anna, annas = group.join("anna", LATEST)
    anna.request([ZERO], {})
    group.coordination.pass_seconds(INTERVAL)
    assert annas.find(anna.held()) == {ZERO: 5}
    group.log.append(ONE, b"new")
    bert, berts = group.join("bert", LATEST)
    group.coordination.pass_seconds(3 * INTERVAL)
    assert berts.find({ONE: bert.held()[ONE]}) == {ONE: 5}


def test_p1_members_that_start_together_use_the_configured_start() -> None:
    group = Group(ZERO, ONE, records=5)
    anna, annas = group.join("anna", LATEST)
    bert, berts = group.join("bert", LATEST)
    group.coordination.pass_seconds(3 * INTERVAL)
    assert len(anna.held()) == len(bert.held()) == 1
    assert {**annas.find(anna.held()), **berts.find(bert.held())} == {ZERO: 5, ONE: 5}


# positions that the log does not have


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_p12_one_wrong_answer_of_a_broker_is_ignored(delivery: Delivery) -> None:
    group = Group(ZERO, records=10)
    anna, starts = group.alone(DeliveryOptions(delivery), position=10)
    group.broker.wrong[ZERO] = RESTARTED
    assert starts.find(anna.held()) == {}
    assert starts.find(anna.held()) == {}, "it is not asked in a hurry"
    group.coordination.pass_seconds(INTERVAL)
    assert starts.find(anna.held()) == {}, "twice the same is not enough either"
    group.broker.wrong.clear()
    group.coordination.pass_seconds(INTERVAL)
    assert starts.find(anna.held()) == {ZERO: 10}
    assert group.coordination.claim(ZERO).given_up == ()
    assert group.broker.clients > 1, "another client asked"
    assert [type(item) for item in group.events] == [ReadingInterrupted]


def test_p12_a_lasting_answer_of_the_log_stops_the_member() -> None:
    group = Group(ZERO, records=10)
    anna, starts = group.alone(DeliveryOptions(), position=99)
    began_at = group.coordination.now
    with pytest.raises(PositionOutOfRangeError) as outside:
        group.wait_for_start(anna, starts)
    assert (outside.value.position, outside.value.bounds) == (99, Bounds(0, 10))
    assert group.coordination.now - began_at >= LASTING_INTERVALS * INTERVAL
    assert group.broker.clients >= REPEATS_MIN, "each answer but the first was given to a client of its own"


def test_p12_a_later_wrong_answer_starts_a_new_waiting_time() -> None:
    group = Group(ZERO, records=10)
    anna, starts = group.alone(DeliveryOptions(), position=10)
    for _ in range(3):
        group.broker.wrong[ZERO] = RESTARTED
        with suppress(PositionOutOfRangeError):
            group.wait_for_start(anna, starts, LASTING_INTERVALS - 0.5)
        group.broker.wrong.clear()
        group.coordination.pass_seconds(INTERVAL)
        assert starts.find(anna.held()) == {ZERO: 10}
