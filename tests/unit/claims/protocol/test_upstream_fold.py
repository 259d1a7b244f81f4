"""The scenarios that the protocol's first implementation was tested with (8 to 15), and those it was seen to fail.

The numbers are those of our study of it; number 14 is corrected on purpose: it let a heartbeat steal a partition.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import (
    ClaimingMessages,
    ClaimingPartition,
    ClaimRequest,
    ForgettingMember,
    MemberId,
    Record,
)
from penstock.claims.protocol.state import Claim, GroupState
from tests.support.coordination import ANNA, BERT, CLEO, GROUP, WEB, Log, web

INTERVAL = 60.0
SECOND_ANNA = MemberId("anna", "a2")


def annas(position: int | None = None) -> Log:
    log = Log()
    log.claim(ANNA)
    log.beat(ANNA, 1, position)
    return log


def taken_over(log: Log, by: MemberId = BERT) -> None:
    """Anna is silent and declared gone, and another member claims what she held."""
    assert log.append(ForgettingMember, by, client_id="anna", if_last=log.state.members["anna"].last) is None
    assert log.claim(by) is None


def view_of(
    records: list[Record], read_at: list[float], appended_at: list[float]
) -> tuple[GroupView, list[GroupState]]:
    """A reader that reads each record at its own time, and what it saw behind each."""
    view = GroupView(GROUP, INTERVAL)
    states = []
    for offset, record in enumerate(records):
        view.read(offset, record, read_at[offset], appended_at[offset])
        states.append(view.state.copy())
    return view, states


# upstream


def test_upstream_8_an_owner_is_not_suspected_for_two_intervals() -> None:
    view, _ = view_of(annas().records, [0.0] * 4 + [1.0], [0.0] * 5)
    assert [view.suspected("anna", now) for now in (1.0, 62.0, 120.0, 121.0)] == [False] * 4
    assert view.suspected("anna", 121.5)
    assert view.claim(WEB).held_by(ANNA), "suspicion alone releases nothing"


def test_upstream_9_state_is_immutable() -> None:
    claim = annas(5).claim_of()
    with pytest.raises(AttributeError):
        claim.position = 9  # type: ignore[misc]
    assert replace(claim, position=9) != claim


def test_upstream_11_a_claim_on_a_free_partition_is_ours() -> None:
    log = Log()
    assert log.claim(ANNA) is None
    assert log.claim_of().held_by(ANNA)


def test_upstream_12_a_lost_race_in_between_does_not_cost_the_owner_its_claim() -> None:
    log = annas()
    assert log.claim(BERT) is not None
    assert log.claim_of().held_by(ANNA)
    assert log.claim_of().token == 1


def test_upstream_13_only_the_owner_releases() -> None:
    log = annas(10)
    assert log.release(BERT, 1, 99) is not None
    assert log.claim_of().held_by(ANNA)
    assert log.release(ANNA, 1, 10) is None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=False, last=6, position=10)


def test_upstream_14_corrected_a_heartbeat_of_another_member_takes_nothing() -> None:
    log = annas(10)
    log.beat(BERT, 1, 20)
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=True, last=3, position=10)


def test_upstream_15_partitions_of_any_number_are_read_in_parallel() -> None:
    log = Log()
    log.claim(ANNA, web(0))
    log.claim(BERT, web(4))
    assert {partition.number: claim.owner for partition, claim in log.state.claims.items()} == {0: ANNA, 4: BERT}


# probes


def contested() -> list[Record]:
    """A log with a claim, a silence, a take-over, a lost race and late records of a replaced process."""
    log = annas(5)
    taken_over(log)
    log.append(ClaimingPartition, CLEO, requests=(ClaimRequest(WEB, 1),))
    log.beat(ANNA, 1, 50)
    log.release(ANNA, 1, 1)
    log.beat(BERT, 2, 6)
    return log.records


LIVE = [0.0, 0.0, 0.0, 1.0, 30.0, 151.0, 152.0, 153.0, 154.0, 155.0, 156.0]


def test_p1_later_and_earlier_readers_agree_at_every_offset() -> None:
    records = contested()
    _, read_live = view_of(records, LIVE, LIVE)
    _, replayed = view_of(records, [86_400.0] * len(records), LIVE)
    assert replayed == read_live
    assert [state.claim(WEB).owner for state in replayed[3:]] == [ANNA, ANNA, ANNA, BERT, BERT, BERT, BERT, BERT]


@pytest.mark.parametrize("skew", [-3600.0, -1.0, 1.0, 3600.0])
def test_p2_clocks_that_differ_change_no_state(skew: float) -> None:
    records = contested()
    _, straight = view_of(records, LIVE, LIVE)
    _, skewed = view_of(records, [item + skew for item in LIVE], [instant - skew for instant in LIVE])
    assert skewed == straight


@pytest.mark.parametrize("heartbeats_of_bert", [0, 3], ids=["fresh", "late"])
def test_p3_a_zombies_heartbeat_neither_frees_nor_rewinds_a_partition(heartbeats_of_bert: int) -> None:
    log = annas(5)
    taken_over(log)
    for count in range(heartbeats_of_bert):
        log.beat(BERT, 2, 6 + count)
    before = log.claim_of()
    assert log.beat(ANNA, 1, 1) is not None
    assert log.beat(ANNA, 1, 1000) is not None
    assert log.claim_of() == before
    assert log.claim_of().held_by(BERT)


def test_p4_two_processes_with_one_client_id_never_hold_one_partition() -> None:
    log = annas(5)
    assert log.beat(SECOND_ANNA, 1, 9) is not None
    assert log.release(SECOND_ANNA, 1) is not None
    assert log.claim(SECOND_ANNA) is not None
    assert log.claim_of().held_by(ANNA)
    assert log.join(SECOND_ANNA) is None
    assert log.claim(SECOND_ANNA) is None
    assert log.beat(ANNA, 1, 9) is not None, "the first one is fenced, although it has the same id"
    assert log.claim_of().held_by(SECOND_ANNA)


def test_p4_a_second_process_does_not_join_next_to_a_live_one() -> None:
    log = annas()
    assert log.join(SECOND_ANNA, if_last=0) is not None


def test_p11_a_release_after_a_lost_race_changes_nothing() -> None:
    log = annas()
    log.append(ClaimingPartition, BERT, requests=(ClaimRequest(WEB),))
    assert log.release(BERT, 1) is not None
    assert log.release(BERT, 0) is not None
    assert log.claim_of().held_by(ANNA)


def test_p11_a_claim_whose_acknowledgement_was_lost_is_known_by_reading() -> None:
    log = Log()
    claim = ClaimingPartition(who=ANNA, seq=1, requests=(ClaimRequest(WEB),))
    assert log.append_record(claim) is None
    assert log.append_record(replace(claim, seq=2)) is not None, "sent once more because no answer came"
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=True, last=3)


def test_p11_a_claim_that_arrives_late_takes_nothing_that_changed_meanwhile() -> None:
    log = Log()
    late = ClaimingPartition(who=ANNA, seq=1, requests=(ClaimRequest(WEB),))
    log.claim(BERT)
    log.release(BERT, 1)
    assert log.append_record(late) is not None, "free again is not the same as never claimed"


def test_p13_position_0_is_a_position_and_none_is_not() -> None:
    log = annas(None)
    assert log.claim_of().position is None
    log.beat(ANNA, 1, 0)
    assert log.claim_of().position == 0
    log.beat(ANNA, 1, None)
    assert log.claim_of().position == 0, "a heartbeat without a position does not unset it"
    log.release(ANNA, 1)
    log.claim(BERT)
    assert log.claim_of().position == 0


def test_p13_a_loss_before_any_position_begins_at_the_beginning() -> None:
    log = annas(None)
    log.append(ClaimingMessages, ANNA, partition=WEB, token=1, end=3)
    taken_over(log)
    assert log.claim_of().given_up == ((0, 3),)


def test_p21_suspicion_does_not_end_ownership() -> None:
    for silence, suspected in ((119.0, False), (120.0, False), (120.001, True)):
        log = annas(5)
        view, _ = view_of(log.records, [0.0] * 5, [0.0] * 5)
        assert view.suspected("anna", silence) is suspected
        assert log.claim_of().held_by(ANNA)
        taken_over(log)
        assert log.beat(ANNA, 1, 6) is not None


def test_p21_a_late_release_applies_unless_taken_over_and_lowers_nothing() -> None:
    log = annas(50)
    assert log.release(ANNA, 1, 7) is None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=False, last=5, position=50)


def test_p21_a_late_release_after_a_take_over_is_refused() -> None:
    log = annas(50)
    taken_over(log)
    assert log.release(ANNA, 1, 60) is not None
    assert log.claim_of().held_by(BERT)
    assert log.claim_of().position == 50
