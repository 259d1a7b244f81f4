"""The fold of claims: compare and swap, tokens, positions, at most once."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.claims.protocol.fold import LOSSES_LISTED_MAX, losing
from penstock.claims.protocol.records import (
    Beat,
    ClaimingMessages,
    ClaimingPartition,
    ClaimRequest,
    ForgettingMember,
    ForgettingPartitions,
    FreeingPartition,
    Heartbeat,
    LeavingGroup,
    MemberId,
    ReleaseGroup,
    ReleasingPartition,
    Seeking,
)
from penstock.claims.protocol.state import Claim
from tests.support.coordination import ANNA, BERT, CLEO, WEB, Log, web

ANNA_AGAIN = MemberId("anna", "a2")
ADMIN = MemberId("admin", "x")


def annas(position: int | None = None) -> Log:
    """A log in which anna holds the partition under token 1."""
    log = Log()
    assert log.claim(ANNA) is None
    if position is not None:
        log.beat(ANNA, 1, position)
    return log


def held(log: Log, **content: Any) -> bool:
    """Whether the claim is anna's under token 1, with this content."""
    claim = log.claim_of()
    expected = Claim(token=1, owner=ANNA, held=True, last=claim.last, **content)
    return claim == expected


def silence(log: Log, who: MemberId) -> None:
    """All readers agree that a member has left."""
    last = log.state.members[who.client_id].last
    assert log.append(ForgettingMember, CLEO, client_id=who.client_id, if_last=last) is None


# claiming


def test_a_free_partition_is_claimed() -> None:
    assert annas().claim_of() == Claim(token=1, owner=ANNA, held=True, last=3)


def test_of_two_claimants_the_first_in_the_log_wins() -> None:
    log = annas()
    assert log.append(ClaimingPartition, BERT, requests=(ClaimRequest(WEB),)) is not None
    assert log.claim_of().held_by(ANNA)


def test_one_record_claims_many_and_each_has_a_verdict_of_its_own() -> None:
    log = annas()
    requests = (
        ClaimRequest(WEB),
        ClaimRequest(web(1)),
        ClaimRequest(web(2), if_token=7),
        ClaimRequest(web(3), floor=4),
    )
    assert log.append(ClaimingPartition, BERT, requests=requests) is None
    assert log.claim_of().held_by(ANNA)
    assert log.claim_of(web(1)).held_by(BERT)
    assert log.claim_of(web(2)) == Claim()
    assert log.claim_of(web(3)).token == 5


def test_a_held_partition_is_not_taken_without_an_eviction() -> None:
    log = annas(position=7)
    assert log.claim(BERT) is not None
    assert log.claim_of().held_by(ANNA)


def test_a_silent_owner_loses_all_claims_by_one_record_that_names_its_last_heartbeat() -> None:
    log = annas(position=7)
    log.claim(ANNA, web(1))
    silence(log, ANNA)
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=False, last=6, position=7)
    assert not log.claim_of(web(1)).held
    assert log.claim(BERT) is None
    assert log.claim_of() == Claim(token=2, owner=BERT, held=True, last=7, position=7)


@pytest.mark.parametrize("kind", ["heartbeat", "claim", "refused"])
def test_any_record_of_a_silent_member_defeats_its_eviction(kind: str) -> None:
    log = annas()
    last = log.state.members["anna"].last
    if kind == "heartbeat":
        log.append(Heartbeat, ANNA)
    elif kind == "claim":
        log.claim(ANNA, web(1))
    else:
        assert log.append(ReleasingPartition, ANNA, beats=(Beat(web(5), 9),)) is not None
    assert log.append(ForgettingMember, BERT, client_id="anna", if_last=last) is not None
    assert log.claim_of().held_by(ANNA)


@pytest.mark.parametrize("if_token", [0, 2])
def test_a_claim_based_on_stale_state_is_refused(if_token: int) -> None:
    log = annas()
    log.release(ANNA, 1)
    assert log.append(ClaimingPartition, BERT, requests=(ClaimRequest(WEB, if_token),)) is not None
    assert not log.claim_of().held


