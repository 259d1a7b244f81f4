"""Joining, leaving and being replaced: one client id, one living process (RULES M3)."""

from __future__ import annotations

import pytest

from penstock.claims.member.membership import (
    FORGET_INTERVALS,
    UNWANTED_SECONDS_MAX,
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
from tests.unit.claims.member.room import Room


def test_a_member_alone_takes_everything_within_two_intervals() -> None:
    room = Room(partitions=4)
    anna = room.enter("anna")
    room.run(2)
    assert room.owners() == ["anna"] * 4
    assert room.held(anna) == room.partitions
    assert len(room.words(ClaimingPartition)) == 1, "one record claims all"


def test_m3_a_second_live_process_with_one_client_id_is_refused() -> None:
    room = Room()
    first = room.enter("anna", "1")
    room.run(2)
    second = room.enter("anna", "2")
    room.run(2)
    assert isinstance(second.error, DuplicateClientError)
    assert isinstance(second.error, UserError)
    assert second.error.client_id == "anna"
    assert first.error is None
    assert len(room.held(first)) == 4
    assert not [word for word in room.words(JoiningGroup) if word.who.nonce == "2"], "it did not even speak"


def test_m3_a_silent_process_is_replaced_once_its_gate_is_closed() -> None:
    """Not earlier: the old process may work for 1.75 intervals after its last word."""
    room = Room()
    first = room.enter("anna", "1")
    room.run(2)
    first.asleep = True
    silent_since = room.log[-1][1]
    second = room.enter("anna", "2")
    while not room.held(second):
        assert not (room.held(first) and room.held(second))
        room.run(0.1)
    assert 2 * INTERVAL < room.now - silent_since < 2.5 * INTERVAL
    assert room.held(first) == []
    assert len(room.held(second)) == 4, "with the claims of its former life"


def test_m3_a_process_that_was_dead_for_long_is_replaced_after_one_interval_instead_of_two() -> None:
    """The broker's clock says how long it was silent before; the last interval is listened to, as clocks may step."""
    room = Room()
    first = room.enter("anna", "1")
    room.run(2)
    first.gone = True
    room.now += 3 * INTERVAL
    second = room.enter("anna", "2")
    room.run(1)
    assert room.held(second) == []
    room.run(0.5)
    assert len(room.held(second)) == 4


@pytest.mark.parametrize("client_id", ["anna", "bert"])
def test_m3_a_broker_clock_step_does_not_make_a_live_process_look_dead(client_id: str) -> None:
    """Within one leader's epoch: a newcomer reads an append time that is an hour after the last heartbeat."""
    room = Room()
    first = room.enter("anna", "1")
    room.run(2)
    room.broker_skew = 3600.0
    second = room.enter(client_id, "2")
    for _ in range(300):
        room.run(0.01, 0.1)
        assert len(room.held(first)) + len(room.held(second)) <= 4
    assert first.error is None
    assert room.words(ForgettingMember) == []
    assert isinstance(second.error, DuplicateClientError) == (client_id == "anna")


def test_m3_the_clock_of_another_leader_does_not_make_a_live_process_look_dead() -> None:
    room = Room()
    first = room.enter("anna", "1")
    room.run(2)
    room.epoch, room.broker_skew = 2, 3600.0
    second = room.enter("anna", "2")
    room.run(0.3)
    assert second.participant.phase is Phase.WATCHING
    assert len(room.held(first)) == 4
    room.run(2)
    assert isinstance(second.error, DuplicateClientError)


def test_m3_a_replaced_process_stops_when_it_reads_the_newer_nonce() -> None:
    room = Room()
    first = room.enter("anna", "1")
    room.run(2)
    first.asleep = True
    second = room.enter("anna", "2")
    room.run(3)
    first.asleep = False
    assert room.held(first) == [], "its leases ran out while it slept"
    with pytest.raises(ReplacedError) as caught:
        room.turn(first)
    assert isinstance(caught.value, FencedError)
    assert first.participant.phase is Phase.LEFT
    room.run(1)
    assert second.error is None


def test_m3_after_a_clean_leave_the_next_process_begins_at_once() -> None:
    room = Room()
    first = room.enter("anna", "1")
    room.run(2)
    room.leave(first)
    second = room.enter("anna", "2")
    room.run(0.5)
    assert len(room.held(second)) == 4


def test_m3_of_two_newcomers_with_one_client_id_one_is_refused() -> None:
    room = Room()
    pair = [room.enter("anna", "1"), room.enter("anna", "2")]
    room.run(3)
    assert sorted(type(item.error).__name__ for item in pair) == ["DuplicateClientError", "NoneType"]
    living = next(each for each in pair if each.error is None)
    assert len(room.held(living)) == 4


def test_m3_two_newcomers_after_a_crash_do_not_both_take_the_id() -> None:
    room = Room()
    first = room.enter("anna", "1")
    room.run(2)
    first.gone = True
    pair = [room.enter("anna", "2"), room.enter("anna", "3")]
    room.run(4)
    assert sorted(type(item.error).__name__ for item in pair) == ["DuplicateClientError", "NoneType"]


def test_a_restarted_process_takes_its_claims_back_and_others_keep_theirs() -> None:
    room = Room(partitions=6)
    first, bert = room.enter("anna", "1"), room.enter("bert")
    room.run(4)
    before = room.owners()
    of_bert = room.held(bert)
    first.gone = True
    room.now += 1.6 * INTERVAL
    second = room.enter("anna", "2")
    for item in (bert, second):
        room.turn(item)
    room.run(2)
    assert room.owners() == before
    assert room.held(bert) == of_bert
    assert len(room.held(second)) == 3
    assert all(room.claim(each).owner == second.participant.who for each in room.held(second))


def test_a_process_cut_off_from_the_log_joins_once_it_can_write() -> None:
    room = Room()
    anna = room.enter("anna")
    anna.mute = True
    room.run(3)
    assert anna.participant.phase is Phase.JOINING
    anna.mute = False
    room.run(4)
    assert len(room.held(anna)) == 4


def test_a_join_that_was_thought_lost_and_came_late_counts() -> None:
    room = Room()
    anna = room.enter("anna")
    anna.mute = True
    room.run(0.2)
    for record in anna.unheard:
        anna.participant.outbox.failed(record)
    anna.mute = False
    room.append(anna.unheard)
    room.run(3)
    assert anna.error is None
    assert len(room.held(anna)) == 4


def test_no_member_acts_before_it_has_read_the_log() -> None:
    room = Room()
    anna = room.enter("anna")
    anna.participant.phase = Phase.READING
    assert anna.participant.decide(room.now) == []
    assert room.held(anna) == []


# terms


def test_members_with_another_interval_are_refused_while_another_member_is_live() -> None:
    room = Room()
    room.enter("anna")
    room.run(2)
    fast = room.enter("bert", heartbeat_seconds=2.0)
    room.run(2)
    assert isinstance(fast.error, DifferentHeartbeatError)
    assert "10.0 s" in fast.error.primary
    assert len(room.held(room.attendants[0])) == 4


def test_after_a_crash_of_all_members_the_terms_may_change() -> None:
    room = Room()
    anna = room.enter("anna")
    room.run(2)
    anna.gone = True
    bert = room.enter("bert", heartbeat_seconds=2.0)
    room.run(4, step_seconds=0.1)
    assert bert.error is None
    assert len(room.held(bert)) == 4


# forgetting


def test_a_silent_client_id_is_forgotten_after_its_limit() -> None:
    room = Room()
    anna, bert = room.enter("anna"), room.enter("bert")
    room.run(3)
    bert.gone = True
    room.run(3)
    absent = anna.participant.view.state.members.get("bert")
    assert absent is not None and not absent.present
    room.run(FORGET_INTERVALS)
    assert anna.participant.view.state.members.get("bert") is None
    assert room.owners() == ["anna"] * 4


def test_a_member_that_left_cleanly_is_forgotten_too() -> None:
    room = Room()
    anna, bert = room.enter("anna"), room.enter("bert")
    room.run(3)
    room.leave(bert)
    room.run(FORGET_INTERVALS + 2)
    assert anna.participant.view.state.members.get("bert") is None


@pytest.mark.parametrize("intervals", [4, FORGET_INTERVALS + 4])
def test_a_member_declared_dead_rejoins_and_gets_its_share(intervals: int) -> None:
    room = Room()
    anna, bert = room.enter("anna"), room.enter("bert")
    room.run(3)
    bert.asleep = True
    room.run(intervals)
    assert room.owners() == ["anna"] * 4
    bert.asleep = False
    room.run(4)
    assert bert.error is None
    assert sorted(room.owners(), key=str) == ["anna", "anna", "bert", "bert"]
    assert len(room.held(bert)) == 2
    assert anna.error is None


def test_partitions_of_a_topic_that_was_recreated_are_forgotten() -> None:
    room = Room(partitions=2)
    anna = room.enter("anna")
    room.run(2)
    recreated = [Partition("web", "another id", number) for number in range(2)]
    anna.participant.want(recreated, {})
    room.run(FORGET_INTERVALS + 2)
    assert set(room.view().state.claims) == set(recreated)


def test_unrequested_partitions_are_kept_for_a_week() -> None:
    room = Room(partitions=2)
    anna = room.enter("anna")
    room.run(2)
    anna.participant.want([], {})
    room.run(2 * FORGET_INTERVALS)
    assert set(room.view().state.claims) == {web(0), web(1)}
    room.now += UNWANTED_SECONDS_MAX
    anna.participant.heard_self_at = room.now
    room.run(FORGET_INTERVALS + 2)
    assert room.view().state.claims == {}


# leaving


def test_a_leaving_member_frees_everything_at_once() -> None:
    room = Room()
    anna, bert = room.enter("anna"), room.enter("bert")
    room.run(4)
    room.leave(bert)
    assert room.owners().count("bert") == 0
    assert room.held(bert) == []
    room.run(1)
    assert room.held(anna) == room.partitions, "nobody waits for a silence"


def test_claims_that_are_on_their_way_when_a_member_leaves_hold_nothing_up() -> None:
    """They come behind its farewell, or before it: either way others have the partitions at once."""
    room = Room()
    anna, bert = room.enter("anna"), room.enter("bert")
    room.run(0.1)
    while not room.words(ClaimingPartition):
        room.run(0.05)
    anna.mute = True
    late = [
        record for record, _ in room.log if isinstance(record, ClaimingPartition) and record.who.client_id == "anna"
    ]
    room.append(anna.participant.leave(room.now))
    anna.gone = True
    room.append(late)
    room.run(1)
    assert room.owners() == ["bert"] * 4
    assert len(room.held(bert)) == 4


def test_a_process_that_never_joined_sends_no_leave() -> None:
    room = Room()
    anna = room.enter("anna")
    assert anna.participant.leave(room.now) == []


# the work gate


def test_work_starts_only_while_the_owner_cannot_be_suspected() -> None:
    room = Room(partitions=1)
    anna = room.enter("anna")
    room.run(2)
    [(partition, token)] = anna.participant.held(room.now).items()
    confirmed_at = anna.participant._renewed_at
    assert anna.participant.confirmed(partition, token, confirmed_at + 1.74 * INTERVAL)
    assert not anna.participant.confirmed(partition, token, confirmed_at + 1.76 * INTERVAL)
    assert not anna.participant.confirmed(partition, token + 1, confirmed_at)
    assert anna.participant.held(confirmed_at + 1.76 * INTERVAL) == {}


def test_p17_a_lost_heartbeat_renews_nothing() -> None:
    room = Room(partitions=1)
    anna = room.enter("anna")
    room.run(2)
    anna.mute = True
    room.run(1.2)
    assert room.held(anna) == room.partitions
    room.run(0.6)
    assert room.held(anna) == []


def test_a_lease_counts_from_sending_and_not_from_reading_back() -> None:
    room = Room(partitions=1)
    anna = room.enter("anna")
    room.run(2)
    anna.mute = True
    room.run(1)
    late = anna.unheard[0]
    _, sent_at = anna.participant.outbox._sent[late.seq]
    room.now = sent_at + 1.7 * INTERVAL
    room.append([late])
    room.hear(anna)
    assert room.held(anna) == room.partitions
    room.now = sent_at + 1.8 * INTERVAL
    assert room.held(anna) == [], "although it was read back only a moment ago"


def test_a_join_in_flight_at_close_leaves_no_member() -> None:
    room = Room(partitions=4)
    room.enter("anna")
    room.run(3)
    bert = room.enter("bert")
    while not [word for word in room.words(JoiningGroup) if word.who.client_id == "bert"]:
        room.now += 0.1
        room.turn(bert)
    room.leave(bert)
    for _ in range(50):
        room.run(0.1)
        assert None not in room.owners()


def test_a_release_that_was_sent_is_not_called_off() -> None:
    """It may be read at any time: who works on would work beside the next owner."""
    room = Room(partitions=2)
    room.enter("aaa", wanted=[Partition("other", "id-of-other", 0)])
    anna = room.enter("anna")
    room.run(3)
    cleo = room.enter("cleo")
    stalled: list[Record] = []
    while not any(isinstance(item, ReleasingPartition) for item in stalled):
        room.now += 0.25
        for attendant in room.attendants:
            room.hear(attendant)
            records = attendant.participant.decide(room.now)
            stalls = attendant is anna and any(isinstance(record, ReleasingPartition) for record in records)
            if stalls:
                stalled += records
            else:
                room.append(records)
    [released] = partitions_of(next(each for each in stalled if isinstance(each, ReleasingPartition)))
    room.leave(cleo)
    room.run(1)
    assert released not in room.held(anna)
    room.append(stalled)
    room.run(2)
    assert room.held(anna) == room.partitions, "once its own release was read it is claimed anew"
