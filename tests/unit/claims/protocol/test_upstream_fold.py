"""The scenarios that the protocol's first implementation was tested with (8 to 15), and those it was seen to fail.

The numbers are those of our study of it; number 14 is corrected on purpose: it let a heartbeat steal a partition.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import (
    ClaimingMessages,
    ClaimingPartition,
    JoiningGroup,
    Presence,
    Record,
    ReleasingPartition,
    Who,
)
from penstock.claims.protocol.state import Claim, LogState
from tests.coordination import ANNA, BERT, CLEO, GROUP, WEB, Log, web

INTERVAL = 60.0
SECOND_ANNA = Who("anna", "a2")


def annas(position: int | None = None) -> Log:
    log = Log()
    log.claim(ANNA)
    log.beat(ANNA, 1, position)
    return log


def view_of(records: list[Record], read_at: list[float], appended_at: list[float]) -> tuple[GroupView, list[LogState]]:
    """A reader that reads each record at its own time, and what it saw behind each."""
    view = GroupView(GROUP, 1, INTERVAL)
    seen = []
    for offset, record in enumerate(records):
        view.read(0, offset, record, read_at[offset], appended_at[offset])
        seen.append(view.folds[0])
    return view, seen


# upstream


def test_upstream_8_a_claim_is_beyond_suspicion_for_two_intervals() -> None:
    view, _ = view_of(annas().records, [0.0, 1.0], [0.0, 1.0])
    assert [view.suspected(WEB, now) for now in (1.0, 62.0, 120.0, 121.0)] == [False] * 4
    assert view.suspected(WEB, 121.5)
    assert view.claim(WEB).held_by(ANNA), "suspicion takes nothing from anybody"


def test_upstream_9_nobody_changes_the_state_by_holding_it() -> None:
    claim = annas(5).claim_of()
    with pytest.raises(FrozenInstanceError):
        claim.position = 9  # type: ignore[misc]
    assert replace(claim, position=9) != claim


def test_upstream_10_a_claim_of_another_group_is_not_ours() -> None:
    log = Log()
    log.say(ClaimingPartition, ANNA, group="other", partition=WEB, if_token=0, if_last=None)
    assert log.claim_of() == Claim()
    assert log.group("other").claim(WEB).held_by(ANNA)


def test_upstream_11_a_claim_on_a_free_partition_is_ours() -> None:
    log = Log()
    assert log.claim(ANNA) is None
    assert log.claim_of().held_by(ANNA)


def test_upstream_12_a_lost_race_in_between_does_not_cost_the_owner_its_claim() -> None:
    log = annas()
    assert log.say(ClaimingPartition, BERT, partition=WEB, if_token=1, if_last=0) is not None
    assert log.claim_of().held_by(ANNA)
    assert log.claim(ANNA) is None
    assert log.claim_of().held_by(ANNA)
    assert log.claim_of().token == 2


def test_upstream_13_only_the_owner_releases() -> None:
    log = annas(10)
    assert log.say(ReleasingPartition, BERT, partition=WEB, token=1, position=99) is not None
    assert log.claim_of().held_by(ANNA)
    assert log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=10) is None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=False, last=3, position=10)


def test_upstream_14_corrected_a_heartbeat_of_another_member_takes_nothing() -> None:
    log = annas(10)
    assert log.beat(BERT, 1, 20) is not None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=True, last=1, position=10)
    assert log.group("other").claims == {}


def test_upstream_15_partitions_of_any_number_stand_side_by_side() -> None:
    log = Log()
    log.claim(ANNA, web(0))
    log.claim(BERT, web(4))
    assert {each.number: claim.owner for each, claim in log.group().claims.items()} == {0: ANNA, 4: BERT}


# probes


def contested() -> list[Record]:
    """A log with a claim, a silence, a take-over, a lost race and words of the dead."""
    log = annas(5)
    log.claim(BERT)
    log.say(ClaimingPartition, CLEO, partition=WEB, if_token=1, if_last=1)
    log.beat(ANNA, 1, 50)
    log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=1)
    log.beat(BERT, 2, 6)
    return log.records


def test_p1_a_reader_of_today_agrees_with_one_of_yesterday_at_every_place() -> None:
    records = contested()
    live = [0.0, 30.0, 151.0, 152.0, 153.0, 154.0, 155.0]
    _, seen_live = view_of(records, live, live)
    _, replayed = view_of(records, [86_400.0] * 7, live)
    assert replayed == seen_live
    owners = [state.group(GROUP).claim(WEB).owner for state in replayed]
    assert owners == [ANNA, ANNA, BERT, BERT, BERT, BERT, BERT]


@pytest.mark.parametrize("skew", [-3600.0, -1.0, 1.0, 3600.0])
def test_p2_clocks_that_differ_change_no_state(skew: float) -> None:
    records = contested()
    live = [0.0, 30.0, 151.0, 152.0, 153.0, 154.0, 155.0]
    _, straight = view_of(records, live, live)
    _, skewed = view_of(records, [each + skew for each in live], [each - skew for each in live])
    assert skewed == straight


@pytest.mark.parametrize("heartbeats_of_bert", [0, 3], ids=["fresh", "late"])
def test_p3_a_zombies_heartbeat_neither_frees_nor_rewinds_a_partition(heartbeats_of_bert: int) -> None:
    log = annas(5)
    log.claim(BERT)
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
    assert log.say(ReleasingPartition, SECOND_ANNA, partition=WEB, token=1) is not None
    assert log.claim_of().held_by(ANNA)
    assert log.claim(SECOND_ANNA) is None
    assert log.beat(ANNA, 1, 9) is not None, "the first one is fenced, although it has the same id"
    assert log.claim_of().held_by(SECOND_ANNA)


def test_p4_a_second_process_does_not_join_beside_a_living_one() -> None:
    log = Log()
    log.say(JoiningGroup, ANNA, if_last=None, presence=Presence())
    log.beat_at_home(ANNA)
    assert log.say(JoiningGroup, SECOND_ANNA, if_last=0, presence=Presence()) is not None


def test_p11_a_release_after_a_lost_race_is_nobodys() -> None:
    log = annas()
    log.say(ClaimingPartition, BERT, partition=WEB, if_token=0, if_last=None)
    assert log.say(ReleasingPartition, BERT, partition=WEB, token=1) is not None
    assert log.say(ReleasingPartition, BERT, partition=WEB, token=0) is not None
    assert log.claim_of().held_by(ANNA)


def test_p11_a_claim_whose_acknowledgement_was_lost_is_known_by_reading() -> None:
    log = Log()
    claim = ClaimingPartition(group=GROUP, who=ANNA, seq=1, partition=WEB, if_token=0, if_last=None)
    assert log.hear(claim) is None
    assert log.hear(replace(claim, seq=2)) is not None, "sent once more because nobody answered"
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=True, last=0)


def test_p11_a_claim_that_arrives_late_takes_nothing_that_changed_meanwhile() -> None:
    log = Log()
    late = ClaimingPartition(group=GROUP, who=ANNA, seq=1, partition=WEB, if_token=0, if_last=None)
    log.claim(BERT)
    log.say(ReleasingPartition, BERT, partition=WEB, token=1)
    assert log.hear(late) is not None, "free again is not the same as never claimed"


def test_p13_position_0_is_a_position_and_none_is_not() -> None:
    log = annas(None)
    assert log.claim_of().position is None
    log.beat(ANNA, 1, 0)
    assert log.claim_of().position == 0
    log.beat(ANNA, 1, None)
    assert log.claim_of().position == 0, "a heartbeat without a position does not unset it"
    log.say(ReleasingPartition, ANNA, partition=WEB, token=1)
    log.claim(BERT)
    assert log.claim_of().position == 0


def test_p13_a_loss_before_any_position_begins_at_the_beginning() -> None:
    log = annas(None)
    log.say(ClaimingMessages, ANNA, partition=WEB, token=1, end=3)
    log.claim(BERT)
    assert log.claim_of().given_up == ((0, 3),)


def test_p21_the_boundary_of_suspicion_is_no_boundary_of_ownership() -> None:
    for silence, suspected in ((119.0, False), (120.0, False), (120.001, True)):
        log = annas(5)
        view, _ = view_of(log.records, [0.0, 0.0], [0.0, 0.0])
        assert view.suspected(WEB, silence) is suspected
        assert log.claim(BERT) is None, "whoever saw the last word may try at any time"
        assert log.beat(ANNA, 1, 6) is not None


def test_p21_a_late_release_applies_if_nobody_took_over_and_lowers_nothing() -> None:
    log = annas(50)
    assert log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=7) is None
    assert log.claim_of() == Claim(token=1, owner=ANNA, held=False, last=2, position=50)


def test_p21_a_late_release_after_a_take_over_is_refused() -> None:
    log = annas(50)
    log.claim(BERT)
    assert log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=7) is not None
    assert log.claim_of().held_by(BERT)
