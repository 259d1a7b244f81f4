"""The closes of rows, while the log of the partials states what each close closed, and after it is trimmed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from penstock.tables.rollup.proof.windows import closes_frame, has_due_close, out_of_order, with_due_close
from penstock.tables.rollup.spec import window

UNTILS = {1: 60_000, 2: 120_000, 3: 120_000, 4: 300_000}
"""The third close only corrects rows."""
Rows = list[tuple[int, int, int]]
"""Minute that windows end in, close, and revision."""
RIGHT: Rows = [(1, 1, 0), (2, 2, 0), (1, 3, 1), (3, 4, 0), (5, 4, 0), (2, 4, 2)]


def frame(rows: Rows) -> pl.DataFrame:
    times = [(datetime.fromtimestamp(60 * minute, UTC), *rest) for minute, *rest in rows]
    types = pl.Schema({"window_end": pl.Datetime("us", "UTC"), "close": pl.Int64(), "revision": pl.Int32()})
    return pl.DataFrame(times, types, orient="row").with_columns(
        window_start=pl.col("window_end") - timedelta(minutes=1)
    )


def judged(rows: Rows, untils: Mapping[int, int]) -> list[bool | None]:
    """Whether each row has its close, in the order of their ends and closes; None where it is not known."""
    dated = with_due_close(frame(rows), window("1m"), closes_frame(untils))
    return dated.sort("window_start", "close").select(has_due_close().alias("right"))["right"].to_list()


@pytest.mark.parametrize(("untils", "unknown"), [(UNTILS, 0), ({}, 6), ({3: 120_000, 4: 300_000}, 4)])
def test_correct_closes_are_proven_as_far_as_the_log_still_has_them(untils: Mapping[int, int], unknown: int) -> None:
    assert judged(RIGHT, untils) == [None] * unknown + [True] * (6 - unknown)


@pytest.mark.parametrize("wrong", [(1, 2, 0), (3, 3, 0), (2, 4, 0), (3, 4, 1), (2, 2, 1), (1, 1, 1)])
def test_a_row_with_a_close_that_does_not_close_its_window_is_a_fault(wrong: tuple[int, int, int]) -> None:
    assert judged([wrong], UNTILS) == [False]


@pytest.mark.parametrize("wrong", [(1, 2, 0), (3, 1, 0), (2, 5, 0)])
def test_closes_out_of_order_are_a_fault_without_the_log_too(wrong: tuple[int, int, int]) -> None:
    assert out_of_order(frame(RIGHT)).height == 0
    assert out_of_order(frame([*RIGHT, wrong])).height
