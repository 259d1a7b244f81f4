"""The invariant of single offsets, broken by hand: the first violation is named."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.lake.state import Totals
from penstock.logs.log import Partition
from penstock.proof.findings import Violation, ViolationKind, earliest
from penstock.tables.export.old_proof.invariants import Span
from penstock.tables.export.old_proof.offsets.scan_passes import Part, passes
from penstock.tables.export.old_proof.offsets.verdicts import (
    Held,
    Leave,
    LogOffsets,
    Reconciled,
    held_violations,
    reconcile,
    record_violations,
)

ORDERS = Partition("orders", "id1", 2)
FULL = Span(10, 20, 10, Totals(read=10, written=10))
PART = Part(10, 20)
NO_LEAVE = Leave()


def series(offsets: Iterable[int]) -> pl.Series:
    return pl.Series(list(offsets), dtype=pl.Int64)


def at(offset: int, kind: ViolationKind, end: int | None = None) -> Violation:
    return Violation("orders", 2, offset, kind, end)


def checked(
    table: Iterable[int],
    quarantine: Iterable[int] = (),
    log: LogOffsets | None = None,
    span: Span = FULL,
    leave: Leave = NO_LEAVE,
) -> Reconciled:
    return reconcile(ORDERS, PART, (span,), Held(series(table), series(quarantine)), log, leave)


def first(found: Reconciled) -> Violation | None:
    return earliest(found.violations)


def test_every_offset_once_in_any_order_is_right() -> None:
    found = checked([15, 10, 11, 12, 19, 13, 14, 16], [18, 17])
    assert first(found) is None
    assert found.held_counts == (10,)


def test_the_first_missing_offset_is_named() -> None:
    assert first(checked([10, 11, 12, 14, 15, 17, 18, 19])) == at(13, ViolationKind.MISSING)


@pytest.mark.parametrize(("table", "missing"), [(range(11, 20), 10), (range(10, 19), 19), ((), 10)])
def test_an_offset_missing_at_the_rim_is_named(table: Iterable[int], missing: int) -> None:
    assert first(checked(table)) == at(missing, ViolationKind.MISSING)


def test_the_first_doubled_offset_is_named() -> None:
    assert first(checked([*range(10, 20), 18, 14])) == at(14, ViolationKind.TWICE)


def test_an_offset_that_is_twice_in_quarantine_is_named() -> None:
    assert first(checked(range(10, 18), [18, 19, 19])) == at(19, ViolationKind.TWICE_IN_QUARANTINE)


def test_an_offset_in_table_and_quarantine_is_named() -> None:
    assert first(checked(range(10, 20), [16])) == at(16, ViolationKind.BOTH)


def test_an_unfinished_replay_may_leave_offsets_in_both() -> None:
    assert first(checked(range(10, 20), [16], leave=Leave(in_both=True))) is None


def test_what_was_read_again_for_a_new_type_may_be_held_twice_below_its_beginning() -> None:
    """Type `view` was added at 15 and has 12 and 13, which are in quarantine and in type `other` as well."""
    other, view = series([10, 11, 13, 14, *range(15, 20)]), series([12, 13])
    held = Held(pl.concat([other, view]), series([12]), (other, view))
    leave = Leave(twice_below=15)
    found = reconcile(ORDERS, PART, (FULL,), held, None, leave)
    assert first(found) is None
    assert found.held_counts == (12,)
    strict = reconcile(ORDERS, PART, (FULL,), held, None, NO_LEAVE)
    assert {(each.offset, each.kind) for each in strict.violations} == {
        (12, ViolationKind.BOTH),
        (13, ViolationKind.TWICE),
    }
    lenient = Held(pl.concat([other, view, series([19])]), series([]), (other, series([12, 13, 19])))
    assert first(reconcile(ORDERS, PART, (FULL,), lenient, None, leave)) == at(19, ViolationKind.TWICE)
    doubled = Held(pl.concat([other, series([12, 12])]), series([]), (other, series([12, 12])))
    assert first(reconcile(ORDERS, PART, (FULL,), doubled, None, leave)) == at(12, ViolationKind.TWICE)


ROUGH = Span(10, 20, 10, Totals(read=6, written=6, holes=4), rough=True)


def test_what_left_no_row_before_the_ledger_was_lost_may_be_anything() -> None:
    assert not ROUGH.unfiltered
    assert [held_violations(ORDERS, (ROUGH,), (count,)) == () for count in (5, 6, 14, 15)] == [False, True, True, False]
    records = [record_violations(ORDERS, (ROUGH,), (count,), 0, True) == () for count in (5, 6, 10, 11)]
    assert records == [False, True, True, False]


def test_an_offset_at_the_position_is_beyond_it() -> None:
    assert first(checked(range(10, 21))) == at(20, ViolationKind.BEYOND_POSITION)


def test_an_offset_before_the_origin_is_named() -> None:
    assert first(checked(range(9, 20))) == at(9, ViolationKind.BEFORE_ORIGIN)


def test_offsets_of_a_gap_are_not_missing() -> None:
    gap = Span(10, 20, 13, Totals(read=7, written=7, gap=3))
    assert first(checked(range(13, 20), span=gap)) is None
    assert first(checked(range(14, 20), span=gap)) == at(13, ViolationKind.MISSING)


FILTERED = Span(10, 20, 10, Totals(read=10, written=8, filtered=2))
HOLED = Span(10, 20, 10, Totals(read=8, written=8, holes=2))


def test_filtered_offsets_are_a_matter_of_counts() -> None:
    found = checked(range(10, 17), span=FILTERED)
    assert first(found) is None
    assert held_violations(ORDERS, (FILTERED,), found.held_counts) == (at(10, ViolationKind.MISSING, 20),)
    assert held_violations(ORDERS, (FILTERED,), (9,)) == (at(10, ViolationKind.TOO_MANY, 20),)
    assert held_violations(ORDERS, (FILTERED,), (8,)) == ()


def in_log(offsets: Iterable[int], low: int = 0, exact: bool = True) -> LogOffsets:
    return LogOffsets(series(offsets), low, exact)


def test_a_record_of_the_log_that_nobody_holds_is_named() -> None:
    held = [10, 11, 12, 13, 15, 16, 18, 19]
    assert checked(held, log=in_log(held), span=HOLED).log_violations == ()
    found = checked(held, log=in_log([*held[:-1], 17, 19]), span=HOLED)
    assert earliest(found.log_violations) == at(17, ViolationKind.MISSING)


def test_a_record_that_may_have_been_filtered_is_not_missed() -> None:
    assert checked(range(10, 18), log=in_log(range(10, 20)), span=FILTERED).log_violations == ()


def test_a_row_that_the_log_does_not_have_is_named() -> None:
    log = in_log([each for each in range(10, 20) if each != 12])
    assert earliest(checked(range(10, 20), log=log).log_violations) == at(12, ViolationKind.NOT_IN_LOG)


def test_what_compaction_or_retention_took_from_the_log_may_be_in_the_table() -> None:
    assert checked(range(10, 20), log=in_log([11, 15], exact=False)).log_violations == ()
    assert checked(range(10, 20), log=in_log(range(14, 20), low=14)).log_violations == ()


def test_counts_of_the_log_must_be_those_that_were_read() -> None:
    def violations(records: int, low: int = 0, exact: bool = True) -> tuple[Violation, ...]:
        return record_violations(ORDERS, (HOLED,), (records,), low, exact)

    wrong = (at(10, ViolationKind.NOT_COUNTED, 20),)
    assert [violations(each) for each in (7, 8, 9)] == [wrong, (), wrong]
    assert [violations(each, exact=False) for each in (7, 9)] == [(), wrong]
    assert violations(3, low=11) == ()


def test_given_up_records_may_be_in_the_log() -> None:
    span = replace(HOLED, totals=Totals(read=8, written=8, given_up=2))
    assert record_violations(ORDERS, (span,), (10,), 0, True) == ()


def test_passes_cut_every_partition_alike_and_leave_nothing_out() -> None:
    other = Partition("orders", "id1", 3)
    cut = passes({ORDERS: (0, 9), other: (100, 106)}, 5)
    assert [(each[ORDERS].lo, each[ORDERS].hi) for each in cut] == [(0, 3), (3, 6), (6, 9)]
    assert [(each[other].lo, each[other].hi) for each in cut] == [(100, 102), (102, 104), (104, 106)]
    assert [each[ORDERS].takes_lower for each in cut] == [True, False, False]
    assert [each[ORDERS].takes_higher for each in cut] == [False, False, True]


@given(
    st.lists(st.integers(0, 30), max_size=40),
    st.lists(st.integers(0, 30), max_size=5),
    st.integers(1, 30),
)
def test_windows_find_what_plain_counting_finds(table: list[int], quarantine: list[int], offsets_max: int) -> None:
    """The first wrong offset of [5, 25), found by counting each offset by itself."""
    span = Span(5, 25, 5, Totals(read=20, written=20))
    wrong = [
        offset
        for offset in range(31)
        if table.count(offset) + quarantine.count(offset) != (1 if 5 <= offset < 25 else 0)
    ]
    violations: list[Violation] = []
    for cut in passes({ORDERS: (5, 25)}, offsets_max):
        part = cut[ORDERS]
        held = Held(series(_in_part(table, part)), series(_in_part(quarantine, part)))
        violations += reconcile(ORDERS, part, (span,), held, None, Leave()).violations
    found = earliest(violations)
    assert (found.offset if found else None) == (wrong[0] if wrong else None)


def _in_part(offsets: list[int], part: Part) -> list[int]:
    return [each for each in offsets if (part.takes_lower or each >= part.lo) and (part.takes_higher or each < part.hi)]
