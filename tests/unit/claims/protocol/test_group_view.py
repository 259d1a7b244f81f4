"""One reader's view: each reader measures silence itself, all readers share the fold."""

from __future__ import annotations

import pytest

from penstock.claims.protocol.group_view import Freshness, GroupView, coordination_partition, freshness
from penstock.claims.protocol.records import BalancingGroup, ForgettingMember, Heartbeat, LeavingGroup, ReleaseGroup
from penstock.claims.protocol.snapshots import Snapshot, decode_snapshot, encode_snapshot
from tests.support.coordination import ANNA, BERT, CLEO, GROUP, WEB, Log


def view_of(log: Log, read_at: list[float], appended_at: list[float] | None = None) -> GroupView:
    """A reader with intervals of 10 seconds that read the log at these times."""
    view = GroupView(GROUP, 10.0)
    for offset, record in enumerate(log.records):
        view.read(offset, record, read_at[offset], (appended_at or read_at)[offset], 1)
    return view


@pytest.mark.parametrize(
    ("silence", "expected"),
    [
        (0.0, Freshness.FRESH),
        (9.999, Freshness.FRESH),
        (10.0, Freshness.UNKNOWN),
        (20.0, Freshness.UNKNOWN),
        (20.001, Freshness.STALE),
        (1e9, Freshness.STALE),
    ],
)
def test_fresh_below_one_interval_stale_above_two(silence: float, expected: Freshness) -> None:
    assert freshness(silence, 10.0) is expected


def test_silence_counts_from_the_last_accepted_record() -> None:
    log = Log(ANNA, BERT)
    log.beat(ANNA, 1)
    log.append(ForgettingMember, BERT, client_id="anna", if_last=0)
    view = view_of(log, [0.0, 0.0, 5.0, 90.0])
    assert view.silence_seconds("anna", 100.0) == 95.0
    assert view.silence_seconds("bert", 100.0) == 10.0, "a refused record counts too"


def test_no_member_is_suspected_without_a_record() -> None:
    assert not GroupView(GROUP, 10.0).suspected("anna", 1e9)


def test_a_live_member_has_joined_and_sent_a_heartbeat_within_two_intervals() -> None:
    log = Log(ANNA, BERT, CLEO)
    log.append(LeavingGroup, CLEO)
    log.append(Heartbeat, BERT)
    view = view_of(log, [0.0, 0.0, 0.0, 1.0, 15.0])
    assert [member.who for member in view.live_members(20.0)] == [ANNA, BERT]
    assert [item.who for item in view.live_members(20.5)] == [BERT]


def test_a_later_reader_computes_ages_from_the_broker_clock() -> None:
    view = view_of(Log(ANNA, BERT), [1000.0, 1000.0], appended_at=[100.0, 177.0])
    assert not view.suspected("anna", 1000.0), "all was read just now"
    view.age_by(broker_now=180.0, now=1000.0)
    assert view.silence_seconds("anna", 1000.0) == 10.0, "a clock may step: never more than an interval"
    assert view.silence_seconds("bert", 1000.0) == 3.0


def test_the_age_of_a_left_member_follows_the_broker_clock() -> None:
    """To forget an absent client id too early loses nothing, and a group that often restarts must get to it."""
    log = Log(ANNA, BERT)
    log.append(LeavingGroup, ANNA)
    view = view_of(log, [1000.0] * 3, appended_at=[100.0] * 3)
    view.age_by(broker_now=180.0, now=1000.0)
    assert view.silence_seconds("anna", 1000.0) == 80.0


def test_a_new_leader_with_another_clock_does_not_change_the_age_of_members() -> None:
    """However far its clock is ahead: what it appended itself is all that its clock can measure."""
    view = view_of(Log(ANNA), [1000.0], appended_at=[100.0])
    view.skip(1, appended_at=9000.0, epoch=2)
    view.age_by(broker_now=9003.0, now=1000.0)
    assert view.silence_seconds("anna", 1000.0) == 3.0


def test_records_of_other_groups_are_skipped() -> None:
    view = view_of(Log(ANNA), [1000.0])
    view.skip(7, appended_at=1001.0, epoch=1)
    assert (view.state.next_offset, view.broker_at) == (8, 1001.0)
    assert [*view.state.members] == ["anna"]


def test_a_broker_clock_that_goes_back_does_not_change_the_age_of_members() -> None:
    view = view_of(Log(ANNA), [1000.0], appended_at=[500.0])
    view.age_by(broker_now=100.0, now=1010.0)
    assert view.silence_seconds("anna", 1010.0) == 10.0


def test_a_snapshot_is_as_old_as_its_last_record() -> None:
    log = Log(ANNA)
    log.claim(ANNA)
    view = GroupView(GROUP, 10.0)
    view.restore(Snapshot("t", GROUP, 100.0, log.state), now=1000.0)
    assert view.claim(WEB).held_by(ANNA)
    view.age_by(broker_now=107.0, now=1000.0)
    assert view.silence_seconds("anna", 1000.0) == 7.0


@pytest.mark.parametrize("kept_after", [2, 3, 4])
def test_a_pause_has_the_same_length_under_every_leader_and_snapshot(kept_after: int) -> None:
    log = Log(ANNA)
    log.append(ReleaseGroup, ANNA, pause_id="p", for_seconds=60.0)
    for _ in range(4):
        log.append(Heartbeat, ANNA)
    # 10 seconds by the first clock, 49 by the second, which shows quite another time, and then 2 more.
    appends = [(100.0, 1), (100.0, 1), (110.0, 1), (5000.0, 2), (5049.0, 2), (5051.0, 2)]
    view = GroupView(GROUP, 10.0)
    over: list[bool] = []
    for offset, (record, (appended_at, epoch)) in enumerate(zip(log.records, appends, strict=True)):
        view.read(offset, record, appended_at, appended_at, epoch)
        over.append(view.pause_is_over("p"))
        if offset == kept_after:
            snapshot = decode_snapshot(encode_snapshot(view.snapshot("t")), GROUP)
            view = GroupView(GROUP, 10.0)
            view.restore(snapshot, appended_at)
    assert over == [False, False, False, False, False, True]


def test_own_disconnection_does_not_count_as_silence_of_others() -> None:
    view = view_of(Log(ANNA), [1000.0])
    view.forgive(50.0, now=1060.0)
    assert view.silence_seconds("anna", 1060.0) == 10.0


def test_a_view_drops_forgotten_members() -> None:
    log = Log(ANNA, BERT)
    log.append(ForgettingMember, ANNA, client_id="bert", if_last=1)
    log.append(ForgettingMember, ANNA, client_id="bert", if_last=2)
    view = view_of(log, [0.0] * 4)
    assert list(view._last_read_at) == list(view._appended) == ["anna"]


def test_a_view_knows_since_when_a_target_is_missing_and_when_the_last_change_came() -> None:
    log = Log(ANNA, BERT)
    log.append(BalancingGroup, ANNA, if_changed=1)
    view = GroupView(GROUP, 10.0)
    times = []
    for offset, record in enumerate(log.records):
        view.read(offset, record, 100.0 + offset, 0.0)
        times.append((view.unbalanced_since, view.changed_at))
    assert times == [(100.0, 100.0), (100.0, 101.0), (None, None)]


def test_records_of_a_group_go_to_one_place_for_every_process() -> None:
    """Written down, because all processes of all versions must agree: the CRC-32 of the group's name."""
    assert [coordination_partition(group, 8) for group in ("shop", "billing", "größe", "")] == [2, 2, 1, 0]
    assert coordination_partition("anything", 1) == 0
