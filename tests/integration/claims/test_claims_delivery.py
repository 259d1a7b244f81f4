"""What `Member` promises about delivery, against a real broker: where reading begins, what is lost and what is not."""

from __future__ import annotations

import time

import pytest

from penstock.claims import LostClaimError, PositionOutOfRangeError
from penstock.claims.admin.commands import pause, release, resume
from tests.support.kafka import Produce, Topics
from tests.support.members import SECONDS_MAX, Members, places, taken, until, worked


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


# where reading begins


def test_42_p13_the_position_of_the_group_wins_over_start_also_when_it_is_zero(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, numbers(3))
    with Members(bootstrap, name) as members:
        first = members.alone("anna", start="earliest")
        taken(first, 3)
        first.close()
        assert members.claim().position == 0, "known, and nothing done"
        second = members.join("bert", start="latest")
        assert places(worked(second, 3)) == [(0, 0), (0, 1), (0, 2)]
        second.close()
        produce(name, ["new"])
        assert places(worked(members.join("cleo", start="earliest"), 1)) == [(0, 3)]


def test_p1_latest_is_fixed_when_the_group_begins_and_moves_no_more(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=2)
    produce(name, numbers(4), partition=0)
    with Members(bootstrap, name) as members:
        first = members.alone("anna", start="latest")
        until(lambda: sorted(first.positions().values()) == [0, 4], "both beginnings")
        assert first.poll(0.3) == []
        first.close()
        produce(name, ["new"], partition=0)
        produce(name, ["new"], partition=1)
        assert places(worked(members.join("bert", start="latest"), 2)) == [(0, 4), (1, 0)]


@pytest.mark.parametrize("position", [1, 99], ids=["deleted", "beyond the end"])
def test_p12_a_position_outside_the_log_stops_the_member_until_an_administrator_chooses_another(
    bootstrap: str, topic: Topics, produce: Produce, position: int
) -> None:
    name = topic()
    produce(name, numbers(10))
    with Members(bootstrap, name) as members:
        members.alone("anna").close()
        release(members.coordinated(), f"{name}/0", seek=position)
        topic.cut(name, 4)
        strict = members.join("bert")
        with pytest.raises(PositionOutOfRangeError) as outside:
            for _ in range(1000):
                assert strict.poll(0.1) == []
        assert (outside.value.position, outside.value.bounds.first, outside.value.bounds.end) == (position, 4, 10)
        strict.close()
        release(members.coordinated(), f"{name}/0", seek=4)
        again = members.join("cleo")
        assert places(worked(again, 6)) == [(0, offset) for offset in range(4, 10)]
        again.close()
        assert members.claim().position == 10, "also where that is lower than it was"


def test_p12_records_deleted_under_a_running_member_stop_it_once_all_others_are_done(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, numbers(10))
    with Members(bootstrap, name) as members:
        member = members.alone(in_flight_max=10)
        full = taken(member, 10)
        assert member.poll(0.3) == []
        produce(name, numbers(10))
        topic.cut(name, 15)
        for work in full:
            member.done(work)
        with pytest.raises(PositionOutOfRangeError) as outside:
            for _ in range(1000):
                assert member.poll(0.1) == []
        assert (outside.value.position, outside.value.bounds.first) == (10, 15)


def test_records_of_an_aborted_transaction_are_skipped_and_not_lag(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ["a", "b"])
    produce(name, numbers(20_000), transactional=True, aborted=True)
    with Members(bootstrap, name) as members:
        member = members.alone(in_flight_max=10)
        worked(member, 2)
        until(lambda: member.poll(0.1) == [] and list(member.positions().values()) == [20_003], "the end of the log")
        produce(name, numbers(10), transactional=True, aborted=True)
        [(number, offset)] = produce(name, ["c"])
        assert places(worked(member, 1)) == [(number, offset)]
        assert offset == 20_014
        until(lambda: list(member.lag().values()) == [0])
        member.close()
        assert members.claim().position == offset + 1


def test_the_tail_of_a_transaction_is_not_lag(bootstrap: str, topic: Topics, produce: Produce) -> None:
    """Its marker takes an offset and holds no record: upstream took such a partition for stuck."""
    name = topic()
    produce(name, ["a", "b"], transactional=True)
    with Members(bootstrap, name) as members:
        member = members.alone()
        worked(member, 2)
        until(lambda: member.poll(0.1) == [] and list(member.positions().values()) == [3], "the marker to be passed")
        until(lambda: list(member.lag().values()) == [0])


# claims that go while records are under way


def test_p15_p16_records_queued_under_a_lost_claim_are_not_delivered_and_delivered_ones_cannot_be_acknowledged(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, numbers(50))
    with Members(bootstrap, name) as members:
        member = members.alone(in_flight_max=100)
        first = member.poll(5.0, count_max=5)
        assert places(first) == [(0, offset) for offset in range(5)]
        [before] = member.held().values()
        release(members.coordinated(), f"{name}/0")
        until(lambda: before not in member.held().values(), "the loss")
        with pytest.raises(LostClaimError) as lost:
            member.done(first[0])
        assert (lost.value.offset, lost.value.token) == (0, before)
        again = worked(member, 50)
        assert {work.token for work in again} == {before + 2}, "the administrator's own token is between"
        assert places(again) == [(0, offset) for offset in range(50)]


