"""A claim that is unconfirmed for a while and then is ours again: the documented loop goes on, and nothing is lost."""

from __future__ import annotations

from typing import cast

from confluent_kafka import Message

from penstock.claims.member.consumer.start_offsets import Delivery, DeliveryOptions, StartOffsetFinder
from penstock.claims.member.consumer.stream_supervisor import StreamSupervisor
from penstock.claims.member.consumer.streams import Work
from penstock.logs.log import Partition
from tests.support.group_in_memory import INTERVAL, Fetched, MemoryGroup
from tests.support.memory_log import MemoryLog

WEB = Partition("web", "id-of-web", 0)
RECORDS = 10


class Reading:
    """A member that holds one partition; its thread and its consumer are the test."""

    def __init__(self, delivery: Delivery = "at_least_once") -> None:
        self.group = MemoryGroup()
        log = MemoryLog({WEB: dict.fromkeys(range(RECORDS), b"")})
        self.agent = self.group.join("anna", [WEB])
        options = DeliveryOptions(delivery)
        starts = StartOffsetFinder(self.agent, log, lambda: log, options, lambda event: None)
        starts.know(frozenset([WEB]))
        self.supervisor = StreamSupervisor(self.agent, log, starts, options, lambda event: None)
        self.pass_seconds(INTERVAL)

    def pass_seconds(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.group.pass_seconds(1)
            self.supervisor._turn()

    def hand_out(self, count: int) -> list[Work]:
        stream = self.supervisor.streams[WEB]
        for offset in range(stream.fetch_from, min(RECORDS, stream.fetch_from + count)):
            stream.take(cast(Message, Fetched(offset)), offset + 1)
        return list(stream.hand_out(len(stream.queue)))

    def done(self, work: Work) -> bool:
        """As `Member.done`; False where that raises LostClaimError, which the documented loop catches."""
        stream = self.supervisor.stream_of(work)
        if stream is not None:
            stream.acks.done(work.offset, work.token)
        return stream is not None

    def lose_the_broker(self) -> None:
        """For longer than the lease, and no other process takes over."""
        self.agent.disconnected = True
        self.pass_seconds(3 * INTERVAL)
        assert self.supervisor.streams == {}
        self.agent.disconnected = False
        self.pass_seconds(INTERVAL)
        assert WEB in self.supervisor.streams


def test_a_record_from_before_the_interruption_is_lost_and_neither_unknown_nor_done_twice() -> None:
    member = Reading()
    before = member.hand_out(6)
    [token] = member.agent.held().values()
    member.lose_the_broker()
    assert list(member.agent.held().values()) == [token], "the claim was ours all the time"
    assert not any(member.done(work) for work in before), "none is done, and none raises anything else"


def test_unacknowledged_records_are_redelivered_and_acknowledged_separately() -> None:
    member = Reading()
    before = member.hand_out(6)
    member.lose_the_broker()
    again = member.hand_out(RECORDS)
    assert [work.offset for work in again] == list(range(RECORDS))
    for old, new in zip(before, again, strict=False):
        assert not member.done(old)
        assert member.done(new)
    for work in again[6:]:
        assert member.done(work)
    member.pass_seconds(INTERVAL)
    assert member.group.claim(WEB).position == RECORDS


def test_acknowledged_records_are_not_redelivered_without_a_heartbeat() -> None:
    member = Reading()
    for work in member.hand_out(4):
        member.agent.disconnected = True
        assert member.done(work)
    assert (member.group.claim(WEB).position or 0) == 0
    member.lose_the_broker()
    assert [work.offset for work in member.hand_out(RECORDS)] == list(range(4, RECORDS))


def test_a_record_made_by_hand_is_checked_against_the_present_stream() -> None:
    member = Reading()
    [work] = member.hand_out(1)
    assert work.stream > 0
    assert member.done(Work(WEB, work.offset, None, None, (), None, work.token))


def test_work_done_under_an_unconfirmed_claim_is_reported_at_release() -> None:
    """At most once it may be done then, as no other process will do it: it is not lost."""
    member = Reading("at_most_once")
    works = member.hand_out(4)
    member.agent.disconnected = True
    member.pass_seconds(2 * INTERVAL)
    assert member.agent.held() == {}
    assert all(member.done(work) for work in works)
    member.pass_seconds(1)
    member.agent.renounce(WEB, "a test")
    member.agent.disconnected = False
    member.group.pass_seconds(1)
    assert member.group.claim(WEB).token == 2, "it was released, and taken again"
    assert member.group.claim(WEB).position == 4
