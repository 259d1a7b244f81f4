"""The rules of seed 000 that only exports have, on numbers worked out by hand; for lag see `test_verdicts.py`."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.job.spec import AlertLimits
from penstock.lake.delta.keys import topic_fingerprint
from penstock.logs.log import Partition
from penstock.tables.export.monitoring import Outcomes, measure
from penstock.tables.export.state import ExportState, JobPartition, Lag

ZERO = Partition("events", "topic-1", 0)
ONE = Partition("events", "topic-1", 1)
TYPES = ("a", "b", "c")
NO_LIMITS = AlertLimits()


def export(position: int, lagging: dict[str, int] | None = None) -> ExportState:
    """One partition of the three types, of which some lag."""
    lags = {name: Lag(offset, deferred=1) for name, offset in (lagging or {}).items()}
    return ExportState(
        version=1,
        partitions={(ZERO.topic_id, ZERO.number): JobPartition(position, 0, lags=lags)},
        fingerprints={"events": topic_fingerprint("topic-1")},
        types=dict.fromkeys(TYPES, 7),
    )


def outcomes(**texts: str) -> Outcomes:
    """The writes of each type, done (1) or failed (0)."""
    return Counter((name, outcome == "1") for name, text in texts.items() for outcome in text)


# failed writes


@pytest.mark.parametrize(
    ("text", "percent"), [("1111", 0.0), ("0", 100.0), ("1011", 25.0), ("0" * 45 + "1" * 15, 75.0)]
)
def test_the_share_of_failed_writes_is_in_percent(text: str, percent: float) -> None:
    rules = measure(export(10), [], NO_LIMITS, outcomes(a=text))
    assert rules.measured["failed_writes_percent"] == {"a": percent}


def test_a_type_that_was_never_written_has_no_share() -> None:
    assert measure(export(10), [ZERO], NO_LIMITS).measured["failed_writes_percent"] == {}


def test_a_partition_without_a_position_has_no_discrepancy() -> None:
    rules = measure(export(70), [ZERO, ONE], NO_LIMITS)
    assert rules.measured["discrepancy_records"] == {"events/0": 0}


# discrepancy


def discrepancy(state: ExportState) -> float:
    return measure(state, [ZERO], NO_LIMITS).measured["discrepancy_records"]["events/0"]


def test_idle_types_have_no_discrepancy() -> None:
    assert discrepancy(export(1_000_000)) == 0


def test_a_type_that_lags_is_compared_with_those_that_are_up_to_date() -> None:
    assert discrepancy(export(100, {"a": 40})) == 60


def test_discrepancy_is_between_types_if_all_of_them_lag() -> None:
    state = export(100, {"a": 40, "b": 70, "c": 55})
    assert discrepancy(state) == 30
    assert measure(state, [ZERO], NO_LIMITS).measured["type_lag_records"] == {"a": 60, "b": 30, "c": 45}


UNHAPPY = [
    # position, lagging, outcomes of a; global position, discrepancy, percent of a that failed
    ("t1", 10, {"a": 0}, "0", 0, 10, 100.0),
    ("t2", 25, {"a": 0, "b": 20}, "00", 0, 25, 100.0),
    ("t3", 30, {"b": 20}, "001", 20, 10, 200 / 3),
    ("t4", 40, {"b": 20}, "0011", 20, 20, 50.0),
    ("t5", 55, {"b": 20, "c": 50}, "0011", 20, 35, 50.0),
    ("t6", 60, {"c": 50}, "0011", 50, 10, 50.0),
    ("t7", 70, {}, "0011", 70, 0, 50.0),
]
"""The seed's unhappy timeline with O2 = 20, O5 = 50 and O7 = 70: a type lags while it has unwritten events."""


@pytest.mark.parametrize(
    ("position", "lagging", "text", "committed", "apart", "percent"),
    [row[1:] for row in UNHAPPY],
    ids=[row[0] for row in UNHAPPY],
)
def test_rules_measure_the_unhappy_timeline_of_the_seed(
    position: int, lagging: dict[str, int], text: str, committed: int, apart: int, percent: float
) -> None:
    state = export(position, lagging)
    rules = measure(state, [ZERO], NO_LIMITS, outcomes(a=text))
    assert state.of(ZERO).position_of() == committed
    assert rules.measured["discrepancy_records"] == {"events/0": apart}
    assert rules.measured["failed_writes_percent"] == {"a": pytest.approx(percent)}


# limits


def alerts(limits: AlertLimits) -> dict[str, list[str]]:
    """Half of the writes of `a` failed, and the types are 6 records apart."""
    rules = measure(export(90, {"a": 84}), [ZERO], limits, outcomes(a="01", b="1"))
    return {rule: list(texts) for rule, texts in rules.alerts.items()}


def test_failures_have_to_be_below_their_limit_and_a_discrepancy_may_reach_its_own() -> None:
    assert alerts(AlertLimits(50.0, None, 5)) == {
        "failed_writes": ["type a: 50.0 % of writes failed, the limit is 50 %"],
        "discrepancy": ["events/0: its types are 6 records apart, the limit is 5"],
    }
    assert alerts(AlertLimits(50.1, None, 6)) == {"failed_writes": [], "discrepancy": []}


@pytest.mark.parametrize(
    ("limits", "rules"),
    [
        (AlertLimits(), set()),
        (AlertLimits(failed_writes_percent_max=1.0), {"failed_writes"}),
        (AlertLimits(discrepancy_records_max=5), {"discrepancy"}),
    ],
)
def test_each_rule_is_switched_on_alone(limits: AlertLimits, rules: set[str]) -> None:
    assert alerts(limits).keys() == rules


def test_the_event_of_a_running_export_carries_the_rules_of_the_partitions_it_holds() -> None:
    limits = AlertLimits(discrepancy_records_max=10)
    rules = measure(export(100, {"a": 40}), [ZERO], limits, outcomes(a="01", b="11"))
    assert rules.facts() == {
        "measured": {
            "failed_writes_percent": {"a": 50.0, "b": 0.0},
            "discrepancy_records": {"events/0": 60},
            "type_lag_records": {"a": 60, "b": 0, "c": 0},
        },
        "alerts": {"discrepancy": ["events/0: its types are 60 records apart, the limit is 10"]},
    }


def test_a_process_without_partitions_reports_no_rules() -> None:
    rules = measure(export(100, {"a": 40}), [], AlertLimits(discrepancy_records_max=1))
    assert (rules.measured["discrepancy_records"], rules.alerts) == ({}, {"discrepancy": []})
