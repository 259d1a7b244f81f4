"""The fold of ranges: one partition, several members, every offset leased to one of them at a time."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.claims.protocol.fold_ranges import LOSSES_LISTED_MAX, losing
from penstock.claims.protocol.records import (
    ClaimingRange,
    ClosingRanges,
    FinishingRange,
    ForgettingMember,
    GivingUpRange,
    OpeningRanges,
    Record,
    ReturningRange,
    Seeking,
    Who,
)
from penstock.claims.protocol.state import Claim, Lease, Ranges
from tests.coordination import ANNA, BERT, CLEO, WEB, Log


def shared(*, at_most_once: bool = False) -> Log:
    """Anna owns the partition (token 1) and shares it from 100 on."""
    log = Log()
    log.claim(ANNA)
    assert log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=100, at_most_once=at_most_once) is None
    return log


def leased(*, at_most_once: bool = False) -> Log:
    """Bert works on [100, 110) by the record at 5, cleo on [110, 120) by the record at 6."""
    log = shared(at_most_once=at_most_once)
    assert log.lease_next(BERT) is None
    assert log.lease_next(CLEO) is None
    return log


def finish(log: Log, who: Who, start: int, lease: int, token: int = 1) -> str | None:
    return log.say(FinishingRange, who, partition=WEB, token=token, start=start, lease=lease)


def give_up(log: Log, start: int, if_lease: int) -> str | None:
    return log.say(GivingUpRange, ANNA, partition=WEB, token=1, start=start, if_lease=if_lease)


def take_over(log: Log, who: Who, start: int, end: int, if_lease: int) -> str | None:
    return log.say(ClaimingRange, who, partition=WEB, token=1, start=start, end=end, if_lease=if_lease)


def silence(log: Log, who: Who) -> None:
    """Everybody agrees that a member is dead."""
    last = log.state.members[who.client_id].last
    assert log.say(ForgettingMember, ANNA, client_id=who.client_id, if_last=last) is None


# leasing


def test_members_lease_one_range_after_another() -> None:
    assert leased().claim_of() == Claim(
        token=1,
        owner=ANNA,
        held=True,
        last=4,
        ranges=Ranges(120, (Lease(100, 110, 5, BERT), Lease(110, 120, 6, CLEO))),
    )


def test_of_two_that_want_one_range_the_first_in_the_log_gets_it() -> None:
    log = leased()
    assert log.say(ClaimingRange, CLEO, partition=WEB, token=1, start=100, end=110) is not None
    assert log.lease(100).owner == BERT


@pytest.mark.parametrize(
    ("start", "end", "token"),
    [(100, 130, 1), (119, 130, 1), (121, 130, 1), (120, 120, 1), (120, 110, 1), (120, 130, 0), (120, 130, 2)],
)
def test_a_range_that_is_not_the_next_is_refused(start: int, end: int, token: int) -> None:
    log = leased()
    before = log.claim_of()
    assert log.say(ClaimingRange, BERT, partition=WEB, token=token, start=start, end=end) is not None
    assert log.claim_of() == before


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (ClaimingRange, {"start": 0, "end": 10}),
        (FinishingRange, {"start": 0, "lease": 0}),
        (ReturningRange, {"start": 0, "lease": 0}),
        (GivingUpRange, {"start": 0, "if_lease": 0}),
    ],
    ids=lambda part: part.__name__ if isinstance(part, type) else "",
)
def test_there_are_no_ranges_in_a_partition_that_is_not_shared(kind: type[Record], content: dict[str, Any]) -> None:
    log = Log()
    assert log.say(kind, BERT, partition=WEB, token=0, **content) is not None, "nobody holds it"
    log.claim(ANNA)
    assert log.say(kind, BERT, partition=WEB, token=1, **content) is not None, "its owner works alone"


# finishing


def test_the_position_moves_over_finished_prefixes_only() -> None:
    log = leased()
    assert finish(log, CLEO, 110, 6) is None
    assert log.claim_of().position is None
    assert finish(log, BERT, 100, 5) is None
    assert log.claim_of().position == 120
    assert log.claim_of().leases == ()


@pytest.mark.parametrize(("who", "start", "lease", "token"), [(CLEO, 100, 5, 1), (BERT, 100, 6, 1), (BERT, 101, 5, 1)])
def test_only_its_holder_finishes_a_range(who: Who, start: int, lease: int, token: int) -> None:
    log = leased()
    assert finish(log, who, start, lease, token) is not None
    assert not log.lease(100).done


def test_p16_a_range_is_finished_once() -> None:
    log = leased()
    finish(log, CLEO, 110, 6)
    assert finish(log, CLEO, 110, 6) is not None, "while it waits for the range before it"
    finish(log, BERT, 100, 5)
    assert finish(log, CLEO, 110, 6) is not None, "and when the position has passed it"


def test_p16_a_late_finish_of_a_range_that_was_taken_over_is_refused() -> None:
    log = leased()
    silence(log, BERT)
    assert take_over(log, CLEO, 100, 110, if_lease=5) is None
    log.join(BERT)
    assert finish(log, BERT, 100, 5) is not None
    assert log.lease(100) == Lease(100, 110, 8, CLEO, attempts=2)
    assert finish(log, CLEO, 100, 8) is None


def test_p16_a_late_finish_under_an_old_token_is_refused() -> None:
    log = leased()
    log.release(ANNA, 1)
    log.claim(CLEO)
    log.say(OpeningRanges, CLEO, partition=WEB, token=2, start=100)
    log.lease_next(BERT)
    assert finish(log, BERT, 100, 5, token=1) is not None
    assert finish(log, BERT, 100, 5, token=2) is not None, "the lease of the old owner's ranges is no lease of these"


# taking over


def test_a_range_whose_holder_lives_is_not_taken_over() -> None:
    log = leased()
    assert take_over(log, CLEO, 100, 110, if_lease=5) is not None
    assert give_up(log, 100, if_lease=5) is not None
    assert log.lease(100).owner == BERT


def test_the_ranges_of_a_dead_member_are_nobodys_and_taken_over_as_a_whole() -> None:
    log = leased()
    silence(log, BERT)
    assert log.lease(100) == Lease(100, 110, 5, None)
    assert log.lease(110).owner == CLEO
    assert take_over(log, CLEO, 100, 105, if_lease=5) is not None
    assert take_over(log, CLEO, 100, 120, if_lease=5) is not None
    assert take_over(log, CLEO, 100, 110, if_lease=4) is not None
    assert take_over(log, CLEO, 100, 110, if_lease=5) is None


def test_a_range_is_taken_over_as_a_whole() -> None:
    log = leased()
    silence(log, BERT)
    assert take_over(log, CLEO, 100, 109, if_lease=5) is not None


def test_a_returned_range_is_leased_again() -> None:
    log = leased()
    assert log.say(ReturningRange, BERT, partition=WEB, token=1, start=100, lease=5) is None
    assert log.lease(100) == Lease(100, 110, 5, None)
    assert take_over(log, CLEO, 100, 110, if_lease=5) is None
    assert log.lease(100) == Lease(100, 110, 8, CLEO, attempts=2)


def test_only_its_holder_returns_a_range_and_once() -> None:
    log = leased()
    assert log.say(ReturningRange, CLEO, partition=WEB, token=1, start=100, lease=5) is not None
    assert log.say(ReturningRange, BERT, partition=WEB, token=1, start=100, lease=5) is None
    assert log.say(ReturningRange, BERT, partition=WEB, token=1, start=100, lease=5) is not None


def test_a_finished_range_is_not_taken_over() -> None:
    log = leased()
    finish(log, CLEO, 110, 6)
    silence(log, CLEO)
    assert take_over(log, BERT, 110, 120, if_lease=6) is not None


# giving up


def test_a_range_that_is_given_up_counts_as_over_and_is_listed() -> None:
    log = leased()
    silence(log, BERT)
    assert give_up(log, 100, if_lease=5) is None
    assert log.claim_of().position == 110
    assert log.claim_of().given_up == ((100, 110),)


def test_a_range_is_given_up_once() -> None:
    log = leased()
    silence(log, CLEO)
    give_up(log, 110, if_lease=6)
    assert give_up(log, 110, if_lease=6) is not None


def test_a_loss_is_listed_when_the_position_passes_it() -> None:
    log = leased()
    silence(log, CLEO)
    give_up(log, 110, if_lease=6)
    assert log.claim_of().given_up == ()
    finish(log, BERT, 100, 5)
    assert log.claim_of().given_up == ((110, 120),)
    assert log.claim_of().position == 120


def test_a_loss_that_becomes_void_is_not_listed() -> None:
    log = leased()
    silence(log, CLEO)
    give_up(log, 110, if_lease=6)
    log.release(ANNA, 1)
    log.claim(BERT)
    assert log.claim_of().given_up == ()
    assert log.claim_of().position is None, "the next owner does both ranges"


def test_old_losses_are_counted_and_no_longer_listed() -> None:
    losses = tuple((start, start + 1) for start in range(0, 2 * (LOSSES_LISTED_MAX + 5), 2))
    claim = losing(Claim(given_up_before=2), *losses)
    assert (len(claim.given_up), claim.given_up_before) == (LOSSES_LISTED_MAX, 2 + 5)
    assert claim.given_up[-1] == losses[-1]
    assert losing(Claim(), (1, 2), (2, 5), (7, 8)).given_up == ((1, 5), (7, 8))


# at most once


def test_a_range_of_at_most_once_work_is_never_done_again() -> None:
    log = leased(at_most_once=True)
    silence(log, BERT)
    assert take_over(log, CLEO, 100, 110, if_lease=5) is not None
    assert give_up(log, 100, if_lease=5) is None


def test_m6_unfinished_ranges_of_at_most_once_work_are_given_up_with_their_owner() -> None:
    log = leased(at_most_once=True)
    finish(log, CLEO, 110, 6)
    log.lease_next(CLEO)
    last = log.state.members["anna"].last
    assert log.say(ForgettingMember, CLEO, client_id="anna", if_last=last) is None
    assert log.claim(CLEO) is None
    assert log.claim_of().given_up == ((100, 110), (120, 130))
    assert log.claim_of().position == 130, "nobody does them again"
    assert log.say(OpeningRanges, CLEO, partition=WEB, token=2, start=100) is not None


def test_m6_a_release_gives_up_unfinished_ranges_of_at_most_once_work() -> None:
    log = leased(at_most_once=True)
    log.release(ANNA, 1, position=100)
    assert log.claim_of().given_up == ((100, 120),)
    assert log.claim_of().position == 120


# the end of sharing


def test_ranges_are_closed_when_all_are_over() -> None:
    log = leased()
    assert log.say(ClosingRanges, ANNA, partition=WEB, token=1) is not None
    finish(log, BERT, 100, 5)
    finish(log, CLEO, 110, 6)
    assert log.say(ClosingRanges, BERT, partition=WEB, token=1) is not None, "only the owner closes"
    assert log.say(ClosingRanges, ANNA, partition=WEB, token=1) is None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=True, last=11, position=120)


def test_m5_ranges_are_void_under_a_new_owner() -> None:
    log = leased()
    finish(log, CLEO, 110, 6)
    log.release(ANNA, 1)
    log.claim(BERT)
    assert log.claim_of() == Claim(token=2, owner=BERT, held=True, last=9)


def test_ranges_are_void_after_a_release_and_a_seek() -> None:
    log = leased()
    assert log.say(Seeking, ANNA, partition=WEB, if_token=1, position=50) is None
    assert finish(log, BERT, 100, 5) is not None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=True, last=7, position=50, seeks=1)
    log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=50)
    log.lease_next(BERT)
    log.release(ANNA, 1, position=50)
    assert finish(log, BERT, 50, 10) is not None
    assert log.claim_of().ranges is None


def test_a_range_may_be_leased_before_its_records_exist() -> None:
    log = shared()
    assert log.lease_next(BERT, size=1_000_000) is None
    assert log.lease(100).end == 1_000_100
