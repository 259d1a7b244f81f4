"""Consumers that die or freeze in the middle of a batch: what their successors see again, and what they never see."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.claims import LostClaimError, Member
from penstock.embedded.broker import Cluster
from tests.support.forked import Forked, has_stopped
from tests.support.kafka import Produce, Topics
from tests.support.members import SECONDS_MAX, Members, Place, places, until

RECORDS = 400


@contextmanager
def consumer(members: Members, client_id: str, delivery: str, path: Path, name: str = "") -> Iterator[Forked]:
    """A process that consumes until it is killed; with `name` it sends that signal to itself."""
    arguments = [members.bootstrap, members.group, members.topics[0], client_id, delivery, str(path), name]
    process = Forked("tests.fault.consumer", arguments)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def lines(path: Path, kind: str) -> list[Place]:
    """What a consumer wrote."""
    written = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(number), int(offset)) for line_kind, number, offset in written if line_kind == kind]


def finished(member: Member, ends: dict[int, int]) -> list[Place]:
    """Work until the position of every partition is at its end; returns what was read on the way."""
    delivered: list[Place] = []
    deadline = time.monotonic() + SECONDS_MAX
    while {key.number: position for key, position in member.positions().items()} != ends:
        assert time.monotonic() < deadline, f"positions {member.positions()}, expected {ends}"
        for work in member.poll(0.2):
            delivered += places([work])
            member.done(work)
    return delivered


def ends_of(produced: list[Place]) -> dict[int, int]:
    return {number: 1 + max(offset for partition, offset in produced if partition == number) for number, _ in produced}


def test_20_33_at_least_once_a_killed_consumer_loses_nothing_and_repeats_only_what_followed_its_last_heartbeat(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=2)
    produced = produce(name, [str(number) for number in range(RECORDS)])
    with Members(bootstrap, name) as members:
        with consumer(members, "anna", "at_least_once", tmp_path / "seen", "KILL") as process:
            assert process.wait(180) == -signal.SIGKILL
        claims = [members.claim(number) for number in range(2)]
        assert all(claim.held for claim in claims), "no record changed it: the dead member is still the owner"
        before = lines(tmp_path / "seen", "saw")
        successor = members.join("bert")
        until(lambda: len(successor.held()) == 2, "the take-over")
        after = finished(successor, ends_of(produced))
    assert set(before) | set(after) == set(produced)
    assert set(Counter(after).values()) == {1}
    repeated = set(before) & set(after)
    assert repeated, "the record under way at least"
    assert all(offset >= (claims[number].position or 0) for number, offset in repeated)


def test_at_most_once_a_killed_consumer_repeats_nothing_and_every_missing_record_is_in_the_loss_ledger(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=2)
    produced = produce(name, [str(number) for number in range(RECORDS)])
    with Members(bootstrap, name) as members:
        with consumer(members, "anna", "at_most_once", tmp_path / "seen", "KILL") as process:
            assert process.wait(180) == -signal.SIGKILL
        before = lines(tmp_path / "seen", "saw")
        successor = members.join("bert", delivery="at_most_once")
        after = finished(successor, ends_of(produced))
        losses = successor.losses()
    assert set(Counter(before + after).values()) == {1}, "no record twice"
    listed = {
        (partition.number, offset)
        for partition, ranges in losses.items()
        for start, end in ranges
        for offset in range(start, end)
    }
    missing = set(produced) - set(before) - set(after)
    assert missing, "it died in the middle of a batch"
    assert missing <= listed
    assert not listed & set(after), "what the successor saw is not lost"


def test_at_least_once_a_frozen_consumer_that_wakes_behind_its_lease_cannot_report_its_work_as_done(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produced = produce(name, [str(number) for number in range(RECORDS)])
    with (
        Members(bootstrap, name) as members,
        consumer(members, "anna", "at_least_once", tmp_path / "seen", "STOP") as process,
    ):
        until(lambda: has_stopped(process), "the stop", 60)
        before = lines(tmp_path / "seen", "saw")
        successor = members.join("bert")
        after = finished(successor, ends_of(produced))
        process.send_signal(signal.SIGCONT)
        until(lambda: before[-1] in lines(tmp_path / "seen", "refused"), "the refusal")
        until(lambda: members.claim().position == RECORDS, "the successor's last heartbeat")
    assert set(before) | set(after) == set(produced)


def test_48_a_consumer_that_is_killed_and_started_again_under_its_name_takes_its_partitions_back(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produced = produce(name, [str(number) for number in range(RECORDS)])
    with Members(bootstrap, name) as members:
        with consumer(members, "anna", "at_least_once", tmp_path / "seen", "KILL") as process:
            assert process.wait(180) == -signal.SIGKILL
        token = members.claim().token
        again = members.join("anna")
        after = finished(again, ends_of(produced))
        assert list(again.held().values()) == [token + 1]
    assert set(lines(tmp_path / "seen", "saw")) | set(after) == set(produced)


def test_a_broker_that_is_away_for_longer_than_a_lease_costs_time_and_no_records(tmp_path: Path) -> None:
    """No member raises: each loses its claims and joins again, and the records that were refused come again."""
    with Cluster.start(tmp_path / "kafka") as cluster:
        topic, produce = Topics(cluster.bootstrap), Produce(cluster.bootstrap)
        name = topic(partitions=2)
        produced = produce(name, [str(number) for number in range(100)], partition=0)
        produced += produce(name, [str(number) for number in range(100)], partition=1)
        with Members(cluster.bootstrap, name) as members:
            both = [members.join("anna", in_flight_max=50), members.join("bert", in_flight_max=50)]
            until(lambda: [len(item.held()) for item in both] == [1, 1], "fair shares")
            under_way = [(member, work) for member in both for work in member.poll(10.0)]
            assert under_way
            cluster.kill()
            until(lambda: not any(member.held() for member in both), "the end of the leases")
            assert [member.poll(0.2) for member in both] == [[], []]
            # An item that is never reported as done stays in flight if its claim was ours all the time.
            for member, work in under_way:
                with pytest.raises(LostClaimError):
                    member.done(work)
            cluster.restart()
            after: set[Place] = set()
            deadline = time.monotonic() + SECONDS_MAX
            while after != set(produced):
                assert time.monotonic() < deadline, f"the members did not go on: {len(after)} of {len(produced)}"
                for member in both:
                    for work in member.poll(0.2):
                        member.done(work)
                        after.update(places([work]))
