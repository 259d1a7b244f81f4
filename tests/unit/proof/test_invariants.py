"""The invariants of a table's own numbers, each broken by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.state import DeltaPartition, Totals
from penstock.logs.log import Bounds, EpochMark, LostTail, Partition
from penstock.proof.findings import Verdict, VerifyReport, Violation, ViolationKind, earliest
from penstock.proof.numbers import (
    CommittedSlice,
    LogFacts,
    check_log,
    check_slices,
    check_totals,
    spans,
)

ORDERS = Partition("orders", "id1", 0)
RETURNS = Partition("returns", "id2", 3)

# [100, 200): 90 read (80 + 4 + 5 + 1), 6 holes, 3 in a gap, 1 given up
TOTALS = Totals(read=90, written=80, quarantined=4, filtered=5, skipped=1, holes=6, gap=4)
STATE = DeltaPartition(position=200, origin=100, totals=TOTALS)


def whole(start: int, end: int, version: int = 1) -> CommittedSlice:
    """A slice whose every offset was written."""
    return CommittedSlice(start, end, Totals(read=end - start, written=end - start), version)


def at(offset: int, kind: ViolationKind, end: int | None = None, partition: Partition = ORDERS) -> Violation:
    return Violation(partition.topic, partition.number, offset, kind, end)


WRITTEN = DeltaPartition(position=30, origin=0, totals=Totals(read=30, written=30))
THREE = (whole(0, 10, 1), whole(10, 20, 2), whole(20, 30, 3))


def test_totals_that_add_up_hold() -> None:
    check = check_totals({ORDERS: STATE})
    assert check.ok
    assert check.facts == {"read": 90}


@pytest.mark.parametrize("name", ["read", "written", "quarantined", "filtered", "skipped", "holes", "gap"])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_total_that_is_off_by_one_is_found(name: str, by: int) -> None:
    wrong = structs.replace(TOTALS, **{name: getattr(TOTALS, name) + by})
    check = check_totals({ORDERS: replace(STATE, totals=wrong), RETURNS: STATE})
    assert not check.ok
    assert check.violation == at(100, ViolationKind.NOT_COUNTED, 200)


def test_more_replayed_than_quarantined_is_found() -> None:
    assert check_totals({ORDERS: replace(STATE, totals=structs.replace(TOTALS, replayed=4))}).ok
    assert not check_totals({ORDERS: replace(STATE, totals=structs.replace(TOTALS, replayed=5))}).ok


def test_slices_that_touch_and_end_at_the_position_hold() -> None:
    check = check_slices({ORDERS: WRITTEN}, {ORDERS: THREE})
    assert check.ok
    assert check.facts == {"slices": 3}


def test_a_hole_between_slices_is_named() -> None:
    check = check_slices({ORDERS: WRITTEN}, {ORDERS: (whole(0, 10), whole(12, 20), whole(20, 30))})
    assert check.violation == at(10, ViolationKind.HOLE)


def test_an_overlap_of_slices_is_named() -> None:
    check = check_slices({ORDERS: WRITTEN}, {ORDERS: (whole(0, 10), whole(8, 20), whole(20, 30))})
    assert check.violation == at(8, ViolationKind.OVERLAP)


def test_slices_that_end_before_the_position_leave_a_hole() -> None:
    assert check_slices({ORDERS: WRITTEN}, {ORDERS: THREE[:2]}).violation == at(20, ViolationKind.HOLE)


def test_slices_that_end_beyond_the_position_are_found() -> None:
    check = check_slices({ORDERS: replace(WRITTEN, position=25)}, {ORDERS: THREE})
    assert check.violation == at(25, ViolationKind.BEYOND_POSITION)


def test_a_slice_before_the_origin_is_found() -> None:
    check = check_slices({ORDERS: replace(WRITTEN, origin=5)}, {ORDERS: THREE})
    assert check.violation == at(0, ViolationKind.BEFORE_ORIGIN)


@pytest.mark.parametrize("wrong", [Totals(read=9, written=9), Totals(read=10, written=9), Totals(read=11, written=11)])
def test_a_slice_whose_counts_are_off_by_one_is_named(wrong: Totals) -> None:
    slices = (THREE[0], CommittedSlice(10, 20, wrong, 2), THREE[2])
    assert check_slices({ORDERS: WRITTEN}, {ORDERS: slices}).violation == at(10, ViolationKind.NOT_COUNTED, 20)


def test_slices_that_do_not_add_up_to_the_totals_are_found() -> None:
    """29 written and 1 filtered in the totals, 30 written in the slices: each is conserved, together they lie."""
    state = replace(WRITTEN, totals=Totals(read=30, written=29, filtered=1))
    assert check_slices({ORDERS: state}, {ORDERS: THREE}).violation == at(0, ViolationKind.NOT_COUNTED, 30)
    assert check_slices({ORDERS: state}, {ORDERS: THREE[1:]}).ok


def test_expired_history_must_fit_before_the_retained_slices() -> None:
    assert check_slices({ORDERS: WRITTEN}, {ORDERS: THREE[2:]}).facts == {"slices": 1}
    short = replace(WRITTEN, totals=Totals(read=29, written=29))
    assert check_slices({ORDERS: short}, {ORDERS: THREE[2:]}).violation == at(0, ViolationKind.NOT_COUNTED, 30)


def test_replayed_records_do_not_disturb_the_slices() -> None:
    bad = CommittedSlice(0, 30, Totals(read=30, written=28, quarantined=2))
    state = replace(WRITTEN, totals=Totals(read=30, written=28, quarantined=2, replayed=2))
    assert check_slices({ORDERS: state}, {ORDERS: (bad,)}).ok


def test_the_violation_of_the_first_partition_comes_first() -> None:
    hole = (whole(0, 10), whole(12, 30))
    check = check_slices({RETURNS: WRITTEN, ORDERS: WRITTEN}, {RETURNS: hole, ORDERS: hole})
    assert check.violation == at(10, ViolationKind.HOLE)


def test_spans_follow_the_slices_and_one_covers_the_expired_history() -> None:
    gap = CommittedSlice(20, 30, Totals(read=8, written=8, gap=2), 3)
    state = replace(WRITTEN, totals=Totals(read=28, written=27, filtered=1, gap=2))
    result = spans({ORDERS: (whole(10, 20), gap)}, ORDERS, state)
    assert result == (
        CommittedSlice(0, 10, Totals(read=10, written=9, filtered=1), None),
        whole(10, 20),
        gap,
    )
    assert [item.read_from for item in result] == [0, 10, 22]
    assert [piece.full for piece in result] == [False, True, True]


def test_slices_that_violate_an_invariant_give_one_span() -> None:
    assert spans({ORDERS: THREE[:2]}, ORDERS, WRITTEN) == (CommittedSlice(0, 30, WRITTEN.totals, None),)


TOPIC_IDS = {"orders": topic_fingerprint("id1")}


def test_positions_within_the_log_are_ok_and_the_lag_is_shown() -> None:
    check = check_log({ORDERS: WRITTEN}, TOPIC_IDS, LogFacts({"orders": "id1"}, {ORDERS: Bounds(5, 37)}))
    assert check.ok
    assert check.facts == {"lag_records": 7, "epochs_compared": 0}


def test_a_position_beyond_the_log_is_found() -> None:
    check = check_log({ORDERS: WRITTEN}, TOPIC_IDS, LogFacts({"orders": "id1"}, {ORDERS: Bounds(5, 29)}))
    assert check.violation == at(29, ViolationKind.BEYOND_POSITION, 30)


@pytest.mark.parametrize(("end", "first"), [(25, 25), (None, 0)], ids=["cut", "another log"])
def test_a_log_that_lost_what_was_read_and_grew_again_is_found(end: int | None, first: int) -> None:
    mark = EpochMark(end=30, epoch=4)
    lost = LogFacts({"orders": "id1"}, {ORDERS: Bounds(5, 37)}, lost=(LostTail(ORDERS, mark, end),))
    check = check_log({ORDERS: replace(WRITTEN, mark=mark)}, TOPIC_IDS, lost)
    assert check.verdict is Verdict.VIOLATED
    assert check.violation == at(first, ViolationKind.NOT_IN_LOG, 30)


def test_a_log_without_leader_epochs_cannot_show_truncation() -> None:
    states = {ORDERS: replace(WRITTEN, mark=EpochMark(30, 4)), RETURNS: WRITTEN}
    bounds = {ORDERS: Bounds(5, 37), RETURNS: Bounds(0, 30)}
    check = check_log(states, TOPIC_IDS, LogFacts({"orders": "id1"}, bounds, silent=frozenset([ORDERS])))
    assert check.verdict is Verdict.NOT_PROVEN
    assert check.unproven[0].what.startswith(f"{ORDERS}: the log has no leader epochs")
    assert check.facts["epochs_compared"] == 0


def test_a_gap_ahead_is_a_warning() -> None:
    check = check_log({ORDERS: WRITTEN}, TOPIC_IDS, LogFacts({"orders": "id1"}, {ORDERS: Bounds(31, 37)}))
    assert check.ok
    assert len(check.warnings) == 1


@pytest.mark.parametrize("now", [{"orders": "id9"}, {}])
def test_a_recreated_or_deleted_topic_is_found(now: dict[str, str]) -> None:
    assert not check_log({ORDERS: WRITTEN}, TOPIC_IDS, LogFacts(now, {})).ok


def test_a_range_gives_way_to_an_exact_offset_of_its_partition() -> None:
    broad = at(0, ViolationKind.MISSING, end=10)
    exact = at(7, ViolationKind.MISSING)
    assert earliest([broad, exact]) == exact
    assert earliest([broad, at(12, ViolationKind.TWICE, partition=RETURNS)]) == broad
    assert earliest([None]) is None


def test_the_report_fails_with_one_failed_check() -> None:
    good, bad = check_totals({ORDERS: STATE}), check_slices({ORDERS: WRITTEN}, {ORDERS: THREE[:2]})
    report = VerifyReport(7, (good, bad), job="job", table="/table", deep=True)
    assert not report.ok
    assert report.as_json()["first_violation"] == {
        "topic": "orders",
        "partition": 0,
        "offset": 20,
        "kind": "hole",
        "end": None,
        "text": "no slice holds it",
    }
