"""A member that cannot keep up lets go of a partition, if somebody else can take it."""

from __future__ import annotations

import pytest

from penstock.claims.member.health import (
    SAMPLES_MAX,
    STUCK,
    TOO_SLOW,
    Health,
    check,
    lag_of,
    velocity,
)

BUSY = 0.5
QUIET = 1.5
"""Intervals in which nothing was handed out or finished."""


def health(positions: list[int], ends: list[int], checks_behind: int = 0) -> Health:
    return Health(tuple(positions), tuple(ends), checks_behind)


@pytest.mark.parametrize(("position", "end", "lag"), [(0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 2, 1)])
def test_upstream_23_lag_is_what_lies_before_the_end_and_never_negative(position: int, end: int, lag: int) -> None:
    assert lag_of(position, end) == lag


@pytest.mark.parametrize(
    ("samples", "records_per_sample"),
    [
        ([], 0),
        ([0] * 10, 0),
        ([1, 2], 1),
        ([1, 2, 3], 1),
        (list(range(1, 11)), 1),
        ([1, 21, 21], 10),
        ([1, 21, 21, 21, 21], 5),
        ([21, 21, 1, 21, 21], 5),
        ([21], 0),
        ([0, 10], 10),
    ],
)
def test_upstream_27_velocity_is_records_per_sample(samples: list[int], records_per_sample: float) -> None:
    """The last row is ours: 0 is a position, not an absent one (P13)."""
    assert velocity(samples) == records_per_sample


def test_velocity_forgets_what_is_older_than_ten_samples() -> None:
    found = Health()
    for position in (0, 1000, *[1000] * 9):
        found = found.sampled(position, position)
    assert found.positions == (1000,) * SAMPLES_MAX
    assert velocity(found.positions) == 0
    assert velocity([0, *[1000] * 10]) == 0


def test_a_record_that_has_just_come_to_an_idle_partition_does_not_make_it_stuck() -> None:
    came = check(health([7, 7, 7], [7, 7, 8]), QUIET)
    assert came.release is None
    assert check(came.sampled(7, 8), QUIET).release == STUCK, "a whole interval later it is"


def test_upstream_25_a_moving_partition_is_healthy_however_long_ago_the_last_record_was_handed_out() -> None:
    moving = health([1, 2], [2, 3])
    assert check(moving, QUIET).release is None


def test_upstream_25_a_quiet_partition_at_its_end_is_healthy() -> None:
    assert check(health([5, 5, 5], [5, 5, 5]), QUIET).release is None


def test_upstream_25_a_quiet_partition_one_record_behind_is_stuck() -> None:
    assert check(health([4, 4, 4], [5, 5, 5]), QUIET).release == STUCK
    assert check(health([4, 4, 4], [5, 5, 5]), BUSY).release is None, "something was handed out just now"


def test_upstream_26_a_partition_that_grows_while_nothing_moves_is_stuck() -> None:
    assert check(health([4, 4, 4], [5, 7, 9]), QUIET).release == STUCK


def test_one_sample_proves_nothing() -> None:
    assert check(health([0], [1000]), QUIET).release is None


def test_upstream_28_nothing_known_is_healthy() -> None:
    checked = check(Health(), BUSY)
    assert (checked.checks_behind, checked.release) == (0, None)


@pytest.mark.parametrize(
    ("positions", "ends", "before", "after"),
    [
        # Standing still, ten behind, the log growing by nine per sample.
        ([10, 10], [11, 20], 0, 1),
        # At the end, although the log grew faster.
        ([19, 20], [11, 20], 1, 0),
        # Two samples' work from the end: 2 * 5 = 10.
        ([5, 10], [11, 20], 1, 0),
        # One more than that, and slower than the log: behind.
        ([5, 10], [12, 21], 1, 2),
        # Nothing moves on either side, two behind.
        ([10, 10], [12, 12], 0, 1),
        ([10, 10], [12, 12], 1, 2),
        # Faster than the log: catching up, however far behind.
        ([10, 12], [13, 14], 2, 0),
        ([10, 20], [10_000, 10_005], 2, 0),
        # As fast as the log, far behind: not catching up.
        ([10, 20], [10_000, 10_010], 0, 1),
    ],
)
def test_upstream_28_and_40_the_ladder(positions: list[int], ends: list[int], before: int, after: int) -> None:
    checked = check(health(positions, ends, before), BUSY)
    assert (checked.checks_behind, checked.release) == (after, None)


def test_upstream_28_three_checks_behind_in_a_row_let_go() -> None:
    slow = health([20, 22], [100, 120])
    first = check(slow, BUSY)
    second = check(first, BUSY)
    third = check(second, BUSY)
    assert [each.checks_behind for each in (first, second, third)] == [1, 2, 3]
    assert [each.release for each in (first, second, third)] == [None, None, TOO_SLOW]


def test_a_whole_topic_is_let_go_when_stuck_but_not_for_being_slow() -> None:
    assert check(health([20, 22], [100, 120], 2), 0.5, whole_topics=True).release is None
    assert check(health([20, 20], [100, 120]), 1.5, whole_topics=True).release == STUCK


def test_a_member_that_is_behind_keeps_its_partition_as_long_as_nobody_can_take_it() -> None:
    """Slow is better than never; once somebody comes, it goes at the next check."""
    found = health([20, 22], [100, 120])
    for _ in range(6):
        checked = check(found, takers=False)
        assert checked.release is None
        found = checked
    assert found.checks_behind == 3
    assert check(found, takers=True).release == TOO_SLOW


def test_a_stuck_member_keeps_its_partition_as_long_as_nobody_can_take_it() -> None:
    stuck = health([4, 4, 4], [5, 5, 5])
    assert check(stuck, 1.5, takers=False).release is None
    assert check(stuck, 1.5, takers=True).release == STUCK