def test_only_members_claim() -> None:
    log = Log(BERT)
    assert log.claim(ANNA) is not None
    log.join(ANNA)
    assert log.claim(ANNA) is None


def test_a_claim_that_was_under_way_when_its_sender_left_is_refused() -> None:
    log = annas()
    assert log.append(LeavingGroup, ANNA, beats=(Beat(WEB, 1, 20),)) is None
    assert log.claim(ANNA, web(1)) is not None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=False, last=4, position=20)


def test_m1_a_token_is_beyond_what_the_table_has() -> None:
    log = Log()
    log.claim(ANNA, floor=41)
    assert log.claim_of().token == 42


def test_m1_a_lower_floor_does_not_lower_the_token() -> None:
    log = Log()
    log.claim(ANNA, floor=41)
    log.release(ANNA, 42)
    log.claim(BERT, floor=3)
    assert log.claim_of().token == 43


def test_m2_partitions_of_a_recreated_topic_are_other_partitions() -> None:
    log = annas()
    recreated = type(WEB)(WEB.topic, "another id", WEB.number)
    assert log.claim(BERT, recreated) is None
    assert log.claim_of(recreated).token == 1
    assert log.claim_of().held_by(ANNA)


def test_unrequested_free_partitions_are_forgotten_and_held_ones_are_not() -> None:
    log = annas()
    log.claim(ANNA, web(1))
    log.append(ReleasingPartition, ANNA, beats=(Beat(web(1), 1),))
    assert log.append(ForgettingPartitions, BERT, partitions=(WEB, web(1))) is None
    assert list(log.state.claims) == [WEB]
    assert log.append(ForgettingPartitions, BERT, partitions=(web(1),)) is not None


# heartbeats


def test_m2_a_heartbeat_of_the_present_token_always_renews() -> None:
    log = annas(position=7)
    assert log.beat(ANNA, 1, 3) is None
    assert log.state.members["anna"].last == log.end - 1
    assert log.claim_of().position == 7, "the maximum counts"


@pytest.mark.parametrize(("who", "token"), [(BERT, 1), (ANNA, 0), (ANNA, 2), (ANNA_AGAIN, 1)])
def test_a_heartbeat_of_another_member_renews_nothing(who: MemberId, token: int) -> None:
    log = annas(position=7)
    before = log.claim_of()
    log.beat(who, token, 100)
    assert log.claim_of() == before


def test_a_heartbeat_renews_only_what_its_sender_still_holds() -> None:
    log = annas()
    log.claim(BERT, web(1))
    beats = (Beat(WEB, 1, 5, lag=3), Beat(web(1), 1, 50), Beat(web(2), 1, 50))
    assert log.append(Heartbeat, ANNA, beats=beats) is None
    assert held(log, position=5, lag=3)
    assert log.claim_of(web(1)).position is None
    assert web(2) not in log.state.claims


def test_a_released_partition_is_not_renewed() -> None:
    log = annas()
    log.release(ANNA, 1)
    log.beat(ANNA, 1, 5)
    assert log.claim_of().position is None


# releasing


def test_a_release_keeps_the_position_and_who_it_was() -> None:
    log = annas(position=7)
    assert log.release(ANNA, 1, position=20) is None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=False, last=5, position=20)


def test_a_release_does_not_lower_the_position() -> None:
    log = annas(position=7)
    assert log.release(ANNA, 1, position=3) is None
    assert log.claim_of().position == 7


@pytest.mark.parametrize(("who", "token"), [(BERT, 1), (ANNA, 0), (ANNA, 2), (ANNA_AGAIN, 1)])
def test_only_the_owner_releases_a_partition(who: MemberId, token: int) -> None:
    log = annas()
    assert log.release(who, token) is not None
    assert log.claim_of().held_by(ANNA)


