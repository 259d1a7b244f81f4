"""Joining, leaving and being replaced: one client id, one live process (RULES M3)."""

from __future__ import annotations

import pytest

from penstock.claims.member.membership import (
    FORGET_INTERVALS,
    UNREQUESTED_SECONDS_MAX,
    DifferentHeartbeatError,
    DuplicateClientError,
    Phase,
    ReplacedError,
)
from penstock.claims.protocol.records import (
    ClaimingPartition,
    ForgettingMember,
    JoiningGroup,
    Record,
    ReleasingPartition,
    partitions_of,
)
from penstock.errors import FencedError, UserError
from penstock.logs.log import Partition
from tests.support.coordination import INTERVAL, web
from tests.unit.claims.member.virtual_group import VirtualGroup


def test_a_member_alone_takes_everything_within_two_intervals() -> None:
    group = VirtualGroup(partitions=4)
    anna = group.start("anna")
    group.run(2)
    assert group.owners() == ["anna"] * 4
    assert group.held(anna) == group.partitions
    assert len(group.records_of(ClaimingPartition)) == 1, "one record claims all"


def test_m3_a_second_live_process_with_one_client_id_is_refused() -> None:
    group = VirtualGroup()
    first = group.start("anna", "1")
    group.run(2)
    second = group.start("anna", "2")
    group.run(2)
    assert isinstance(second.error, DuplicateClientError)
    assert isinstance(second.error, UserError)
    assert second.error.client_id == "anna"
    assert first.error is None
    assert len(group.held(first)) == 4
    assert not [record for record in group.records_of(JoiningGroup) if record.who.nonce == "2"], "it sent nothing"


def test_m3_a_silent_process_is_replaced_once_its_gate_is_closed() -> None:
    """Not earlier: the old process may work for 1.75 intervals after its last record."""
    group = VirtualGroup()
    first = group.start("anna", "1")
    group.run(2)
    first.asleep = True
    silent_since = group.log[-1][1]
    second = group.start("anna", "2")
    while not group.held(second):
        assert not (group.held(first) and group.held(second))
        group.run(0.1)
    assert 2 * INTERVAL < group.now - silent_since < 2.5 * INTERVAL
    assert group.held(first) == []
    assert len(group.held(second)) == 4, "with the claims of its former incarnation"


def test_m3_a_process_that_was_dead_for_long_is_replaced_after_one_interval_instead_of_two() -> None:
    """The broker's clock shows how long it was silent before; the last interval is watched, as clocks may step."""
    group = VirtualGroup()
    first = group.start("anna", "1")
    group.run(2)
    first.gone = True
    group.now += 3 * INTERVAL
    second = group.start("anna", "2")
    group.run(1)
    assert group.held(second) == []
    group.run(0.5)
    assert len(group.held(second)) == 4


@pytest.mark.parametrize("client_id", ["anna", "bert"])
def test_m3_a_broker_clock_step_does_not_make_a_live_process_look_dead(client_id: str) -> None:
    """Within one leader's epoch: a newcomer reads an append time that is an hour after the last heartbeat."""
    group = VirtualGroup()
    first = group.start("anna", "1")
    group.run(2)
    group.broker_skew = 3600.0
    second = group.start(client_id, "2")
    for _ in range(300):
        group.run(0.01, 0.1)
        assert len(group.held(first)) + len(group.held(second)) <= 4
    assert first.error is None
    assert group.records_of(ForgettingMember) == []
    assert isinstance(second.error, DuplicateClientError) == (client_id == "anna")


def test_m3_the_clock_of_another_leader_does_not_make_a_live_process_look_dead() -> None:
    group = VirtualGroup()
    first = group.start("anna", "1")
    group.run(2)
    group.epoch, group.broker_skew = 2, 3600.0
    second = group.start("anna", "2")
    group.run(0.3)
    assert second.participant.phase is Phase.WATCHING
    assert len(group.held(first)) == 4
    group.run(2)
    assert isinstance(second.error, DuplicateClientError)


def test_m3_a_replaced_process_stops_when_it_reads_the_newer_nonce() -> None:
    group = VirtualGroup()
    first = group.start("anna", "1")
    group.run(2)
    first.asleep = True
    second = group.start("anna", "2")
    group.run(3)
    first.asleep = False
    assert group.held(first) == [], "its leases ran out while it slept"
    with pytest.raises(ReplacedError) as caught:
        group.step(first)
    assert isinstance(caught.value, FencedError)
    assert first.participant.phase is Phase.LEFT
    group.run(1)
    assert second.error is None


def test_m3_after_a_clean_leave_the_next_process_begins_at_once() -> None:
    group = VirtualGroup()
    first = group.start("anna", "1")
    group.run(2)
    group.leave(first)
    second = group.start("anna", "2")
    group.run(0.5)
    assert len(group.held(second)) == 4


