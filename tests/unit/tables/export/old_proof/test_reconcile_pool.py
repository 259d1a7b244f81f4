"""Rows of which nothing tells the life of their topic: each offset as often as all of them have it."""

from __future__ import annotations

from collections import Counter

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.state import Totals
from penstock.logs.log import Partition
from penstock.proof.findings import Violation, ViolationKind
from penstock.tables.export.old_proof.invariants import Span
from penstock.tables.export.old_proof.offsets.scan_passes import Part
from penstock.tables.export.old_proof.offsets.verdicts import Placed, reconcile_pool

OLD, NEW = Partition("t", "old", 0), Partition("t", "new", 0)
PART = Part(0, 10)


def full(lo: int, hi: int) -> Span:
    return Span(lo, hi, lo, Totals(read=hi - lo, written=hi - lo))


def offsets(values: list[int]) -> pl.Series:
    return pl.Series(values, dtype=pl.Int64)


def found(pooled: list[int], own: list[int], spans: tuple[Span, Span], others: bool = False) -> tuple[Violation, ...]:
    members = {OLD: Placed([spans[0]], offsets([])), NEW: Placed([spans[1]], offsets(own))}
    return reconcile_pool(PART, members, offsets(pooled), others)


def test_each_life_has_its_offset() -> None:
    spans = (full(0, 4), full(2, 6))
    assert found([0, 1, 2, 3, 2, 3, 4, 5], [], spans) == ()
    assert found([0, 1, 2, 3, 2, 3], [4, 5], spans) == ()
    assert found([0, 1, 2, 3, 3, 4, 5], [], spans) == (Violation("t", 0, 2, ViolationKind.MISSING),)
    assert found([0, 1, 2, 3, 2, 3, 3, 4, 5], [], spans) == (Violation("t", 0, 3, ViolationKind.TWICE),)


def test_a_span_with_filtered_records_may_have_an_offset_or_not() -> None:
    loose = Span(2, 6, 2, Totals(read=4, written=2, filtered=2))
    spans = (full(0, 4), loose)
    assert found([0, 1, 2, 3, 3, 5], [], spans) == ()
    assert found([0, 1, 2, 3, 3, 3], [], spans) == (Violation("t", 0, 3, ViolationKind.TWICE),)
    assert found([1, 2, 3, 3, 5], [], spans) == (Violation("t", 0, 0, ViolationKind.MISSING),)


def test_rows_of_other_jobs_may_be_among_them() -> None:
    spans = (full(0, 2), full(0, 2))
    assert found([0, 0, 0, 1, 1, 7], [], spans, others=True) == ()
    assert found([0, 1, 1], [], spans, others=True) == (Violation("t", 0, 0, ViolationKind.MISSING),)


@given(st.lists(st.integers(0, 9), max_size=25), st.integers(0, 9), st.integers(0, 9))
def test_what_plain_counting_finds(pooled: list[int], end: int, start: int) -> None:
    """The old life has [0, end), the new one [start, 10)."""
    wanted = Counter([*range(end), *range(start, 10)])
    have = Counter(pooled)
    missing = [each for each in range(10) if have[each] < wanted[each]]
    doubled = [each for each in range(10) if have[each] > wanted[each]]
    violations = found(pooled, [], (full(0, end), full(start, 10)))
    expected = [
        (each[0], kind) for each, kind in ((missing, ViolationKind.MISSING), (doubled, ViolationKind.TWICE)) if each
    ]
    assert [(each.offset, each.kind) for each in violations] == expected
