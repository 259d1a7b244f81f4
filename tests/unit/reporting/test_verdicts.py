"""Each verdict from numbers worked out by hand; the real conditions are in `tests/integration/test_verdicts.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.job.spec import AlertLimits
from penstock.reporting.verdicts import (
    Judgement,
    Observation,
    PartitionFacts,
    Thresholds,
    Verdict,
    broken_limits,
    judge,
    worst,
)

NOW = 100_000.0
LATENCY = 60.0
LIMITS = AlertLimits(stop_after_seconds=600, window_seconds=900)
THRESHOLDS = Thresholds(LIMITS, LATENCY)
"""Nothing may wait for more than 660 s without a move."""
BEHIND = PartitionFacts(position=100, first=0, end=150, age_seconds=700)
OK = Judgement()


def observed(*observations: tuple[float, int, int | None]) -> list[Observation]:
    """Seconds before now, position and end."""
    return [Observation(NOW - ago, position, end) for ago, position, end in observations]


def verdict(facts: PartitionFacts, *window: tuple[float, int, int | None], committed_ago: float | None = 10) -> Verdict:
    committed_at = None if committed_ago is None else NOW - committed_ago
    return judge(facts, observed(*window), THRESHOLDS, NOW, committed_at).verdict


def test_a_partition_at_its_end_is_ok_however_long_the_topic_is_quiet() -> None:
    assert verdict(PartitionFacts(150, 0, 150), (90_000, 150, 150), committed_ago=90_000) is Verdict.OK


def test_a_record_of_a_quiet_topic_may_wait_for_its_batch() -> None:
    arrived = replace(BEHIND, age_seconds=650)
    assert verdict(arrived, (90_000, 100, 100), committed_ago=90_000) is Verdict.OK


def test_records_wait_and_the_job_commits_nothing() -> None:
    judgement = judge(BEHIND, observed((700, 100, 100)), THRESHOLDS, NOW, NOW - 7_300)
    assert judgement == Judgement(Verdict.STOP, "records wait for 12min, and the last commit was 2h ago")
    assert verdict(BEHIND, committed_ago=None) is Verdict.STOP


def test_records_that_earlier_observations_saw_wait_since_then_also_if_their_age_is_not_known() -> None:
    unknown = replace(BEHIND, age_seconds=None)
    assert verdict(unknown, (700, 100, 120), (300, 100, 150), committed_ago=800) is Verdict.STOP
    assert verdict(unknown, (700, 100, 100), (300, 100, 150), committed_ago=800) is Verdict.OK


def test_the_job_commits_and_one_partition_does_not_move() -> None:
    judgement = judge(BEHIND, observed((720, 80, 90), (700, 100, 120), (20, 100, 150)), THRESHOLDS, NOW, NOW - 10)
    assert judgement == Judgement(
        Verdict.STALL,
        "records wait for 12min, and the position stays at 100 for 12min although the job commits",
    )


def test_a_partition_that_moves_is_not_stalled_whatever_the_age_of_its_records() -> None:
    old = replace(BEHIND, age_seconds=90_000)
    assert verdict(old, (700, 50, 150), (300, 100, 150)) is Verdict.OK


@pytest.mark.parametrize(
    ("facts", "window"),
    [
        (PartitionFacts(90, 0, 150), ((300, 100, 150),)),
        (PartitionFacts(130, 0, 150), ((300, 120, 150), (200, 60, 150), (100, 90, 150))),
        (PartitionFacts(90, 0, 150, rewound_from=100), ()),
    ],
)
def test_a_position_that_went_back_is_rewound(
    facts: PartitionFacts, window: tuple[tuple[float, int, int], ...]
) -> None:
    assert verdict(facts, *window) is Verdict.REWIND


def test_a_fault_counts_more_than_everything_else() -> None:
    fault = replace(BEHIND, fault="topic orders no longer exists", rewound_from=200)
    assert judge(fault, [], THRESHOLDS, NOW, None) == Judgement(Verdict.ERR, "topic orders no longer exists")


LIMITED = AlertLimits(lag_records_max=100, age_seconds_max=200, retention_share_max=0.5)


@pytest.mark.parametrize(
    ("facts", "rules", "expected"),
    [
        (PartitionFacts(0, 0, 49, 99, 10_000), set(), Verdict.OK),
        (PartitionFacts(0, 0, 50, 99, 10_000), set(), Verdict.WARN),
        (PartitionFacts(0, 0, 100, 99, 10_000), {"lag"}, Verdict.ERR),
        (PartitionFacts(0, 0, 10, 100, 10_000), set(), Verdict.WARN),
        (PartitionFacts(0, 0, 10, 200, 10_000), {"age"}, Verdict.ERR),
        (PartitionFacts(0, 0, 10, 60, 240), set(), Verdict.WARN),
        (PartitionFacts(0, 0, 10, 60, 120), {"retention"}, Verdict.ERR),
        (PartitionFacts(0, 0, 200, 300, 300), {"lag", "age", "retention"}, Verdict.ERR),
        (PartitionFacts(0, 0, 10, 60, None), set(), Verdict.OK),
    ],
)
def test_a_limit_is_an_error_and_half_of_it_a_warning(
    facts: PartitionFacts, rules: set[str], expected: Verdict
) -> None:
    assert judge(facts, [], Thresholds(LIMITED, LATENCY), NOW, NOW).verdict is expected
    assert broken_limits(facts, LIMITED).keys() == rules


def test_lag_counts_from_the_first_offset_that_the_log_has() -> None:
    facts = PartitionFacts(position=10, first=990, end=1_000)
    assert facts.lag_records == 10
    assert broken_limits(facts, LIMITED) == {}


GROWING = ((900, 0, 100), (800, 100, 220), (500, 200, 450), (400, 300, 500), (200, 400, 900), (100, 500, 950))
"""In three parts of 300 s the lowest lags are 100, 200 and 450."""


def test_lag_that_grows_over_the_window_is_a_warning() -> None:
    judgement = judge(PartitionFacts(600, 0, 1_100, 70), observed(*GROWING), THRESHOLDS, NOW, NOW - 10)
    assert judgement == Judgement(Verdict.WARN, "lag grew from 100 to 500 records in 15min")


@pytest.mark.parametrize(
    "window",
    [(*GROWING[1:-1], (90, 750, 800)), GROWING[3:], tuple((ago, position, None) for ago, position, _ in GROWING)],
    ids=["it fell once", "not long enough", "the ends are not known"],
)
def test_lag_that_falls_or_was_not_seen_long_enough_is_no_warning(
    window: tuple[tuple[float, int, int | None], ...],
) -> None:
    assert verdict(PartitionFacts(800, 0, 1_300, 70), *window) is Verdict.OK


def test_a_job_is_as_good_as_its_worst_partition() -> None:
    warned, stalled = Judgement(Verdict.WARN, "lag"), Judgement(Verdict.STALL, "no move")
    partitions = {"orders/0": OK, "orders/1": stalled, "orders/2": warned}
    assert worst(partitions) == Judgement(Verdict.STALL, "orders/1: no move")
    assert worst({**partitions, "orders/3": stalled}) == Judgement(Verdict.STALL, "orders/1: no move (2 partitions)")
    assert worst(partitions, Judgement(Verdict.ERR, "a type failed")) == Judgement(Verdict.ERR, "a type failed")
    assert worst({}) == worst({"orders/0": OK}) == OK


def test_verdicts_are_ordered_by_what_is_worse() -> None:
    assert sorted(Verdict, key=lambda verdict: verdict.severity) == ["OK", "WARN", "STALL", "STOP", "REWIND", "ERR"]
