"""The fold of members and pauses: which process has a client id, and when no member may claim."""

from __future__ import annotations

from penstock.claims.protocol.records import (
    ForgettingMember,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    MemberId,
    ReleaseGroup,
    ResumingGroup,
    requested_topics,
)
from penstock.claims.protocol.state import MemberState, Pause
from tests.support.coordination import ANNA, BERT, INTERVAL, WEB, Log, web

ANNA_AGAIN = MemberId("anna", "a2")
TOPICS = requested_topics([WEB])


def joined() -> Log:
    log = Log(BERT)
    assert log.join(ANNA) is None
    return log


def join(log: Log, who: MemberId, if_last: int | None, **content: object) -> str | None:
    joining = {"heartbeat_seconds": INTERVAL, "wants": TOPICS, **content}
    return log.append(JoiningGroup, who, if_last=if_last, **joining)


# members


def test_a_new_client_id_joins() -> None:
    assert joined().state.members["anna"] == MemberState(ANNA, 1, True, TOPICS)


def test_a_new_process_that_did_not_read_the_old_one_is_refused() -> None:
    log = joined()
    assert join(log, ANNA_AGAIN, None) is not None
    assert log.state.members["anna"].who == ANNA


def test_a_new_process_is_refused_if_the_old_one_sent_a_heartbeat_meanwhile() -> None:
    log = joined()
    assert log.append(Heartbeat, ANNA) is None
    assert join(log, ANNA_AGAIN, 1) is not None
    assert log.state.members["anna"].who == ANNA


def test_a_new_process_replaces_a_silent_one_and_its_claims_are_free() -> None:
    log = joined()
    log.claim(ANNA)
    assert join(log, ANNA_AGAIN, 2) is None
    assert log.state.members["anna"].who == ANNA_AGAIN
    assert not log.claim_of().held


def test_of_two_newcomers_the_first_in_the_log_gets_the_client_id() -> None:
    log = joined()
    assert join(log, ANNA_AGAIN, 1) is None
    assert join(log, MemberId("anna", "a3"), 1) is not None
    assert log.state.members["anna"].who == ANNA_AGAIN


def test_a_joined_member_does_not_join_again() -> None:
    log = joined()
    assert join(log, ANNA, 1) is not None


def test_records_of_a_replaced_process_are_ignored() -> None:
    log = joined()
    join(log, ANNA_AGAIN, 1)
    before = dict(log.state.members)
    assert log.append(Heartbeat, ANNA) is not None
    assert log.append(LeavingGroup, ANNA) is not None
    assert log.state.members == before


def test_a_member_that_left_is_kept_as_absent() -> None:
    log = joined()
    assert log.append(LeavingGroup, ANNA) is None
    assert log.state.members["anna"] == MemberState(ANNA, last=2, present=False)


def test_after_a_clean_leave_the_next_process_joins() -> None:
    log = joined()
    log.append(LeavingGroup, ANNA)
    assert join(log, ANNA_AGAIN, 2) is None
    assert log.state.members["anna"].present


def test_a_member_that_left_is_not_brought_back_by_a_late_heartbeat() -> None:
    log = joined()
    log.append(LeavingGroup, ANNA)
    assert log.append(Heartbeat, ANNA) is not None
    assert not log.state.members["anna"].present


def test_a_heartbeat_takes_over_what_changed_and_keeps_the_rest() -> None:
    log = joined()
    assert log.append(Heartbeat, ANNA) is None
    assert log.state.members["anna"] == MemberState(ANNA, 2, True, TOPICS)
    assert log.append(Heartbeat, ANNA, wants=requested_topics([web(1)])) is None
    assert log.state.members["anna"] == MemberState(ANNA, 3, True, requested_topics([web(1)]))


def test_a_heartbeat_of_an_unknown_process_creates_no_member() -> None:
    log = Log(BERT)
    assert log.append(Heartbeat, ANNA) is not None
    assert "anna" not in log.state.members


