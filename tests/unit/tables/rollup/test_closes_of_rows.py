"""The closes of rows, where the log of the partials tells what each close closed, and where it does not any more."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import polars as pl
import pytest

from penstock.lake.delta.provenance import Provenance
from penstock.tables.rollup.proof.closes import CLOSES, Closes, check_closes

UNTILS = {1: 60_000, 2: 120_000, 3: 120_000, 4: 300_000}
"""The third close only corrects rows."""
Rows = list[tuple[int, int, bool]]
"""Minute that windows end in, close, and whether they were corrected."""
RIGHT: Rows = [(1, 1, False), (2, 2, False), (1, 3, True), (3, 4, False), (5, 4, False), (2, 4, True)]


def checked(rows: Rows, untils: Mapping[int, int]) -> tuple[list[str], int]:
    history = [Provenance(kind="close", job="j", batch=str(n), until_ms=at).metadata for n, at in untils.items()]
    ends = [(datetime.fromtimestamp(60 * minute, UTC), close, revised, 1) for minute, close, revised in rows]
    closes = Closes.of("j", [{**record, "version": 0} for record in history], {})
    return check_closes(pl.DataFrame(ends, CLOSES, orient="row"), closes)


@pytest.mark.parametrize(("untils", "unknown"), [(UNTILS, 0), ({}, 6), ({3: 120_000, 4: 300_000}, 3)])
def test_right_closes_have_no_fault_whatever_the_log_still_has(untils: Mapping[int, int], unknown: int) -> None:
    assert checked(RIGHT, untils) == ([], unknown)


@pytest.mark.parametrize(
    "wrong",
    [(1, 2, False), (3, 3, False), (2, 4, False), (3, 4, True), (2, 2, True), (1, 1, True)],
)
def test_a_close_that_cannot_be_the_one_of_its_window_is_a_fault(wrong: tuple[int, int, bool]) -> None:
    assert checked([wrong], UNTILS)[0]


@pytest.mark.parametrize("wrong", [(1, 2, False), (3, 1, False), (2, 5, False), (2, 2, True), (5, 3, True)])
def test_closes_out_of_order_are_a_fault_without_the_log_too(wrong: tuple[int, int, bool]) -> None:
    assert checked([*RIGHT, wrong], {})[0]
