"""The fold of claims: compare and swap, tokens, positions, at most once."""

from __future__ import annotations

import pytest

from penstock.claims.protocol.records import (
    Beat,
    ClaimingMessages,
    ClaimingPartition,
    ClosingRanges,
    Heartbeat,
    OpeningRanges,
    ReleasingPartition,
    Seeking,
    Who,
)
from penstock.claims.protocol.state import Claim
from tests.coordination import ANNA, BERT, GROUP, WEB, Log, web

ANNA_AGAIN = Who("anna", "a2")


def annas(position: int | None = None) -> Log:
    """A log in which anna holds the partition under token 1."""
    log = Log()
    log.claim(ANNA)
    if position is not None:
        log.beat(ANNA, 1, position)
    return log


# claiming


def test_a_free_partition_is_claimed() -> None:
    assert annas().claim_of() == Claim(token=1, owner=ANNA, held=True, last=0)


def test_of_two_claimants_the_first_in_the_log_wins() -> None:
    log = annas()
    assert log.say(ClaimingPartition, BERT, partition=WEB, if_token=0, if_last=None) is not None
    assert log.claim_of().held_by(ANNA)


def test_a_silent_owner_loses_to_whoever_saw_its_last_word() -> None:
    log = annas(position=7)
    assert log.say(ClaimingPartition, BERT, partition=WEB, if_token=1, if_last=1) is None
    assert log.claim_of() == Claim(token=2, owner=BERT, held=True, last=2, position=7)


@pytest.mark.parametrize(("if_token", "if_last"), [(1, 0), (0, 1), (2, 1), (1, None), (1, 2)])
def test_a_claim_on_what_is_no_longer_so_is_refused(if_token: int, if_last: int | None) -> None:
    log = annas(position=7)
    assert log.say(ClaimingPartition, BERT, partition=WEB, if_token=if_token, if_last=if_last) is not None
    assert log.claim_of().held_by(ANNA)


def test_m1_a_token_is_beyond_what_the_table_has() -> None:
    log = Log()
    log.claim(ANNA, floor=41)
    assert log.claim_of().token == 42


def test_m1_a_lower_floor_does_not_lower_the_token() -> None:
    log = Log()
    log.claim(ANNA, floor=41)
    log.claim(BERT, floor=3)
    assert log.claim_of().token == 43


def test_m2_another_life_of_a_topic_is_another_partition() -> None:
    log = annas()
    recreated = type(WEB)(WEB.topic, "another id", WEB.number)
    assert log.claim(BERT, recreated) is None
    assert log.claim_of(recreated).token == 1
    assert log.claim_of().held_by(ANNA)


def test_groups_do_not_see_each_other() -> None:
    log = annas()
    assert log.say(ClaimingPartition, BERT, group="other", partition=WEB, if_token=0, if_last=None) is None
    assert log.group("other").claim(WEB).held_by(BERT)
    assert log.group(GROUP).claim(WEB).held_by(ANNA)


# heartbeats


def test_m2_a_heartbeat_of_the_present_token_always_renews() -> None:
    log = annas(position=7)
    assert log.beat(ANNA, 1, 3) is None
    assert log.claim_of().last == 2
    assert log.claim_of().position == 7, "the maximum counts"


@pytest.mark.parametrize(("who", "token"), [(BERT, 1), (ANNA, 0), (ANNA, 2), (ANNA_AGAIN, 1)])
def test_a_heartbeat_of_anybody_else_renews_nothing(who: Who, token: int) -> None:
    log = annas(position=7)
    before = log.claim_of()
    assert log.beat(who, token, 100) is not None
    assert log.claim_of() == before


def test_a_heartbeat_renews_what_is_left_of_it() -> None:
    log = annas()
    log.claim(ANNA, web(1))
    log.claim(BERT, web(1))
    beats = (Beat(WEB, 1, 5, lag=3), Beat(web(1), 1, 50), Beat(web(2), 1, 50))
    assert log.say(Heartbeat, ANNA, beats=beats) is None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=True, last=3, position=5, lag=3)
    assert log.claim_of(web(1)) == Claim(token=2, owner=BERT, held=True, last=2)
    assert web(2) not in log.group().claims


def test_a_released_partition_is_not_renewed() -> None:
    log = annas()
    log.say(ReleasingPartition, ANNA, partition=WEB, token=1)
    assert log.beat(ANNA, 1, 5) is not None


# releasing


def test_a_release_keeps_the_position_and_who_it_was() -> None:
    log = annas(position=7)
    assert log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=20) is None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=False, last=2, position=20)


def test_a_release_does_not_lower_the_position() -> None:
    log = annas(position=7)
    assert log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=3) is None
    assert log.claim_of().position == 7


@pytest.mark.parametrize(("who", "token"), [(BERT, 1), (ANNA, 0), (ANNA, 2), (ANNA_AGAIN, 1)])
def test_nobody_else_releases_a_partition(who: Who, token: int) -> None:
    log = annas()
    assert log.say(ReleasingPartition, who, partition=WEB, token=token) is not None
    assert log.claim_of().held_by(ANNA)


def test_a_partition_is_released_once() -> None:
    log = annas()
    log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=20)
    assert log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=30) is not None
    assert log.claim_of().position == 20


