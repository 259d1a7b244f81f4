"""When two sums of floating-point numbers are the same."""

from __future__ import annotations

import polars as pl

SUM_TOLERANCE = 1e-9
"""Relative: additions in another order differ in the last digits."""


def same_sum(one: pl.Expr, other: pl.Expr, added: pl.Expr) -> pl.Expr:
    """Whether both can be sums of the same values; `added`: what these come to at most, without their signs.

    Two that are not finite count as the same: which of them is infinite or no number depends on the order, too.
    """
    return ((one - other).abs() <= SUM_TOLERANCE * added + SUM_TOLERANCE) | (~one.is_finite() & ~other.is_finite())


def added_at_most() -> pl.Expr:
    """Of the values of a window, by its columns: where they cancel out, the sum says nothing about their size."""
    return pl.max_horizontal(pl.col("min").abs(), pl.col("max").abs()) * pl.col("count")