def test_a_partition_is_released_once() -> None:
    log = annas()
    log.release(ANNA, 1, position=20)
    assert log.release(ANNA, 1, position=30) is not None
    assert log.claim_of().position == 20


def test_a_released_partition_is_claimed_with_the_next_token() -> None:
    log = annas()
    log.release(ANNA, 1, position=20)
    assert log.claim(BERT) is None
    assert log.claim_of() == Claim(token=2, owner=BERT, held=True, last=5, position=20)


# seeking


def test_the_owner_seeks_back() -> None:
    log = annas(position=7)
    assert log.append(Seeking, ANNA, partition=WEB, if_token=1, position=2) is None
    assert held(log, position=2, seeks=1)


def test_a_heartbeat_that_was_under_way_does_not_undo_a_seek() -> None:
    log = annas(position=7)
    log.append(Seeking, ANNA, partition=WEB, if_token=1, position=2)
    log.append(Heartbeat, ANNA, beats=(Beat(WEB, 1, 9, seeks=0),))
    assert log.claim_of().position == 2
    log.append(Heartbeat, ANNA, beats=(Beat(WEB, 1, 3, seeks=1),))
    assert log.claim_of().position == 3


def test_a_seek_that_arrives_twice_counts_once() -> None:
    log = annas(position=7)
    log.append(Seeking, ANNA, partition=WEB, if_token=1, position=2)
    log.beat(ANNA, 1, 6)
    assert log.append(Seeking, ANNA, partition=WEB, if_token=1, position=2) is not None
    assert log.claim_of().position == 6


def test_messages_claimed_before_a_seek_do_not_count_after_it() -> None:
    log = annas(position=7)
    log.append(Seeking, ANNA, partition=WEB, if_token=1, position=2)
    assert log.append(ClaimingMessages, ANNA, partition=WEB, token=1, end=20) is not None
    assert log.append(ClaimingMessages, ANNA, partition=WEB, token=1, if_seeks=1, end=20) is None


def test_every_member_may_seek_in_a_free_partition() -> None:
    log = Log()
    assert log.append(Seeking, ADMIN, partition=WEB, if_token=0, position=5) is None
    assert log.claim_of() == Claim(last=3, position=5, seeks=1)


@pytest.mark.parametrize(("who", "if_token"), [(BERT, 1), (ANNA, 0), (ANNA, 2), (ANNA_AGAIN, 1)])
def test_no_member_seeks_in_partitions_of_another(who: MemberId, if_token: int) -> None:
    log = annas(position=7)
    assert log.append(Seeking, who, partition=WEB, if_token=if_token, position=0) is not None
    assert log.claim_of().position == 7


# freeing by hand


def test_an_administrator_frees_a_partition_under_an_unused_token() -> None:
    log = annas(position=7)
    assert log.append(FreeingPartition, ADMIN, partition=WEB, if_token=1) is None
    claim = log.claim_of()
    assert (claim.token, claim.owner, claim.held, claim.position) == (2, ADMIN, False, 7)
    assert claim.freed_from == "anna", "another member goes first"
    log.beat(ANNA, 1, 9)
    assert log.claim_of().position == 7, "its owner is fenced"
    assert log.append(FreeingPartition, ADMIN, partition=WEB, if_token=1) is not None


def test_an_administrator_sets_the_position_too_and_waits_for_a_pause_to_end() -> None:
    log = annas(position=7)
    log.append(ReleaseGroup, ADMIN, pause_id="p")
    assert log.append(FreeingPartition, ADMIN, partition=WEB, if_token=1, position=2) is not None
    log = annas(position=7)
    assert log.append(FreeingPartition, ADMIN, partition=WEB, if_token=1, position=2) is None
    assert (log.claim_of().position, log.claim_of().seeks) == (2, 1)


# at most once


def claimed_to(end: int, position: int | None = None) -> Log:
    log = annas(position)
    assert log.append(ClaimingMessages, ANNA, partition=WEB, token=1, end=end) is None
    return log


