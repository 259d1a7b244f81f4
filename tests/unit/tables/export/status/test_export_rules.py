"""The three rules of seed 000 on numbers worked out by hand."""

from __future__ import annotations

import pytest

from penstock.lake.delta.keys import topic_fingerprint
from penstock.logs.kafka.log import Retention
from penstock.logs.log import Partition
from penstock.status.model import Alert
from penstock.tables.export.spec import AlertLimits
from penstock.tables.export.state import Cause, ExportState, JobPartition, Lag, TypeState
from penstock.tables.export.status.alerts import (
    Measured,
    Rule,
    breaches,
    discrepancy,
    failed_percent,
    gap_records,
    measure,
    measured_rules,
)

ZERO = Partition("events", "topic-1", 0)
ONE = Partition("events", "topic-1", 1)
TYPES = ("a", "b", "c")


def outcomes_of(text: str) -> TypeState:
    """A type whose last writes were done (1) or failed (0), the newest last."""
    return TypeState(7, int(f"1{text}", 2))


def export(position: int, lagging: dict[str, int] | None = None, **outcomes: str) -> ExportState:
    """One partition of the three types, of which some lag."""
    lags = {name: Lag(offset, Cause.ROTATION, deferred=1) for name, offset in (lagging or {}).items()}
    return ExportState(
        version=1,
        partitions={(ZERO.topic_id, ZERO.number): JobPartition(position, 0, lags=lags)},
        fingerprints={"events": topic_fingerprint("topic-1")},
        types={name: outcomes_of(outcomes.get(name, "")) for name in TYPES},
    )


# failed writes


@pytest.mark.parametrize(
    ("outcomes", "percent"), [("1111", 0.0), ("0", 100.0), ("1011", 25.0), ("0" * 45 + "1" * 15, 75.0)]
)
def test_the_share_of_failed_writes_is_in_percent(outcomes: str, percent: float) -> None:
    assert failed_percent([outcomes_of(outcomes)]) == percent


def test_a_type_that_was_never_written_has_no_share() -> None:
    assert failed_percent([outcomes_of("")]) is None
    assert measure(export(10), [ZERO], {}, {}).failed_writes_percent_by_type == {}


def test_the_share_of_all_types_weighs_each_write_alike() -> None:
    found = measure(export(10, a="0", b="111111111"), [ZERO], {}, {})
    assert found.failed_writes_percent_by_type == {"a": 100.0, "b": 0.0}
    assert found.failed_writes_percent == 10.0


# lag


def test_lag_is_from_the_latest_committable_offset_to_the_end_also_while_a_type_is_behind() -> None:
    assert measure(export(70, {"a": 10}), [ZERO], {ZERO: 100}, {}).lag_records == {ZERO: 30}


def test_lag_is_measured_only_where_the_end_is_known() -> None:
    assert measure(export(70), [ZERO], {}, {}).lag_records == {}


def test_a_partition_without_a_position_has_neither_lag_nor_discrepancy() -> None:
    found = measure(export(70), [ZERO, ONE], {ZERO: 70, ONE: 50}, {})
    assert found.lag_records == {ZERO: 0}
    assert found.discrepancy_records == {ZERO: 0}


# discrepancy


def test_types_that_are_up_to_date_do_not_differ_however_long_they_had_no_event() -> None:
    assert discrepancy(export(1_000_000), ZERO) == 0


def test_a_type_that_lags_is_compared_with_those_that_are_up_to_date() -> None:
    assert discrepancy(export(100, {"a": 40}), ZERO) == 60


def test_where_every_type_lags_they_are_compared_with_each_other() -> None:
    state = export(100, {"a": 40, "b": 70, "c": 55})
    assert discrepancy(state, ZERO) == 30
    assert [gap_records(state, ZERO, name) for name in TYPES] == [60, 30, 45]


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
    ("head", "lagging", "outcomes", "committed", "apart", "percent"),
    [each[1:] for each in UNHAPPY],
    ids=[each[0] for each in UNHAPPY],
)
def test_the_unhappy_timeline_of_the_seed(
    head: int, lagging: dict[str, int], outcomes: str, committed: int, apart: int, percent: float
) -> None:
    state = export(head, lagging, a=outcomes)
    found = measure(state, [ZERO], {ZERO: 75}, {})
    assert state.of(ZERO).position_of() == committed
    assert found.discrepancy_records == {ZERO: apart}
    assert found.failed_writes_percent_by_type == {"a": pytest.approx(percent)}
    assert found.lag_records == {ZERO: 75 - head}