def test_m3_of_two_newcomers_with_one_client_id_one_is_refused() -> None:
    group = VirtualGroup()
    pair = [group.start("anna", "1"), group.start("anna", "2")]
    group.run(3)
    assert sorted(type(item.error).__name__ for item in pair) == ["DuplicateClientError", "NoneType"]
    living = next(process for process in pair if process.error is None)
    assert len(group.held(living)) == 4


def test_m3_two_newcomers_after_a_crash_do_not_both_take_the_id() -> None:
    group = VirtualGroup()
    first = group.start("anna", "1")
    group.run(2)
    first.gone = True
    pair = [group.start("anna", "2"), group.start("anna", "3")]
    group.run(4)
    assert sorted(type(item.error).__name__ for item in pair) == ["DuplicateClientError", "NoneType"]


def test_a_restarted_process_takes_its_claims_back_and_others_keep_theirs() -> None:
    group = VirtualGroup(partitions=6)
    first, bert = group.start("anna", "1"), group.start("bert")
    group.run(4)
    before = group.owners()
    of_bert = group.held(bert)
    first.gone = True
    group.now += 1.6 * INTERVAL
    second = group.start("anna", "2")
    for item in (bert, second):
        group.step(item)
    group.run(2)
    assert group.owners() == before
    assert group.held(bert) == of_bert
    assert len(group.held(second)) == 3
    assert all(group.claim(partition).owner == second.participant.who for partition in group.held(second))


def test_a_process_cut_off_from_the_log_joins_once_it_can_write() -> None:
    group = VirtualGroup()
    anna = group.start("anna")
    anna.cut_off = True
    group.run(3)
    assert anna.participant.phase is Phase.JOINING
    anna.cut_off = False
    group.run(4)
    assert len(group.held(anna)) == 4


def test_a_join_that_arrives_late_is_accepted() -> None:
    group = VirtualGroup()
    anna = group.start("anna")
    anna.cut_off = True
    group.run(0.2)
    for record in anna.unsent:
        anna.participant.outbox.failed(record)
    anna.cut_off = False
    group.append(anna.unsent)
    group.run(3)
    assert anna.error is None
    assert len(group.held(anna)) == 4


def test_no_member_acts_before_it_has_read_the_log() -> None:
    group = VirtualGroup()
    anna = group.start("anna")
    anna.participant.phase = Phase.READING
    assert anna.participant.decide(group.now) == []
    assert group.held(anna) == []


# terms


def test_members_with_another_interval_are_refused_while_another_member_is_live() -> None:
    group = VirtualGroup()
    group.start("anna")
    group.run(2)
    fast = group.start("bert", heartbeat_seconds=2.0)
    group.run(2)
    assert isinstance(fast.error, DifferentHeartbeatError)
    assert "10.0 s" in fast.error.primary
    assert len(group.held(group.processes[0])) == 4


def test_after_a_crash_of_all_members_the_heartbeat_interval_may_change() -> None:
    group = VirtualGroup()
    anna = group.start("anna")
    group.run(2)
    anna.gone = True
    bert = group.start("bert", heartbeat_seconds=2.0)
    group.run(4, step_seconds=0.1)
    assert bert.error is None
    assert len(group.held(bert)) == 4


# forgetting


def test_a_silent_client_id_is_forgotten_after_its_limit() -> None:
    group = VirtualGroup()
    anna, bert = group.start("anna"), group.start("bert")
    group.run(3)
    bert.gone = True
    group.run(3)
    absent = anna.participant.view.state.members.get("bert")
    assert absent is not None and not absent.present
    group.run(FORGET_INTERVALS)
    assert anna.participant.view.state.members.get("bert") is None
    assert group.owners() == ["anna"] * 4


def test_a_member_that_left_cleanly_is_forgotten_too() -> None:
    group = VirtualGroup()
    anna, bert = group.start("anna"), group.start("bert")
    group.run(3)
    group.leave(bert)
    group.run(FORGET_INTERVALS + 2)
    assert anna.participant.view.state.members.get("bert") is None


@pytest.mark.parametrize("intervals", [4, FORGET_INTERVALS + 4])
def test_a_member_declared_dead_rejoins_and_gets_its_share(intervals: int) -> None:
    group = VirtualGroup()
    anna, bert = group.start("anna"), group.start("bert")
    group.run(3)
    bert.asleep = True
    group.run(intervals)
    assert group.owners() == ["anna"] * 4
    bert.asleep = False
    group.run(4)
    assert bert.error is None
    assert sorted(group.owners(), key=str) == ["anna", "anna", "bert", "bert"]
    assert len(group.held(bert)) == 2
    assert anna.error is None


def test_partitions_of_a_topic_that_was_recreated_are_forgotten() -> None:
    group = VirtualGroup(partitions=2)
    anna = group.start("anna")
    group.run(2)
    recreated = [Partition("web", "another id", number) for number in range(2)]
    anna.participant.request(recreated, {})
    group.run(FORGET_INTERVALS + 2)
    assert set(group.view().state.claims) == set(recreated)


