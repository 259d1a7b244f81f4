"""Who claims and releases what: fair shares, pauses, whole topics, and members that cannot keep up."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.claims.member.holdings import ABOVE_SHARE, NOT_REQUESTED
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
from tests.unit.claims.member.virtual_group import VirtualGroup, VirtualProcess

ADMIN = MemberId("admin", "x")


def pause(group: VirtualGroup, for_seconds: float | None = None) -> None:
    group.append_record(ReleaseGroup(who=ADMIN, seq=1, pause_id="p", for_seconds=for_seconds, reason="upgrade"))


def resume(group: VirtualGroup) -> None:
    group.append_record(ResumingGroup(who=ADMIN, seq=2, pause_id="p"))


# fair shares


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 12, 15])
def test_members_share_fairly_in_any_number(count: int) -> None:
    group = VirtualGroup(partitions=12)
    for number in range(count):
        group.start(f"m{number}")
    group.run(5)
    held = Counter(owner for owner in group.owners() if owner is not None)
    assert sum(held.values()) == 12
    assert max(held.values()) - min(12 // count, *held.values()) <= 1
    assert len(held) == min(count, 12)


def test_a_new_member_gets_its_share_within_two_intervals_while_the_others_continue() -> None:
    group = VirtualGroup(partitions=12)
    first = [group.start("anna"), group.start("bert")]
    group.run(4)
    held = {item.participant.who.client_id: set(group.held(item)) for item in first}
    cleo = group.start("cleo")
    group.run(2)
    assert len(group.held(cleo)) == 4
    for process in first:
        assert len(group.held(process)) == 4
        assert set(group.held(process)) < held[process.participant.who.client_id], "what it keeps, it kept"
    assert len(group.records_of(ReleasingPartition)) == 2, "one record of each releases what is above its share"


def test_when_a_member_dies_the_others_have_its_share_within_three_intervals() -> None:
    group = VirtualGroup(partitions=12)
    members = [group.start(name) for name in ("anna", "bert", "cleo")]
    group.run(5)
    members[2].gone = True
    group.run(3)
    assert Counter(group.owners()) == {"anna": 6, "bert": 6}


def test_no_partition_moves_while_shares_are_balanced() -> None:
    group = VirtualGroup(partitions=7)
    for name in ("anna", "bert", "cleo"):
        group.start(name)
    group.run(5)
    before, claims = group.owners(), len(group.records_of(ClaimingPartition))
    group.run(20)
    assert group.owners() == before
    assert len(group.records_of(ClaimingPartition)) == claims


def test_unrequested_partitions_are_released_and_new_ones_claimed() -> None:
    group = VirtualGroup(partitions=2)
    anna = group.start("anna")
    group.run(2)
    anna.participant.request([web(1), web(2)], {})
    group.run(2)
    assert group.held(anna) == [web(1), web(2)]
    assert [record.reason for record in group.records_of(ReleasingPartition)] == [NOT_REQUESTED]


def test_m1_a_claim_carries_the_token_of_its_table() -> None:
    group = VirtualGroup(partitions=2)
    anna = group.start("anna")
    anna.participant.request(group.partitions, {web(0): 41})
    group.run(2)
    assert anna.participant.held(group.now) == {web(0): 42, web(1): 1}


def test_members_that_start_together_do_not_race_for_partitions() -> None:
    """One target after the last join, one record of each that claims all its share, and nothing is given back."""
    group = VirtualGroup(partitions=200)
    for number in range(20):
        group.start(f"m{number:02}")
    group.run(1)
    assert set(Counter(group.owners()).values()) == {10}
    assert len(group.records_of(BalancingGroup)) == 1
    assert len(group.records_of(ClaimingPartition)) == 20
    assert group.records_of(ReleasingPartition) == []


def test_partitions_of_a_member_that_never_claims_them_go_to_another() -> None:
    group = VirtualGroup(partitions=8)
    group.start("anna")
    bert = group.start("bert")
    group.run(0.05)
    bert.cut_off = True
    group.run(4)
    assert group.owners() == ["anna"] * 8


def test_members_with_different_lists_own_everything_between_them() -> None:
    topics = [Partition(name, f"id-{name}", number) for name in ("a", "b") for number in range(10)]
    group = VirtualGroup(topics)
    anna = group.start("anna", requested=topics[:10])
    group.start("bert")
    group.start("cleo", requested=topics[10:])
    group.run(3)
    assert None not in group.owners()
    assert sorted(Counter(group.owners()).values()) == [5, 7, 8], "shared per topic, those with less to do take more"
    assert {item.topic for item in group.held(anna)} == {"a"}


def test_work_in_progress_is_finished_before_a_partition_is_released() -> None:
    group = VirtualGroup(partitions=2)
    anna = group.start("anna")
    group.run(2)
    anna.participant.holdings.using(group.partitions)
    group.start("bert")
    group.run(0.9)
    assert {record.reason for record in group.records_of(ReleasingPartition)} <= {ABOVE_SHARE}
    assert group.owners() == ["anna", "anna"]
    assert len(group.held(anna)) == 1, "no new work begins on what is on its way out"
    anna.participant.holdings.using([])
    group.run(1)
    assert Counter(group.owners()) == {"anna": 1, "bert": 1}


def test_work_that_does_not_end_holds_a_partition_for_one_interval_only() -> None:
    group = VirtualGroup(partitions=2)
    anna = group.start("anna")
    group.run(2)
    anna.participant.holdings.using(group.partitions)
    group.start("bert")
    group.run(2.5)
    assert Counter(group.owners()) == {"anna": 1, "bert": 1}


# pauses (RULES M4)


def test_m4_in_a_pause_all_members_release_and_none_claims() -> None:
    group = VirtualGroup()
    anna, bert = group.start("anna"), group.start("bert")
    group.run(4)
    pause(group)
    group.read_log(anna)
    assert group.held(anna) == [], "work stops when the pause is read"
    group.run(1)
    assert group.owners() == [None] * 4
    claims = len(group.records_of(ClaimingPartition))
    group.run(20)
    assert len(group.records_of(ClaimingPartition)) == claims
    assert anna.participant.view.live_members(group.now) and bert.participant.phase is Phase.MEMBER


def test_m4_a_paused_group_goes_on_after_the_resume() -> None:
    group = VirtualGroup()
    group.start("anna"), group.start("bert")
    group.run(4)
    pause(group)
    group.run(5)
    resume(group)
    group.run(2)
    assert Counter(group.owners()) == {"anna": 2, "bert": 2}


def test_m4_after_its_time_any_member_ends_a_pause() -> None:
    group = VirtualGroup()
    group.start("anna"), group.start("bert")
    group.run(4)
    pause(group, for_seconds=3 * INTERVAL)
    group.run(2.8)
    assert group.owners() == [None] * 4
    assert group.records_of(ResumingGroup) == []
    group.run(2)
    assert Counter(group.owners()) == {"anna": 2, "bert": 2}
    assert group.processes[0].participant.view.state.pauses == {}


def test_m4_a_process_that_comes_during_a_pause_waits_for_its_end() -> None:
    group = VirtualGroup()
    pause(group)
    anna = group.start("anna")
    group.run(5)
    assert anna.participant.phase is Phase.MEMBER
    assert group.owners() == [None] * 4
    resume(group)
    group.run(2)
    assert len(group.held(anna)) == 4


@pytest.mark.parametrize("skew_seconds", [3600.0, -3600.0])
def test_m4_another_leaders_clock_does_not_end_a_pause_early_or_late(skew_seconds: float) -> None:
    """The time is that of the broker that leads, and clocks of brokers may differ by hours."""
    group = VirtualGroup()
    group.start("anna"), group.start("bert")
    group.run(4)
    pause(group, for_seconds=3 * INTERVAL)
    group.run(1)
    group.epoch, group.broker_skew = 2, skew_seconds
    group.run(1.5)
    assert group.records_of(ResumingGroup) == []
    group.run(2)
    assert len(group.records_of(ResumingGroup)) >= 1


@pytest.mark.parametrize("skew_seconds", [0.0, -3600.0])
def test_m4_a_brokers_clock_that_is_set_back_does_not_prolong_a_pause(skew_seconds: float) -> None:
    group = VirtualGroup()
    group.start("anna"), group.start("bert")
    group.run(4)
    pause(group, for_seconds=3 * INTERVAL)
    group.run(1)
    group.broker_skew = skew_seconds
    group.run(1.5)
    assert group.records_of(ResumingGroup) == []
    group.run(2)
    assert len(group.records_of(ResumingGroup)) >= 1


def test_m4_a_pause_that_ended_without_members_is_over() -> None:
    """A new process reads the pause, and later records of the log, at once: what counts is when they were appended."""
    group = VirtualGroup()
    anna = group.start("anna")
    group.run(3)
    pause(group, for_seconds=3 * INTERVAL)
    group.run(1)
    group.leave(anna)
    group.now += 10 * INTERVAL
    group.start("bert")
    group.run(1)
    assert len(group.records_of(ResumingGroup)) == 1


# administrators


def test_a_partition_freed_by_an_administrator_goes_to_another_member_first() -> None:
    group = VirtualGroup(partitions=2)
    anna, bert = group.start("anna"), group.start("bert")
    group.run(4)
    [partition] = group.held(anna)
    group.append_record(FreeingPartition(who=ADMIN, seq=1, partition=partition, if_token=group.claim(partition).token))
    group.run(1)
    assert partition in group.held(bert)


# claims that come late (ghosts)


def claim_on_its_way(group: VirtualGroup) -> tuple[VirtualProcess, ClaimingPartition]:
    """A member whose claim was reported as failed, and is still on its way."""
    anna = group.start("anna")
    while not group.records_of(BalancingGroup):
        group.run(0.05)
    anna.cut_off = True
    group.run(0.1)
    claim = next(item for item in anna.unsent if isinstance(item, ClaimingPartition))
    for record in anna.unsent:
        anna.participant.outbox.failed(record)
    return anna, claim


def test_a_claim_that_arrives_after_it_was_given_up_is_used() -> None:
    group = VirtualGroup(partitions=1)
    anna, claim = claim_on_its_way(group)
    group.append([claim])
    anna.cut_off = False
    group.run(1)
    assert group.held(anna) == group.partitions
    assert group.claim(web(0)).token == 1


def test_a_late_claim_that_is_no_longer_needed_is_released() -> None:
    group = VirtualGroup(partitions=1)
    anna, claim = claim_on_its_way(group)
    anna.participant.request([], {})
    anna.cut_off = False
    group.append([claim])
    group.run(1)
    assert group.owners() == [None]
    assert group.claim(web(0)).token == 1


def test_p11_a_claim_sent_twice_without_acknowledgement_is_one_claim() -> None:
    group = VirtualGroup(partitions=1)
    anna, claim = claim_on_its_way(group)
    anna.cut_off = False
    group.step(anna)
    group.append([claim])
    group.run(2)
    assert group.held(anna) == [web(0)]
    assert group.claim(web(0)).token == 1


# what a member reports


def test_a_member_reports_claims_won_lost_and_released() -> None:
    group = VirtualGroup(partitions=2)
    anna = group.start("anna")
    group.run(2)
    assert anna.participant.events == [
        GroupJoined(GROUP, "anna"),
        ClaimWon(str(web(0)), 1),
        ClaimWon(str(web(1)), 1),
    ]
    group.append_record(FreeingPartition(who=ADMIN, seq=1, partition=web(0), if_token=1))
    group.run(0.1)
    assert anna.participant.events[-1] == ClaimLost(str(web(0)), 1)
    anna.participant.holdings.release_later([web(1)], "the table has a newer token", group.now)
    group.run(0.2)
    assert ClaimReleased(str(web(1)), "the table has a newer token") in anna.participant.events


def test_heartbeats_go_out_twice_an_interval_and_carry_the_position() -> None:
    group = VirtualGroup(partitions=1)
    anna = group.start("anna")
    group.run(2)
    anna.participant.holdings.progress(web(0), 77, lag=3)
    before = len(group.records_of(Heartbeat))
    group.run(4)
    assert len(group.records_of(Heartbeat)) - before == 8
    assert group.claim(web(0)).position == 77
    assert group.claim(web(0)).lag == 3


def test_a_heartbeat_holds_only_changes() -> None:
    group = VirtualGroup(partitions=3)
    anna = group.start("anna")
    group.run(2)
    anna.participant.holdings.progress(web(1), 5)
    before = len(group.records_of(Heartbeat))
    group.run(6)
    beat_counts = [len(record.beats) for record in group.records_of(Heartbeat)[before:]]
    assert beat_counts.count(1) == 1
    assert sum(beat_counts) == 1


def test_an_owners_seek_back_is_not_undone_by_its_next_heartbeat() -> None:
    group = VirtualGroup(partitions=1)
    anna = group.start("anna")
    group.run(2)
    anna.participant.holdings.progress(web(0), 500)
    group.run(1)
    seek = anna.participant.record_about(Seeking, web(0), if_token=1, position=300)
    group.append(anna.participant.outbox.sending([seek], group.now))
    group.run(2)
    assert group.claim(web(0)).position == 300
    anna.participant.holdings.progress(web(0), 310)
    group.run(1)
    assert group.claim(web(0)).position == 310