# limits

FOUND = Measured(40.0, {"a": 50.0, "b": 0.0}, {ZERO: 10, ONE: 9}, {ZERO: 5, ONE: 6})


def test_without_limits_nothing_is_an_alert() -> None:
    assert list(breaches(FOUND, AlertLimits())) == []


def test_failures_and_lag_have_to_be_below_their_limits_and_a_discrepancy_may_reach_its_own() -> None:
    assert list(breaches(FOUND, AlertLimits(50.0, 10, 5))) == [
        Alert(Rule.FAILED_WRITES, "type a: 50.0 % of the last writes failed, the limit is 50 %"),
        Alert(Rule.LAG, "events/0: 10 records up to the end of the log, the limit is 10"),
        Alert(Rule.DISCREPANCY, "events/1: its types are 6 records apart, the limit is 5"),
    ]
    assert list(breaches(FOUND, AlertLimits(50.1, 11, 6))) == []


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        (AlertLimits(failed_writes_percent_max=1.0), Rule.FAILED_WRITES),
        (AlertLimits(lag_records_max=10), Rule.LAG),
        (AlertLimits(discrepancy_records_max=5), Rule.DISCREPANCY),
    ],
)
def test_each_rule_is_switched_on_alone(limits: AlertLimits, rule: Rule) -> None:
    assert {each.kind for each in breaches(FOUND, limits)} == {rule}


def test_the_event_of_a_running_export_carries_the_rules_of_the_partitions_it_holds() -> None:
    state = export(100, {"a": 40}, a="01", b="11")
    found = measured_rules(state, {ZERO: 130}, {}, AlertLimits(lag_records_max=30, discrepancy_records_max=100))
    assert found.facts() == {
        "failed_writes_percent": 25.0,
        "failed_writes_percent_by_type": {"a": 50.0, "b": 0.0},
        "lag_records": {"events/0": 30},
        "discrepancy_records": {"events/0": 60},
        "position": {"events/0": 100},
        "global_position": {"events/0": 40},
        "type_lag_records": {"a": 60, "b": 0, "c": 0},
        "watermark": {},
        "alerts": {
            "lag": ["events/0: 30 records up to the end of the log, the limit is 30"],
            "discrepancy": [],
            "retention": [],
        },
    }


def test_a_process_without_partitions_reports_none() -> None:
    found = measured_rules(export(100, {"a": 40}), {}, {}, AlertLimits(lag_records_max=1))
    assert (found.lag_records, found.discrepancy_records) == ({}, {})
    assert found.alerts == {"lag": [], "retention": []}


# retention


@pytest.mark.parametrize(("expiring", "broken"), [(40, []), (41, ["a"]), (100, ["a", "b"])])
def test_a_type_whose_oldest_waiting_record_has_used_up_its_share_of_the_retention_is_named(
    expiring: int, broken: list[str]
) -> None:
    """`a` waits from 40 on, `b` from 60 on."""
    found = measure(export(100, {"a": 40, "b": 60}), [ZERO], {ZERO: 100}, {ZERO: expiring})
    assert list(breaches(found, AlertLimits())) == [
        Alert(Rule.RETENTION, f"type {name} in events/0: 1 records wait, 50 % of the topic's retention is over")
        for name in broken
    ]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}, Retention(604_800.0)),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "1000"}, Retention(None, by_size=True)),
        ({"cleanup.policy": "compact", "retention.ms": "604800000", "retention.bytes": "1000"}, Retention()),
        ({"cleanup.policy": "compact,delete", "retention.ms": "1000", "retention.bytes": "0"}, Retention(1.0, True)),
    ],
)
def test_what_the_settings_of_a_topic_say_of_its_retention(settings: dict[str, str], expected: Retention) -> None:
    assert Retention.of(settings) == expected