def test_a_silent_member_becomes_absent_and_an_absent_one_is_forgotten() -> None:
    log = joined()
    assert log.append(ForgettingMember, BERT, client_id="anna", if_last=1) is None
    assert log.state.members["anna"] == MemberState(ANNA, last=2, present=False)
    assert log.append(ForgettingMember, BERT, client_id="anna", if_last=1) is not None
    assert log.append(ForgettingMember, BERT, client_id="anna", if_last=2) is None
    assert "anna" not in log.state.members


def test_a_forgotten_member_joins_again_as_if_new() -> None:
    log = joined()
    log.append(ForgettingMember, BERT, client_id="anna", if_last=1)
    log.append(ForgettingMember, BERT, client_id="anna", if_last=2)
    assert join(log, ANNA, 2) is not None
    assert join(log, ANNA, None) is None


# heartbeat intervals and targets


def test_another_heartbeat_interval_than_that_of_the_present_members_is_refused() -> None:
    log = joined()
    assert join(log, ANNA_AGAIN, 1, heartbeat_seconds=3.0) is not None
    log.append(LeavingGroup, BERT)
    assert join(log, ANNA_AGAIN, 1, heartbeat_seconds=3.0) is None, "once no other member is there"
    assert log.state.heartbeat_seconds == 3.0


def is_unbalanced(log: Log) -> bool:
    return log.state.unbalanced


def test_a_target_is_computed_once_for_each_change() -> None:
    log = joined()
    assert is_unbalanced(log)
    assert log.balance() is None
    assert list(log.state.target.values()) == [(WEB,)]
    assert log.balance() is not None, "nothing has changed"
    log.append(Heartbeat, ANNA, wants=TOPICS)
    assert not is_unbalanced(log), "the same again asks for nothing"
    log.append(Heartbeat, ANNA, wants=requested_topics([WEB, web(1)]))
    assert is_unbalanced(log)
    assert log.balance() is None
    assert log.state.target == {"anna": (web(1),), "bert": (WEB,)}


def test_a_target_about_an_older_change_is_refused() -> None:
    log = joined()
    changed = log.state.changed
    log.join(MemberId("cleo", "c1"))
    assert log.state.changed != changed
    assert log.balance() is None


# pauses


def paused() -> Log:
    log = Log(ANNA, BERT)
    log.claim(ANNA)
    assert log.append(ReleaseGroup, BERT, pause_id="p", for_seconds=100.0, reason="upgrade") is None
    return log


def test_a_pause_shows_author_reason_and_end_by_broker_time() -> None:
    assert paused().state.pauses == {"p": Pause("bert", 103.0, "upgrade")}


def test_m4_no_member_claims_while_the_group_is_paused() -> None:
    log = paused()
    assert log.claim(BERT, web(1)) is not None
    assert log.claim_of().held_by(ANNA)


def test_m4_an_owner_goes_on_beating_and_releases_while_the_group_is_paused() -> None:
    log = paused()
    assert log.beat(ANNA, 1, 5) is None
    assert log.release(ANNA, 1, 9) is None
    assert not log.claim_of().held
    assert log.claim_of().position == 9


def test_m4_only_the_resume_of_that_pause_ends_it() -> None:
    log = paused()
    log.append(ReleaseGroup, ANNA, pause_id="q")
    assert log.append(ResumingGroup, ANNA, pause_id="other") is not None
    assert log.append(ResumingGroup, ANNA, pause_id="p") is None
    assert log.claim(BERT, web(1)) is not None, "the other pause still holds"
    assert log.append(ResumingGroup, ANNA, pause_id="q") is None
    assert log.claim(BERT, web(1)) is None


def test_a_pause_is_resumed_once() -> None:
    log = paused()
    log.append(ResumingGroup, ANNA, pause_id="p")
    assert log.append(ResumingGroup, BERT, pause_id="p") is not None


# places


def test_a_refused_foreign_record_only_advances_the_position() -> None:
    log = joined()
    before = log.state.copy()
    log.append(LeavingGroup, MemberId("unknown", "n"))
    before.next_offset += 1
    assert log.state == before