def test_unrequested_partitions_are_kept_for_a_week() -> None:
    group = VirtualGroup(partitions=2)
    anna = group.start("anna")
    group.run(2)
    anna.participant.request([], {})
    group.run(2 * FORGET_INTERVALS)
    assert set(group.view().state.claims) == {web(0), web(1)}
    group.now += UNREQUESTED_SECONDS_MAX
    anna.participant.read_back_at = group.now
    group.run(FORGET_INTERVALS + 2)
    assert group.view().state.claims == {}


# leaving


def test_a_leaving_member_frees_everything_at_once() -> None:
    group = VirtualGroup()
    anna, bert = group.start("anna"), group.start("bert")
    group.run(4)
    group.leave(bert)
    assert group.owners().count("bert") == 0
    assert group.held(bert) == []
    group.run(1)
    assert group.held(anna) == group.partitions, "no process waits for a silence"


def test_claims_in_flight_when_a_member_leaves_do_not_delay_others() -> None:
    """They arrive before or after its last record: either way others have the partitions at once."""
    group = VirtualGroup()
    anna, bert = group.start("anna"), group.start("bert")
    group.run(0.1)
    while not group.records_of(ClaimingPartition):
        group.run(0.05)
    anna.cut_off = True
    late = [
        record for record, _ in group.log if isinstance(record, ClaimingPartition) and record.who.client_id == "anna"
    ]
    group.append(anna.participant.leave(group.now))
    anna.gone = True
    group.append(late)
    group.run(1)
    assert group.owners() == ["bert"] * 4
    assert len(group.held(bert)) == 4


def test_a_process_that_never_joined_sends_no_leave() -> None:
    group = VirtualGroup()
    anna = group.start("anna")
    assert anna.participant.leave(group.now) == []


# the work gate


def test_work_starts_only_while_the_owner_cannot_be_suspected() -> None:
    group = VirtualGroup(partitions=1)
    anna = group.start("anna")
    group.run(2)
    [(partition, token)] = anna.participant.held(group.now).items()
    confirmed_at = anna.participant._renewed_at
    assert anna.participant.confirmed(partition, token, confirmed_at + 1.74 * INTERVAL)
    assert not anna.participant.confirmed(partition, token, confirmed_at + 1.76 * INTERVAL)
    assert not anna.participant.confirmed(partition, token + 1, confirmed_at)
    assert anna.participant.held(confirmed_at + 1.76 * INTERVAL) == {}


def test_p17_a_lost_heartbeat_renews_nothing() -> None:
    group = VirtualGroup(partitions=1)
    anna = group.start("anna")
    group.run(2)
    anna.cut_off = True
    group.run(1.2)
    assert group.held(anna) == group.partitions
    group.run(0.6)
    assert group.held(anna) == []


def test_a_lease_counts_from_sending_and_not_from_reading_back() -> None:
    group = VirtualGroup(partitions=1)
    anna = group.start("anna")
    group.run(2)
    anna.cut_off = True
    group.run(1)
    late = anna.unsent[0]
    _, sent_at = anna.participant.outbox._sent[late.seq]
    group.now = sent_at + 1.7 * INTERVAL
    group.append([late])
    group.read_log(anna)
    assert group.held(anna) == group.partitions
    group.now = sent_at + 1.8 * INTERVAL
    assert group.held(anna) == [], "although it was read back only a moment ago"


def test_a_join_in_flight_at_close_leaves_no_member() -> None:
    group = VirtualGroup(partitions=4)
    group.start("anna")
    group.run(3)
    bert = group.start("bert")
    while not [record for record in group.records_of(JoiningGroup) if record.who.client_id == "bert"]:
        group.now += 0.1
        group.step(bert)
    group.leave(bert)
    for _ in range(50):
        group.run(0.1)
        assert None not in group.owners()


def test_a_release_that_was_sent_is_not_cancelled() -> None:
    """It may be read at any time: a process that works on would work alongside the next owner."""
    group = VirtualGroup(partitions=2)
    group.start("aaa", requested=[Partition("other", "id-of-other", 0)])
    anna = group.start("anna")
    group.run(3)
    cleo = group.start("cleo")
    stalled: list[Record] = []
    while not any(isinstance(item, ReleasingPartition) for item in stalled):
        group.now += 0.25
        for process in group.processes:
            group.read_log(process)
            records = process.participant.decide(group.now)
            stalls = process is anna and any(isinstance(record, ReleasingPartition) for record in records)
            if stalls:
                stalled += records
            else:
                group.append(records)
    [released] = partitions_of(next(record for record in stalled if isinstance(record, ReleasingPartition)))
    group.leave(cleo)
    group.run(1)
    assert released not in group.held(anna)
    group.append(stalled)
    group.run(2)
    assert group.held(anna) == group.partitions, "once its own release was read it is claimed again"