def test_after_an_administrators_seek_a_running_group_processes_everything_from_there_again(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    """The removed upstream test of a rewind; its bug was that a later heartbeat undid it."""
    name = topic()
    produce(name, numbers(20))
    with Members(bootstrap, name) as members:
        member = members.alone()
        worked(member, 20)
        release(members.coordinated(), f"{name}/0", seek=5)
        assert places(worked(member, 15)) == [(0, offset) for offset in range(5, 20)]
        until(lambda: members.claim().position == 20)


def test_a_paused_group_gets_no_records_finishes_what_it_has_and_goes_on_from_there(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, numbers(20))
    with Members(bootstrap, name) as members:
        member = members.alone()
        under_way = member.poll(5.0, count_max=3)
        pause(members.coordinated())
        until(lambda: member.held() == {}, "the pause")
        assert member.poll(0.2) == []
        for work in under_way:
            member.done(work)
        until(lambda: not members.claim().held, "the release")
        assert members.claim().position == 3
        resume(members.coordinated())
        assert places(worked(member, 17)) == [(0, offset) for offset in range(3, 20)]


def test_a_record_that_is_never_acknowledged_blocks_only_its_partition_and_shows_its_age(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=2)
    produce(name, numbers(100), partition=0)
    produce(name, numbers(100), partition=1)
    with Members(bootstrap, name) as members:
        member = members.alone(in_flight_max=8)
        healthy = 0
        poisoned: list[int] = []
        deadline = time.monotonic() + SECONDS_MAX
        while healthy < 100 and time.monotonic() < deadline:
            for work in member.poll(0.2):
                if work.partition.number == 1:
                    member.done(work)
                    healthy += 1
                else:
                    poisoned.append(work.offset)
                    if work.offset:
                        member.done(work)
        assert healthy == 100
        assert poisoned == list(range(8)), "no more than the bound"
        assert {key.number: position for key, position in member.positions().items()} == {0: 0, 1: 100}


def test_28_a_member_keeps_its_claims_when_behind(bootstrap: str, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, numbers(10))
    with Members(bootstrap, name) as members:
        slow = members.alone("anna", in_flight_max=2)
        two = taken(slow, 2)
        free = members.join("bert")
        assert free.poll(4.0) == []
        assert list(slow.held().values()) == [1]
        slow.done(two[0])


# at most once


def test_at_most_once_what_was_handed_out_never_comes_again_and_what_was_not_done_is_listed(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, numbers(100))
    with Members(bootstrap, name) as members:
        first = members.alone("anna", delivery="at_most_once")
        first_works = first.poll(10.0, count_max=30)
        assert members.claim().claimed == first_works[-1].offset + 1, "in the log before the application sees a record"
        for work in first_works[:10]:
            first.done(work)
        first.close()
        second = members.join("bert", delivery="at_most_once")
        other_works = worked(second, 100 - len(first_works))
        assert places(first_works) + places(other_works) == [(0, offset) for offset in range(100)]
        [partition] = second.held()
        assert second.losses() == {partition: ((10, len(first_works)),)}


def test_at_most_once_nothing_is_listed_where_everything_was_done(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=3)
    produced = produce(name, numbers(300))
    with Members(bootstrap, name) as members:
        first = members.alone("anna", delivery="at_most_once", in_flight_max=50)
        result = worked(first, 300)
        assert places(result) == sorted(produced)
        first.close()
        produce(name, ["new"], partition=0)
        second = members.join("bert", delivery="at_most_once")
        worked(second, 1)
        assert second.losses() == {}


def test_at_most_once_a_loss_begins_where_the_log_did(bootstrap: str, topic: Topics, produce: Produce) -> None:
    """Records that were deleted before the group began do not count as lost."""
    name = topic()
    produce(name, numbers(10))
    topic.cut(name, 6)
    with Members(bootstrap, name) as members:
        first = members.alone("anna", delivery="at_most_once")
        assert places(taken(first, 4)) == [(0, offset) for offset in range(6, 10)]
        first.close()
        second = members.alone("bert", delivery="at_most_once")
        [partition] = second.held()
        assert second.losses() == {partition: ((6, 10),)}
        assert second.poll(0.5) == []


def test_at_most_once_a_claim_that_is_taken_away_loses_only_what_was_under_way(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, numbers(20))
    with Members(bootstrap, name) as members:
        member = members.alone(delivery="at_most_once")
        under_way = member.poll(10.0, count_max=5)
        release(members.coordinated(), f"{name}/0")
        other_works = worked(member, 20 - len(under_way))
        assert places(under_way) + places(other_works) == [(0, offset) for offset in range(20)]
        with pytest.raises(LostClaimError):
            member.done(under_way[0])
        [partition] = member.held()
        assert member.losses() == {partition: ((0, len(under_way)),)}
