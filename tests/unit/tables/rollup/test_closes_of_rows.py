"""The closes of rows, where the log of the partials tells what each close closed, and where it does not any more."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import polars as pl
import pytest

from penstock.tables.rollup.proof.windows import closes_frame, has_due_close, with_due_close
from penstock.tables.rollup.spec import window

UNTILS = {1: 60_000, 2: 120_000, 3: 120_000, 4: 300_000}
"""The third close only corrects rows."""
Rows = list[tuple[int, int, int]]
"""Minute that windows end in, close, and revision."""
RIGHT: Rows = [(1, 1, 0), (2, 2, 0), (1, 3, 1), (3, 4, 0), (5, 4, 0), (2, 4, 2)]


def judged(rows: Rows, untils: Mapping[int, int]) -> list[bool | None]:
    """Whether each row has its close, in the order of their ends and closes; None where it is not known."""
    starts = [(datetime.fromtimestamp(60 * (minute - 1), UTC), *rest) for minute, *rest in rows]
    types = pl.Schema({"window_start": pl.Datetime("us", "UTC"), "close": pl.Int64(), "revision": pl.Int32()})
    frame = with_due_close(pl.DataFrame(starts, types, orient="row"), window("1m"), closes_frame(untils))
    return frame.sort("window_start", "close").select(has_due_close().alias("right"))["right"].to_list()


@pytest.mark.parametrize(("untils", "unknown"), [(UNTILS, 0), ({}, 6), ({3: 120_000, 4: 300_000}, 4)])
def test_right_closes_are_right_as_far_as_the_log_still_has_them(untils: Mapping[int, int], unknown: int) -> None:
    assert judged(RIGHT, untils) == [None] * unknown + [True] * (6 - unknown)


@pytest.mark.parametrize("wrong", [(1, 2, 0), (3, 3, 0), (2, 4, 0), (3, 4, 1), (2, 2, 1), (1, 1, 1)])
def test_a_close_that_cannot_be_the_one_of_its_window_is_a_fault(wrong: tuple[int, int, int]) -> None:
    assert judged([wrong], UNTILS) == [False]
