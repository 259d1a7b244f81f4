"""The fold of members and pauses: who has a client id, and when nobody may claim."""

from __future__ import annotations

from penstock.claims.protocol.fold import skip
from penstock.claims.protocol.records import (
    ClaimingRange,
    ForgettingMember,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    OpeningRanges,
    Presence,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    Who,
)
from penstock.claims.protocol.state import LogState, MemberState, Pause
from tests.coordination import ANNA, BERT, GROUP, WEB, Log

ANNA_AGAIN = Who("anna", "a2")


def joined() -> Log:
    log = Log()
    assert log.say(JoiningGroup, ANNA, if_last=None, presence=Presence(4, 100)) is None
    return log


# members


def test_a_new_client_id_joins() -> None:
    assert joined().group().members == {"anna": MemberState(ANNA, last=0, present=True, presence=Presence(4, 100))}


def test_a_newcomer_that_did_not_see_the_old_process_is_refused() -> None:
    log = joined()
    assert log.say(JoiningGroup, ANNA_AGAIN, if_last=None, presence=Presence()) is not None
    assert log.group().members["anna"].who == ANNA


def test_a_newcomer_is_refused_if_the_old_process_spoke_meanwhile() -> None:
    log = joined()
    assert log.beat_at_home(ANNA) is None
    assert log.say(JoiningGroup, ANNA_AGAIN, if_last=0, presence=Presence()) is not None
    assert log.group().members["anna"].who == ANNA


def test_a_newcomer_replaces_a_process_that_stayed_silent() -> None:
    log = joined()
    assert log.say(JoiningGroup, ANNA_AGAIN, if_last=0, presence=Presence(2)) is None
    assert log.group().members["anna"] == MemberState(ANNA_AGAIN, last=1, presence=Presence(2))


def test_of_two_newcomers_the_first_in_the_log_gets_the_client_id() -> None:
    log = joined()
    third = Who("anna", "a3")
    assert log.say(JoiningGroup, ANNA_AGAIN, if_last=0, presence=Presence()) is None
    assert log.say(JoiningGroup, third, if_last=0, presence=Presence()) is not None
    assert log.group().members["anna"].who == ANNA_AGAIN


def test_the_voice_of_a_replaced_process_counts_no_more() -> None:
    log = joined()
    log.say(JoiningGroup, ANNA_AGAIN, if_last=0, presence=Presence())
    before = log.group()
    assert log.beat_at_home(ANNA) is not None
    assert log.say(LeavingGroup, ANNA) is not None
    assert log.group() == before


def test_a_member_that_left_is_kept_as_absent() -> None:
    log = joined()
    assert log.say(LeavingGroup, ANNA) is None
    assert log.group().members["anna"] == MemberState(ANNA, last=1, present=False)


def test_after_a_clean_leave_the_next_process_joins() -> None:
    log = joined()
    log.say(LeavingGroup, ANNA)
    assert log.say(JoiningGroup, ANNA_AGAIN, if_last=1, presence=Presence()) is None
    assert log.group().members["anna"].present


def test_a_member_that_left_is_not_brought_back_by_a_late_heartbeat() -> None:
    log = joined()
    log.say(LeavingGroup, ANNA)
    assert log.beat_at_home(ANNA) is not None
    assert not log.group().members["anna"].present


def test_nobody_leaves_who_never_joined() -> None:
    assert Log().say(LeavingGroup, ANNA) is not None


def test_a_heartbeat_at_home_renews_its_sender() -> None:
    log = joined()
    assert log.say(Heartbeat, ANNA, presence=Presence(4, 7)) is None
    assert log.group().members["anna"] == MemberState(ANNA, last=1, presence=Presence(4, 7))


def test_a_heartbeat_of_somebody_who_never_joined_makes_no_member() -> None:
    log = Log()
    assert log.beat_at_home(ANNA) is not None
    assert log.group().members == {}


def test_a_heartbeat_of_nothing_is_refused() -> None:
    assert joined().say(Heartbeat, ANNA) is not None


def test_a_silent_member_is_forgotten() -> None:
    log = joined()
    assert log.say(ForgettingMember, BERT, client_id="anna", if_last=0) is None
    assert log.group().members == {}


def test_a_member_that_spoke_meanwhile_is_not_forgotten() -> None:
    log = joined()
    log.beat_at_home(ANNA)
    assert log.say(ForgettingMember, BERT, client_id="anna", if_last=0) is not None
    assert "anna" in log.group().members


def test_nobody_is_forgotten_twice() -> None:
    log = joined()
    log.say(ForgettingMember, BERT, client_id="anna", if_last=0)
    assert log.say(ForgettingMember, BERT, client_id="anna", if_last=0) is not None


def test_a_forgotten_member_joins_again_as_if_new() -> None:
    log = joined()
    log.say(ForgettingMember, BERT, client_id="anna", if_last=0)
    assert log.say(JoiningGroup, ANNA, if_last=0, presence=Presence()) is not None
    assert log.say(JoiningGroup, ANNA, if_last=None, presence=Presence()) is None


# pauses


def paused() -> Log:
    log = Log()
    log.claim(ANNA)
    assert log.say(ReleaseGroup, BERT, pause_id="p", until_at=100.0, reason="upgrade") is None
    return log


def test_a_pause_says_who_until_when_and_why() -> None:
    assert paused().group().pauses == {"p": Pause("bert", 100.0, "upgrade")}


def test_m4_nobody_claims_while_the_group_is_paused() -> None:
    log = paused()
    assert log.claim(BERT) is not None
    assert log.claim_of().held_by(ANNA)


def test_m4_nobody_claims_a_range_while_the_group_is_paused() -> None:
    log = Log()
    log.claim(ANNA)
    log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=0)
    log.lease_next(ANNA)
    log.say(ReleaseGroup, BERT, pause_id="p")
    assert log.lease_next(BERT) is not None
    assert log.say(ClaimingRange, BERT, partition=WEB, token=1, start=0, end=10, if_last=2) is not None
    assert log.lease(0).owner == ANNA


def test_m4_an_owner_goes_on_beating_and_releases_while_the_group_is_paused() -> None:
    log = paused()
    assert log.beat(ANNA, 1, 5) is None
    assert log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=9) is None
    assert not log.claim_of().held
    assert log.claim_of().position == 9


def test_m4_only_the_resume_of_that_pause_ends_it() -> None:
    log = paused()
    log.say(ReleaseGroup, ANNA, pause_id="q")
    assert log.say(ResumingGroup, ANNA, pause_id="other") is not None
    assert log.say(ResumingGroup, ANNA, pause_id="p") is None
    assert log.claim(BERT) is not None, "the other pause still holds"
    assert log.say(ResumingGroup, ANNA, pause_id="q") is None
    assert log.claim(BERT) is None


def test_a_pause_is_resumed_once() -> None:
    log = paused()
    log.say(ResumingGroup, ANNA, pause_id="p")
    assert log.say(ResumingGroup, BERT, pause_id="p") is not None


def test_a_pause_of_another_group_holds_nobody_here() -> None:
    log = Log()
    log.say(ReleaseGroup, BERT, group="other", pause_id="p")
    assert log.claim(ANNA) is None


# places


def test_a_refused_record_moves_on_and_changes_nothing_else() -> None:
    log = joined()
    before = log.state
    log.say(LeavingGroup, BERT)
    assert log.state == LogState(2, before.groups)
    assert log.group("never") == LogState().group(GROUP)


def test_bytes_of_others_are_passed_over() -> None:
    log = joined()
    assert skip(log.state, 1) == LogState(2, log.state.groups)
