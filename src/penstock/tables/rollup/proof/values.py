"""When two rows of the same window have the same values, although their points were added in another order."""

from __future__ import annotations

import polars as pl

from penstock.tables.rollup.spec import Aggregates

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


def differs(aggregates: Aggregates, other: str) -> pl.Expr:
    """Whether a row of as many points has another value than its columns `<name><other>`."""
    apart = ~same_sum(pl.col("sum"), pl.col(f"sum{other}"), added_at_most()).fill_null(False)
    for name in ("min", "max"):
        apart |= pl.col(name).ne_missing(pl.col(f"{name}{other}"))
    for name in ("first", "last") if aggregates.ends else ():
        # Where one of both does not tell, the job did not ask for it at the time.
        apart |= (pl.col(name) != pl.col(f"{name}{other}")).fill_null(False)
    return apart


def beyond(part: str, whole: str) -> pl.Expr:
    """Whether some of the points of a window have values that all of them do not have."""
    least = pl.col(f"min{part}") < pl.col(f"min{whole}")
    return least | (pl.col(f"max{part}") > pl.col(f"max{whole}"))
