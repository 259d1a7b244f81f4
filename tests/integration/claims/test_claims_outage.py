"""A broker stops and restarts under running members: none works without a lease, and all go on afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from penstock.claims import LostClaimError, Work
from penstock.claims.admin.log_reader import CoordinatedGroup, LogReader
from penstock.claims.member.session import UNREAD_INTERVALS_MAX
from penstock.claims.protocol.records import FreeingPartition, Seeking
from penstock.embedded.broker import Cluster
from penstock.errors import OutcomeUnknownError
from tests.support.claimants import HEARTBEAT_SECONDS, LATE_SECONDS, Crew, hits_up_to
from tests.support.kafka import Produce, Topics
from tests.support.members import Members
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that the tests of this file may kill."""
    with Cluster.start(tmp_path_factory.mktemp("fragile")) as running:
        yield running


@contextmanager
def paused(cluster: Cluster) -> Iterator[None]:
    """A broker that does not answer for a while, and forgets nothing."""
    pid = cluster.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def crew(fragile: Cluster) -> Iterator[Crew]:
    crew = Crew(fragile.bootstrap, hits_up_to(6))
    yield crew
    crew.close()


def test_p17_without_a_broker_nothing_is_held_and_afterwards_members_continue(crew: Crew, fragile: Cluster) -> None:
    anna = crew.join("anna")
    crew.join("bert")
    wait_until(lambda: crew.shared(3, 3))
    before = crew.held()
    [partition, token] = next(iter(anna.held().items()))

    fragile.kill()
    # A heartbeat that did not arrive renews nothing: the lease ends before another member may suspect us.
    assert wait_until(lambda: not anna.confirmed(partition, token)) < 2 * HEARTBEAT_SECONDS + LATE_SECONDS
    wait_until(lambda: crew.shared(0, 0), 2 * HEARTBEAT_SECONDS + LATE_SECONDS)
    with pytest.raises(OutcomeUnknownError):
        anna.send(Seeking, partition, if_token=token, position=1, reason="")
    # Longer than members wait before they replace their Kafka clients.
    time.sleep(UNREAD_INTERVALS_MAX * HEARTBEAT_SECONDS)
    assert crew.shared(0, 0)

    fragile.restart()
    wait_until(lambda: crew.shared(3, 3))
    assert crew.held() == before
    assert "claim lost" not in crew.names("anna") + crew.names("bert")
    # It stays so: a member that was disconnected does not declare the others gone.
    time.sleep(2 * HEARTBEAT_SECONDS)
    assert crew.held() == before


def test_the_documented_loop_survives_a_pause_of_the_broker_and_every_record_is_done(fragile: Cluster) -> None:
    """What was in progress is a lost claim, whatever the stream of the partition has become meanwhile."""
    name = Topics(fragile.bootstrap)()
    Produce(fragile.bootstrap)(name, [str(number) for number in range(30)])
    done: set[int] = set()

    def finish(works: list[Work]) -> None:
        for work in works:
            with suppress(LostClaimError):
                member.done(work)
                done.add(work.offset)

    with Members(fragile.bootstrap, name) as members:
        member = members.alone("anna", in_flight_max=10, heartbeat_seconds=2.0)
        before = member.poll(30.0, count_max=10)
        finish(before[:3])
        [token] = member.held().values()
        with paused(fragile):
            wait_until(lambda: member.held() == {})
            wait_until(lambda: member.positions() == {})
            finish(before[3:5])
        wait_until(lambda: len(member.positions()) == 1)
        assert list(member.held().values()) == [token], "the claim was ours all the time, and is read again"
        finish(before[5:])
        assert done == {0, 1, 2}

        def all_done() -> bool:
            finish(member.poll(0.2))
            return len(done) == 30

        wait_until(all_done)


def test_commands_arrive_once_a_paused_broker_resumes(crew: Crew, fragile: Cluster) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(6))
    [partition, token] = next(iter(anna.held().items()))
    with LogReader(CoordinatedGroup(crew.spec, crew.group, crew.topic)) as reader, ThreadPoolExecutor(1) as pool:
        reader.catch_up()
        freeing = reader.outbox.record_of(FreeingPartition, partition=partition, if_token=token + 1, reason="test")
        with paused(fragile):
            appending = pool.submit(reader.append, freeing)
            time.sleep(2 * HEARTBEAT_SECONDS)
        [refusal] = appending.result()
    assert refusal is not None


def test_a_member_that_starts_without_a_broker_joins_once_there_is_one(crew: Crew, fragile: Cluster) -> None:
    fragile.kill()
    anna = crew.join("anna")
    time.sleep(HEARTBEAT_SECONDS)
    assert anna.held() == {}
    fragile.restart()
    wait_until(lambda: crew.shared(6))


def test_a_member_that_ends_without_a_broker_ends_within_a_bound(crew: Crew, fragile: Cluster) -> None:
    crew.join("anna")
    wait_until(lambda: crew.shared(6))
    fragile.kill()
    began_at = time.monotonic()
    crew.leave("anna")
    assert time.monotonic() - began_at < 5 * HEARTBEAT_SECONDS + LATE_SECONDS
    fragile.restart()
