"""Joining, leaving and being replaced: one client id, one living process (RULES M3)."""

from __future__ import annotations

import pytest

from penstock.claims.member.membership import DuplicateClientError, Phase, ReplacedError
from penstock.claims.member.upkeep import FORGET_INTERVALS
from penstock.claims.protocol.records import ClaimingPartition, JoiningGroup
from penstock.errors import FencedError, UserError
from tests.unit.claims.member.room import INTERVAL, Room


def test_a_member_alone_takes_everything_within_two_intervals() -> None:
    room = Room(partitions=4)
    anna = room.enter("anna")
    room.run(2)
    assert room.owners() == ["anna"] * 4
    assert room.held(anna) == room.partitions
    assert len(room.words(ClaimingPartition)) == 4


def test_m3_a_second_living_process_with_one_client_id_is_refused() -> None:
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
    assert not [each for each in room.words(JoiningGroup) if each.who.nonce == "2"], "it did not even speak"


def test_m3_a_silent_process_is_replaced_after_one_interval() -> None:
    room = Room()
    first = room.enter("anna", "1")
    room.run(2)
    first.asleep = True
    second = room.enter("anna", "2")
    room.run(0.9)
    assert second.participant.phase is Phase.WATCHING
    room.run(1.1)
    assert len(room.held(second)) == 4, "with the claims of its former life, before they are suspected"


def test_m3_a_replaced_process_stops_when_it_hears_of_it() -> None:
    room = Room()
    first = room.enter("anna", "1")
    room.run(2)
    first.asleep = True
    second = room.enter("anna", "2")
    room.run(2)
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
    assert sorted(type(each.error).__name__ for each in pair) == ["DuplicateClientError", "NoneType"]
    living = next(each for each in pair if each.error is None)
    assert len(room.held(living)) == 4


def test_m3_two_newcomers_after_a_crash_do_not_both_take_the_id() -> None:
    room = Room()
    first = room.enter("anna", "1")
    room.run(2)
    first.gone = True
    pair = [room.enter("anna", "2"), room.enter("anna", "3")]
    room.run(4)
    assert sorted(type(each.error).__name__ for each in pair) == ["DuplicateClientError", "NoneType"]


def test_a_restarted_process_takes_its_claims_back_and_others_keep_theirs() -> None:
    room = Room(partitions=6)
    first, bert = room.enter("anna", "1"), room.enter("bert")
    room.run(4)
    before = room.owners()
    of_bert = room.held(bert)
    first.gone = True
    second = room.enter("anna", "2")
    room.run(2)
    assert room.owners() == before
    assert room.held(bert) == of_bert
    assert len(room.held(second)) == 3
    assert all(room.claim(each).owner == second.participant.who for each in room.held(second))


def test_a_process_that_could_not_be_heard_joins_when_it_can() -> None:
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
    for send in anna.unheard:
        anna.participant.outbox.failed(send.record)
    anna.mute = False
    room.append(anna.unheard)
    room.run(3)
    assert anna.error is None
    assert len(room.held(anna)) == 4


def test_nobody_acts_before_it_has_read_the_log() -> None:
    room = Room()
    anna = room.enter("anna")
    anna.participant.phase = Phase.READING
    assert anna.participant.decide(room.now, room.now) == []
    assert room.held(anna) == []


# forgetting


def test_a_client_id_that_is_silent_for_long_is_forgotten() -> None:
    room = Room()
    anna, bert = room.enter("anna"), room.enter("bert")
    room.run(3)
    bert.gone = True
    room.run(FORGET_INTERVALS - 2)
    assert anna.participant.view.member("bert") is not None
    room.run(4)
    assert anna.participant.view.member("bert") is None
    assert room.owners() == ["anna"] * 4


def test_a_member_that_left_cleanly_is_forgotten_too() -> None:
    room = Room()
    anna, bert = room.enter("anna"), room.enter("bert")
    room.run(3)
    room.leave(bert)
    room.run(FORGET_INTERVALS + 2)
    assert anna.participant.view.member("bert") is None


def test_a_forgotten_member_that_wakes_up_joins_again_and_gets_its_share() -> None:
    room = Room()
    anna, bert = room.enter("anna"), room.enter("bert")
    room.run(3)
    bert.asleep = True
    room.run(FORGET_INTERVALS + 3)
    assert anna.participant.view.member("bert") is None
    bert.asleep = False
    room.run(4)
    assert bert.error is None
    assert sorted(room.owners(), key=str) == ["anna", "anna", "bert", "bert"]
    assert len(room.held(bert)) == 2


# leaving


def test_who_leaves_frees_everything_at_once() -> None:
    room = Room()
    anna, bert = room.enter("anna"), room.enter("bert")
    room.run(4)
    room.leave(bert)
    assert room.owners().count("bert") == 0
    assert room.held(bert) == []
    room.run(1)
    assert room.held(anna) == room.partitions, "nobody waits for a silence"


def test_who_never_joined_leaves_without_a_word() -> None:
    room = Room()
    anna = room.enter("anna")
    assert anna.participant.leave(room.now) == []


# the work gate


def test_work_begins_only_while_nobody_can_suspect_the_owner() -> None:
    room = Room(partitions=1)
    anna = room.enter("anna")
    room.run(2)
    [(partition, token)] = anna.participant.held(room.now).items()
    confirmed_at = anna.participant._held[partition].confirmed_at
    assert anna.participant.confirmed(partition, token, confirmed_at + 1.74 * INTERVAL)
    assert not anna.participant.confirmed(partition, token, confirmed_at + 1.76 * INTERVAL)
    assert not anna.participant.confirmed(partition, token + 1, confirmed_at)
    assert anna.participant.held(confirmed_at + 1.76 * INTERVAL) == {}


def test_p17_a_heartbeat_that_was_not_heard_renews_nothing() -> None:
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
    sent_at = anna.participant.outbox._sent[late.record.seq].sent_at
    room.now = sent_at + 1.7 * INTERVAL
    room.append([late])
    room.hear(anna)
    assert room.held(anna) == room.partitions
    room.now = sent_at + 1.8 * INTERVAL
    assert room.held(anna) == [], "although it was read back only a moment ago"