def test_a_released_partition_is_claimed_with_the_next_token() -> None:
    log = annas()
    log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=20)
    assert log.claim(BERT) is None
    assert log.claim_of() == Claim(token=2, owner=BERT, held=True, last=2, position=20)


# seeking


def test_the_owner_seeks_back() -> None:
    log = annas(position=7)
    assert log.say(Seeking, ANNA, partition=WEB, if_token=1, position=2) is None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=True, last=2, position=2)


def test_anybody_seeks_in_a_free_partition() -> None:
    log = Log()
    assert log.say(Seeking, BERT, partition=WEB, if_token=0, position=5) is None
    assert log.claim_of() == Claim(last=0, position=5)


@pytest.mark.parametrize(("who", "if_token"), [(BERT, 1), (ANNA, 0), (ANNA, 2), (ANNA_AGAIN, 1)])
def test_nobody_seeks_in_what_another_member_holds(who: Who, if_token: int) -> None:
    log = annas(position=7)
    assert log.say(Seeking, who, partition=WEB, if_token=if_token, position=0) is not None
    assert log.claim_of().position == 7


# at most once


def claimed_to(end: int, position: int | None = None) -> Log:
    log = annas(position)
    assert log.say(ClaimingMessages, ANNA, partition=WEB, token=1, end=end) is None
    return log


def test_messages_are_claimed_by_the_owner() -> None:
    assert claimed_to(10).claim_of() == Claim(token=1, owner=ANNA, held=True, last=1, claimed=10)


@pytest.mark.parametrize("end", [0, 9, 10])
def test_messages_are_claimed_once(end: int) -> None:
    assert claimed_to(10).say(ClaimingMessages, ANNA, partition=WEB, token=1, end=end) is not None


def test_processed_messages_are_not_claimed() -> None:
    log = annas(position=20)
    assert log.say(ClaimingMessages, ANNA, partition=WEB, token=1, end=20) is not None
    assert log.say(ClaimingMessages, ANNA, partition=WEB, token=1, end=21) is None


@pytest.mark.parametrize(("who", "token"), [(BERT, 1), (ANNA, 0), (ANNA_AGAIN, 1)])
def test_messages_are_claimed_by_nobody_else(who: Who, token: int) -> None:
    assert annas().say(ClaimingMessages, who, partition=WEB, token=token, end=10) is not None


def test_messages_are_not_claimed_under_the_ranges_of_others() -> None:
    log = annas()
    log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=0)
    assert log.say(ClaimingMessages, ANNA, partition=WEB, token=1, end=10) is not None


def test_m6_what_a_dead_owner_had_claimed_is_given_up_and_listed() -> None:
    log = claimed_to(30, position=20)
    log.claim(BERT)
    assert log.claim_of() == Claim(
        token=2, owner=BERT, held=True, last=3, position=30, claimed=30, given_up=((20, 30),)
    )


def test_m6_what_was_reported_as_done_is_not_given_up() -> None:
    log = claimed_to(30, position=20)
    log.beat(ANNA, 1, 30)
    log.claim(BERT)
    assert log.claim_of().given_up == ()


def test_m6_a_release_in_the_middle_gives_up_the_rest() -> None:
    log = claimed_to(30, position=20)
    log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=25)
    log.claim(BERT)
    assert log.claim_of().given_up == ((25, 30),)


def test_m6_every_loss_is_listed_once() -> None:
    log = claimed_to(30, position=20)
    log.claim(BERT)
    log.claim(ANNA_AGAIN)
    log.say(ClaimingMessages, ANNA_AGAIN, partition=WEB, token=3, end=40)
    log.claim(BERT)
    assert log.claim_of().given_up == ((20, 30), (30, 40))


def test_a_seek_back_does_again_what_was_given_up() -> None:
    log = claimed_to(30, position=20)
    log.claim(BERT)
    log.say(Seeking, BERT, partition=WEB, if_token=2, position=25)
    assert log.claim_of().given_up == ((20, 25),)
    assert log.say(ClaimingMessages, BERT, partition=WEB, token=2, end=28) is None
    log.claim(ANNA)
    assert log.claim_of().given_up == ((20, 25), (25, 28))


def test_a_seek_forward_keeps_what_was_given_up() -> None:
    log = claimed_to(30, position=20)
    log.claim(BERT)
    log.say(Seeking, BERT, partition=WEB, if_token=2, position=100)
    assert log.claim_of().given_up == ((20, 30),)


# opening and closing


def test_ranges_are_opened_once_and_by_the_owner() -> None:
    log = annas()
    assert log.say(OpeningRanges, BERT, partition=WEB, token=1, start=0) is not None
    assert log.say(OpeningRanges, ANNA, partition=WEB, token=0, start=0) is not None
    assert log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=0) is None
    assert log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=0) is not None


def test_ranges_do_not_begin_before_the_position() -> None:
    log = annas(position=7)
    assert log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=6) is not None
    assert log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=7) is None


def test_ranges_are_not_opened_over_claimed_messages() -> None:
    log = claimed_to(30, position=20)
    assert log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=30) is not None
    log.beat(ANNA, 1, 30)
    assert log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=30) is None


def test_ranges_that_are_not_open_cannot_be_closed() -> None:
    log = annas()
    assert log.say(ClosingRanges, ANNA, partition=WEB, token=1) is not None
