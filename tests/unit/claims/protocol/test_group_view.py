"""One reader's view: silence is its own suspicion, the folds are everybody's."""

from __future__ import annotations

import pytest

from penstock.claims.protocol.group_view import Freshness, GroupView, coordination_partition, freshness, home_partition
from penstock.claims.protocol.records import (
    ClaimingPartition,
    FinishingRange,
    ForgettingMember,
    JoiningGroup,
    LeavingGroup,
    OpeningRanges,
    Presence,
    ReleaseGroup,
    ReleasingPartition,
)
from tests.coordination import ANNA, BERT, CLEO, GROUP, WEB, Log, web


def view_of(log: Log, read_at: list[float], appended_at: list[float] | None = None) -> GroupView:
    """A reader with intervals of 10 seconds that read the log at these times."""
    view = GroupView(GROUP, 1, 10.0)
    for offset, record in enumerate(log.records):
        view.read(0, offset, record, read_at[offset], (appended_at or read_at)[offset])
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


def test_silence_counts_from_the_last_accepted_word() -> None:
    log = Log()
    log.claim(ANNA)
    log.beat(ANNA, 1)
    log.say(ClaimingPartition, BERT, partition=WEB, if_token=0, if_last=None)
    log.beat(BERT, 1)
    view = view_of(log, [0.0, 5.0, 90.0, 91.0])
    assert view.silence_seconds(WEB, 100.0) == 95.0


def test_a_heartbeat_counts_only_for_what_its_sender_still_holds() -> None:
    log = Log()
    log.claim(ANNA)
    log.claim(ANNA, web(1))
    log.claim(BERT, web(1))
    log.beat(ANNA, 1, partition=web(1))
    log.beat(ANNA, 1)
    view = view_of(log, [0.0, 1.0, 2.0, 50.0, 50.0])
    assert view.silence_seconds(web(1), 60.0) == 58.0
    assert view.silence_seconds(WEB, 60.0) == 10.0


def test_nothing_is_suspected_that_nobody_ever_said() -> None:
    assert not GroupView(GROUP, 1, 10.0).suspected(WEB, 1e9)


def test_a_live_member_has_joined_and_spoken_within_two_intervals() -> None:
    log = Log()
    for who in (ANNA, BERT, CLEO):
        log.say(JoiningGroup, who, if_last=None, presence=Presence())
    log.say(LeavingGroup, CLEO)
    log.beat_at_home(BERT)
    view = view_of(log, [0.0, 0.0, 0.0, 1.0, 15.0])
    assert [each.who for each in view.live_members(20.0)] == [ANNA, BERT]
    assert [each.who for each in view.live_members(20.5)] == [BERT]


def test_who_comes_later_learns_the_age_of_things_from_the_brokers_clock() -> None:
    log = Log()
    log.claim(ANNA)
    log.claim(BERT, web(1))
    view = view_of(log, [1000.0, 1000.0], appended_at=[100.0, 170.0])
    assert not view.suspected(WEB, 1000.0), "all was read just now"
    view.age_by(broker_now=180.0, now=1000.0)
    assert view.silence_seconds(WEB, 1000.0) == 70.0, "80 seconds less one interval for differing clocks"
    assert view.silence_seconds(web(1), 1000.0) == 0.0


def test_a_brokers_clock_that_goes_back_makes_nobody_younger_or_older() -> None:
    log = Log()
    log.claim(ANNA)
    view = view_of(log, [1000.0], appended_at=[500.0])
    view.age_by(broker_now=100.0, now=1010.0)
    assert view.silence_seconds(WEB, 1010.0) == 10.0


def test_a_snapshot_is_as_old_as_its_last_record() -> None:
    log = Log()
    log.claim(ANNA)
    view = GroupView(GROUP, 1, 10.0)
    view.restore(0, log.state, now=1000.0, appended_at=100.0)
    assert view.claim(WEB).held_by(ANNA)
    view.age_by(broker_now=140.0, now=1000.0)
    assert view.silence_seconds(WEB, 1000.0) == 30.0


def test_the_silence_of_a_range_is_its_holders() -> None:
    log = Log()
    log.claim(ANNA)
    log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=0)
    log.lease_next(BERT)
    log.lease_next(CLEO)
    log.beat_range(CLEO, 10, 3)
    view = view_of(log, [0.0, 0.0, 0.0, 0.0, 20.0])
    bert, cleo = log.claim_of().leases
    assert view.lease_suspected(WEB, bert, 20.5)
    assert not view.lease_suspected(WEB, cleo, 40.0)
    assert view.silence_seconds(WEB, 20.5) == 20.5, "the owner is heard by its own words"


def test_ranges_and_members_that_are_over_are_not_remembered() -> None:
    log = Log()
    log.say(JoiningGroup, BERT, if_last=None, presence=Presence())
    log.say(ForgettingMember, ANNA, client_id="bert", if_last=0)
    log.claim(ANNA)
    log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=0)
    for _ in range(3):
        log.lease_next(BERT)
    for start, lease in ((10, 5), (0, 4)):
        log.say(FinishingRange, BERT, partition=WEB, token=1, start=start, lease=lease)
    log.say(ReleasingPartition, ANNA, partition=WEB, token=1)
    view = view_of(log, [0.0] * len(log.records))
    assert list(view._heard) == [WEB]
    assert list(view._appended) == [WEB]


def test_m4_a_pause_in_one_coordination_partition_is_a_pause() -> None:
    view = GroupView(GROUP, 3, 10.0)
    view.read(1, 0, ReleaseGroup(group=GROUP, who=ANNA, seq=1, pause_id="p", until_at=5.0), 0.0, 0.0)
    assert list(view.pauses()) == ["p"]
    assert view.paused_places("p") == [1]
    assert view.paused_places("q") == []


def test_records_about_a_partition_go_to_one_place_for_every_process() -> None:
    """Written down, because all processes of all versions must agree: the CRC-32 of name, zero byte and number."""
    assert [coordination_partition("web", number, 8) for number in range(4)] == [1, 7, 5, 3]
    assert home_partition("shop", "anna", 8) == 2
    assert {coordination_partition("web", number, 1) for number in range(50)} == {0}


def test_groups_in_one_coordination_topic_do_not_hear_each_other() -> None:
    log = Log()
    log.say(ClaimingPartition, ANNA, group="other", partition=WEB, if_token=0, if_last=None)
    view = view_of(log, [0.0])
    assert list(view.claims()) == []
    assert view.silence_seconds(WEB, 50.0) == 0.0
