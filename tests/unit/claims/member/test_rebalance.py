"""Who claims and releases what: fair shares, pauses, whole topics, and members that cannot keep up."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.claims.member.holdings import ABOVE_SHARE, NOT_WANTED
from penstock.claims.member.membership import Phase
from penstock.claims.protocol.records import (
    BalancingGroup,
    ClaimingPartition,
    FreeingPartition,
    Heartbeat,
    MemberId,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    Seeking,
)
from penstock.events import ClaimLost, ClaimReleased, ClaimWon, GroupJoined
from penstock.logs.log import Partition
from tests.support.coordination import GROUP, INTERVAL, web
from tests.unit.claims.member.room import Attendant, Room

ADMIN = MemberId("admin", "x")


def pause(room: Room, for_seconds: float | None = None) -> None:
    room.say(ReleaseGroup(who=ADMIN, seq=1, pause_id="p", for_seconds=for_seconds, reason="upgrade"))


def resume(room: Room) -> None:
    room.say(ResumingGroup(who=ADMIN, seq=2, pause_id="p"))


# fair shares


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 12, 15])
def test_members_share_fairly_in_any_number(count: int) -> None:
    room = Room(partitions=12)
    for number in range(count):
        room.enter(f"m{number}")
    room.run(5)
    held = Counter(owner for owner in room.owners() if owner is not None)
    assert sum(held.values()) == 12
    assert max(held.values()) - min(12 // count, *held.values()) <= 1
    assert len(held) == min(count, 12)


def test_a_new_member_gets_its_share_within_two_intervals_while_the_others_continue() -> None:
    room = Room(partitions=12)
    first = [room.enter("anna"), room.enter("bert")]
    room.run(4)
    held = {item.participant.who.client_id: set(room.held(item)) for item in first}
    cleo = room.enter("cleo")
    room.run(2)
    assert len(room.held(cleo)) == 4
    for each in first:
        assert len(room.held(each)) == 4
        assert set(room.held(each)) < held[each.participant.who.client_id], "what it keeps, it kept"
    assert len(room.words(ReleasingPartition)) == 2, "one record of each releases what is above its share"


def test_when_a_member_dies_the_others_have_its_share_within_three_intervals() -> None:
    room = Room(partitions=12)
    members = [room.enter(name) for name in ("anna", "bert", "cleo")]
    room.run(5)
    members[2].gone = True
    room.run(3)
    assert Counter(room.owners()) == {"anna": 6, "bert": 6}


def test_nothing_moves_when_all_is_fair() -> None:
    room = Room(partitions=7)
    for name in ("anna", "bert", "cleo"):
        room.enter(name)
    room.run(5)
    before, claims = room.owners(), len(room.words(ClaimingPartition))
    room.run(20)
    assert room.owners() == before
    assert len(room.words(ClaimingPartition)) == claims


def test_unrequested_partitions_are_released_and_new_ones_claimed() -> None:
    room = Room(partitions=2)
    anna = room.enter("anna")
    room.run(2)
    anna.participant.want([web(1), web(2)], {})
    room.run(2)
    assert room.held(anna) == [web(1), web(2)]
    assert [word.reason for word in room.words(ReleasingPartition)] == [NOT_WANTED]


def test_m1_a_claim_carries_the_token_of_its_table() -> None:
    room = Room(partitions=2)
    anna = room.enter("anna")
    anna.participant.want(room.partitions, {web(0): 41})
    room.run(2)
    assert anna.participant.held(room.now) == {web(0): 42, web(1): 1}


def test_many_members_that_start_together_race_for_nothing() -> None:
    """One target after the last join, one record of each that claims all its share, and nothing is given back."""
    room = Room(partitions=200)
    for number in range(20):
        room.enter(f"m{number:02}")
    room.run(1)
    assert set(Counter(room.owners()).values()) == {10}
    assert len(room.words(BalancingGroup)) == 1
    assert len(room.words(ClaimingPartition)) == 20
    assert room.words(ReleasingPartition) == []


def test_a_member_that_does_not_take_what_it_is_given_is_not_waited_for() -> None:
    room = Room(partitions=8)
    room.enter("anna")
    bert = room.enter("bert")
    room.run(0.05)
    bert.mute = True
    room.run(4)
    assert room.owners() == ["anna"] * 8


def test_members_with_different_lists_own_everything_between_them() -> None:
    topics = [Partition(name, f"id-{name}", number) for name in ("a", "b") for number in range(10)]
    room = Room(topics)
    anna = room.enter("anna", wanted=topics[:10])
    room.enter("bert")
    room.enter("cleo", wanted=topics[10:])
    room.run(3)
    assert None not in room.owners()
    assert sorted(Counter(room.owners()).values()) == [5, 7, 8], "shared per topic, those with less to do take more"
    assert {item.topic for item in room.held(anna)} == {"a"}


def test_work_in_progress_is_finished_before_a_partition_is_released() -> None:
    room = Room(partitions=2)
    anna = room.enter("anna")
    room.run(2)
    anna.participant.holdings.using(room.partitions)
    room.enter("bert")
    room.run(0.9)
    assert {word.reason for word in room.words(ReleasingPartition)} <= {ABOVE_SHARE}
    assert room.owners() == ["anna", "anna"]
    assert len(room.held(anna)) == 1, "no new work begins on what is on its way out"
    anna.participant.holdings.using([])
    room.run(1)
    assert Counter(room.owners()) == {"anna": 1, "bert": 1}


def test_work_that_does_not_end_holds_a_partition_for_one_interval_only() -> None:
    room = Room(partitions=2)
    anna = room.enter("anna")
    room.run(2)
    anna.participant.holdings.using(room.partitions)
    room.enter("bert")
    room.run(2.5)
    assert Counter(room.owners()) == {"anna": 1, "bert": 1}


# pauses (RULES M4)


def test_m4_in_a_pause_all_members_release_and_none_claims() -> None:
    room = Room()
    anna, bert = room.enter("anna"), room.enter("bert")
    room.run(4)
    pause(room)
    room.hear(anna)
    assert room.held(anna) == [], "work stops at the word"
    room.run(1)
    assert room.owners() == [None] * 4
    claims = len(room.words(ClaimingPartition))
    room.run(20)
    assert len(room.words(ClaimingPartition)) == claims
    assert anna.participant.view.live_members(room.now) and bert.participant.phase is Phase.MEMBER


def test_m4_a_paused_group_goes_on_after_the_resume() -> None:
    room = Room()
    room.enter("anna"), room.enter("bert")
    room.run(4)
    pause(room)
    room.run(5)
    resume(room)
    room.run(2)
    assert Counter(room.owners()) == {"anna": 2, "bert": 2}


def test_m4_after_its_time_any_member_ends_a_pause() -> None:
    room = Room()
    room.enter("anna"), room.enter("bert")
    room.run(4)
    pause(room, for_seconds=3 * INTERVAL)
    room.run(2.8)
    assert room.owners() == [None] * 4
    assert room.words(ResumingGroup) == []
    room.run(2)
    assert Counter(room.owners()) == {"anna": 2, "bert": 2}
    assert room.attendants[0].participant.view.state.pauses == {}


def test_m4_a_process_that_comes_during_a_pause_waits_for_its_end() -> None:
    room = Room()
    pause(room)
    anna = room.enter("anna")
    room.run(5)
    assert anna.participant.phase is Phase.MEMBER
    assert room.owners() == [None] * 4
    resume(room)
    room.run(2)
    assert len(room.held(anna)) == 4


@pytest.mark.parametrize("skew_seconds", [3600.0, -3600.0])
def test_m4_another_leaders_clock_does_not_end_a_pause_early_or_late(skew_seconds: float) -> None:
    """The time is that of the broker that leads, and clocks of brokers may differ by hours."""
    room = Room()
    room.enter("anna"), room.enter("bert")
    room.run(4)
    pause(room, for_seconds=3 * INTERVAL)
    room.run(1)
    room.epoch, room.broker_skew = 2, skew_seconds
    room.run(1.5)
    assert room.words(ResumingGroup) == []
    room.run(2)
    assert len(room.words(ResumingGroup)) >= 1


@pytest.mark.parametrize("skew_seconds", [0.0, -3600.0])
def test_m4_a_brokers_clock_that_is_set_back_does_not_prolong_a_pause(skew_seconds: float) -> None:
    room = Room()
    room.enter("anna"), room.enter("bert")
    room.run(4)
    pause(room, for_seconds=3 * INTERVAL)
    room.run(1)
    room.broker_skew = skew_seconds
    room.run(1.5)
    assert room.words(ResumingGroup) == []
    room.run(2)
    assert len(room.words(ResumingGroup)) >= 1


def test_m4_a_pause_that_ended_without_members_is_over() -> None:
    """A new process reads the pause, and later records of the log, at once: what counts is when they were appended."""
    room = Room()
    anna = room.enter("anna")
    room.run(3)
    pause(room, for_seconds=3 * INTERVAL)
    room.run(1)
    room.leave(anna)
    room.now += 10 * INTERVAL
    room.enter("bert")
    room.run(1)
    assert len(room.words(ResumingGroup)) == 1


# administrators


def test_a_partition_freed_by_an_administrator_goes_to_another_member_first() -> None:
    room = Room(partitions=2)
    anna, bert = room.enter("anna"), room.enter("bert")
    room.run(4)
    [mine] = room.held(anna)
    room.say(FreeingPartition(who=ADMIN, seq=1, partition=mine, if_token=room.claim(mine).token))
    room.run(1)
    assert mine in room.held(bert)


# claims that come late (ghosts)


def claim_on_its_way(room: Room) -> tuple[Attendant, ClaimingPartition]:
    """A member whose claim was reported as failed, and is still on its way."""
    anna = room.enter("anna")
    while not room.words(BalancingGroup):
        room.run(0.05)
    anna.mute = True
    room.run(0.1)
    claim = next(item for item in anna.unheard if isinstance(item, ClaimingPartition))
    for record in anna.unheard:
        anna.participant.outbox.failed(record)
    return anna, claim


def test_a_claim_that_arrives_after_it_was_given_up_is_used() -> None:
    room = Room(partitions=1)
    anna, claim = claim_on_its_way(room)
    room.append([claim])
    anna.mute = False
    room.run(1)
    assert room.held(anna) == room.partitions
    assert room.claim(web(0)).token == 1


def test_a_late_claim_that_is_no_longer_needed_is_released() -> None:
    room = Room(partitions=1)
    anna, claim = claim_on_its_way(room)
    anna.participant.want([], {})
    anna.mute = False
    room.append([claim])
    room.run(1)
    assert room.owners() == [None]
    assert room.claim(web(0)).token == 1


def test_p11_a_claim_sent_twice_without_acknowledgement_is_one_claim() -> None:
    room = Room(partitions=1)
    anna, claim = claim_on_its_way(room)
    anna.mute = False
    room.turn(anna)
    room.append([claim])
    room.run(2)
    assert room.held(anna) == [web(0)]
    assert room.claim(web(0)).token == 1


# what a member tells


def test_a_member_reports_claims_won_lost_and_released() -> None:
    room = Room(partitions=2)
    anna = room.enter("anna")
    room.run(2)
    assert anna.participant.events == [
        GroupJoined(GROUP, "anna"),
        ClaimWon(str(web(0)), 1),
        ClaimWon(str(web(1)), 1),
    ]
    room.say(FreeingPartition(who=ADMIN, seq=1, partition=web(0), if_token=1))
    room.run(0.1)
    assert anna.participant.events[-1] == ClaimLost(str(web(0)), 1)
    anna.participant.holdings.release_later([web(1)], "the table has a newer token", room.now)
    room.run(0.2)
    assert ClaimReleased(str(web(1)), "the table has a newer token") in anna.participant.events


def test_heartbeats_go_out_twice_an_interval_and_carry_the_position() -> None:
    room = Room(partitions=1)
    anna = room.enter("anna")
    room.run(2)
    anna.participant.holdings.progress(web(0), 77, lag=3)
    before = len(room.words(Heartbeat))
    room.run(4)
    assert len(room.words(Heartbeat)) - before == 8
    assert room.claim(web(0)).position == 77
    assert room.claim(web(0)).lag == 3


def test_a_heartbeat_holds_only_changes() -> None:
    room = Room(partitions=3)
    anna = room.enter("anna")
    room.run(2)
    anna.participant.holdings.progress(web(1), 5)
    before = len(room.words(Heartbeat))
    room.run(6)
    said = [len(word.beats) for word in room.words(Heartbeat)[before:]]
    assert said.count(1) == 1
    assert sum(said) == 1


def test_an_owners_seek_back_is_not_undone_by_its_next_heartbeat() -> None:
    room = Room(partitions=1)
    anna = room.enter("anna")
    room.run(2)
    anna.participant.holdings.progress(web(0), 500)
    room.run(1)
    seek = anna.participant.record_about(Seeking, web(0), if_token=1, position=300)
    room.append(anna.participant.outbox.sending([seek], room.now))
    room.run(2)
    assert room.claim(web(0)).position == 300
    anna.participant.holdings.progress(web(0), 310)
    room.run(1)
    assert room.claim(web(0)).position == 310