def test_messages_are_claimed_by_the_owner() -> None:
    assert held(claimed_to(10), claimed=10)


@pytest.mark.parametrize("end", [0, 9, 10])
def test_messages_are_claimed_once(end: int) -> None:
    assert claimed_to(10).append(ClaimingMessages, ANNA, partition=WEB, token=1, end=end) is not None


def test_processed_messages_are_not_claimed() -> None:
    log = annas(position=20)
    assert log.append(ClaimingMessages, ANNA, partition=WEB, token=1, end=20) is not None
    assert log.append(ClaimingMessages, ANNA, partition=WEB, token=1, end=21) is None


@pytest.mark.parametrize(("who", "token"), [(BERT, 1), (ANNA, 0), (ANNA_AGAIN, 1)])
def test_messages_are_claimed_by_one_member(who: MemberId, token: int) -> None:
    assert annas().append(ClaimingMessages, who, partition=WEB, token=token, end=10) is not None


def test_m6_records_claimed_by_a_dead_owner_are_given_up_and_listed() -> None:
    log = claimed_to(30, position=20)
    silence(log, ANNA)
    log.claim(BERT)
    assert log.claim_of() == Claim(
        token=2, owner=BERT, held=True, last=7, position=30, claimed=30, given_up=((20, 30),)
    )


def test_m6_acknowledged_records_are_not_given_up() -> None:
    log = claimed_to(30, position=20)
    log.beat(ANNA, 1, 30)
    silence(log, ANNA)
    log.claim(BERT)
    assert log.claim_of().given_up == ()


def test_m6_a_release_gives_up_claimed_records_that_are_not_done() -> None:
    log = claimed_to(30, position=20)
    log.release(ANNA, 1, position=25)
    log.claim(BERT)
    assert log.claim_of().given_up == ((25, 30),)


def test_m6_every_loss_is_listed_once() -> None:
    log = claimed_to(30, position=20)
    silence(log, ANNA)
    log.claim(BERT)
    silence(log, BERT)
    log.claim(CLEO)
    log.append(ClaimingMessages, CLEO, partition=WEB, token=3, end=40)
    log.release(CLEO, 3)
    log.join(BERT)
    log.claim(BERT)
    assert log.claim_of().given_up == ((20, 40),)


def test_a_seek_back_does_again_what_was_given_up() -> None:
    log = claimed_to(30, position=20)
    silence(log, ANNA)
    log.claim(BERT)
    log.append(Seeking, BERT, partition=WEB, if_token=2, position=25)
    assert log.claim_of().given_up == ((20, 25),)
    assert log.append(ClaimingMessages, BERT, partition=WEB, token=2, if_seeks=1, end=28) is None
    silence(log, BERT)
    log.claim(CLEO)
    assert log.claim_of().given_up == ((20, 28),)


def test_m6_a_seek_lists_what_was_claimed_before_its_position_and_never_done() -> None:
    log = claimed_to(100, position=50)
    silence(log, ANNA)
    assert log.append(FreeingPartition, BERT, partition=WEB, if_token=1, position=80) is None
    assert (log.claim_of().position, log.claim_of().given_up) == (80, ((50, 80),))


def test_a_seek_forward_keeps_what_was_given_up() -> None:
    log = claimed_to(30, position=20)
    silence(log, ANNA)
    log.claim(BERT)
    log.append(Seeking, BERT, partition=WEB, if_token=2, position=100)
    assert log.claim_of().given_up == ((20, 30),)


def test_old_losses_are_counted_and_no_longer_listed() -> None:
    losses = tuple((start, start + 1) for start in range(0, 2 * (LOSSES_LISTED_MAX + 5), 2))
    claim = losing(Claim(given_up_before=2), *losses)
    assert (len(claim.given_up), claim.given_up_before) == (LOSSES_LISTED_MAX, 2 + 5)
    assert claim.given_up[-1] == losses[-1]
    assert losing(Claim(), (1, 2), (2, 5), (7, 8)).given_up == ((1, 5), (7, 8))
