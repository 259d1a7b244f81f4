"""Aggregation by Polars: points to partials, and partials to fewer or longer ones. The order of rows never matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from penstock.tables.rollup.partials.sketches import merged, sketched
from penstock.tables.rollup.spec import Aggregates

SERIES = ("metric", "tags", "bucket")
_MILLI = 1000
"""Microseconds."""


def aggregate_points(points: pl.DataFrame, finest_ms: int, aggregates: Aggregates) -> pl.DataFrame:
    """One row per series id and finest window, from rows of `series`, `at_ms` and `value`."""
    at, value = pl.col("at_ms"), pl.col("value")
    columns = [pl.len().cast(pl.Int64).alias("count"), value.sum().alias("sum"), value.min().alias("min")]
    columns.append(value.max().alias("max"))
    if aggregates.ends:
        columns += [
            at.min().alias("first_ms"),
            value.filter(at == at.min()).min().alias("first"),
            at.max().alias("last_ms"),
            value.filter(at == at.max()).max().alias("last"),
        ]
    if aggregates.quantiles:
        columns.append(value.alias("sketch"))
    windows = (at - at % finest_ms).alias("window_ms")
    return points.lazy().group_by("series", windows).agg(columns).with_columns(_each(sketched, aggregates)).collect()


def merge_points(aggregated: pl.DataFrame, aggregates: Aggregates) -> pl.DataFrame:
    """One row per series id and finest window, from several that `aggregate_points` made."""
    grouped = aggregated.lazy().group_by("series", "window_ms")
    return grouped.agg(_merged(aggregates)).with_columns(_each(merged, aggregates)).collect()


def merge_partials(
    partials: pl.LazyFrame, window_ms: int, aggregates: Aggregates, series: Sequence[str] = SERIES
) -> pl.LazyFrame:
    """One row per series and window of this length; `window_ms` of the finest merges rows of the same window.

    `series`: the columns that tell series apart; others do not stay.
    """
    grouped = partials.group_by(*series, aligned(window_ms))
    return grouped.agg(_merged(aggregates)).with_columns(_each(merged, aggregates))


def aligned(window_ms: int) -> pl.Expr:
    """Where the window of this length starts that holds a row of partials, as `window_start`."""
    micros = pl.col("window_start").cast(pl.Int64)
    return (micros - micros % (window_ms * _MILLI)).cast(pl.Datetime("us", "UTC")).alias("window_start")


def _merged(aggregates: Aggregates) -> list[pl.Expr]:
    columns = [pl.col("count").sum(), pl.col("sum").sum(), pl.col("min").min(), pl.col("max").max()]
    if aggregates.ends:
        first, last = pl.col("first_ms"), pl.col("last_ms")
        ends = [
            first.min(),
            pl.col("first").filter(first == first.min()).min(),
            last.max(),
            pl.col("last").filter(last == last.max()).max(),
        ]
        # Partials of before the job asked for them do not tell: then nobody knows which point was first.
        columns += [pl.when(first.null_count() == 0).then(each) for each in ends]
    if aggregates.quantiles:
        columns.append(pl.col("sketch"))
    return columns


def _each(sketch: Callable[[pl.Series], pl.Series], aggregates: Aggregates) -> list[pl.Expr]:
    """What makes one sketch of each list, if there are any."""
    return [pl.col("sketch").map_batches(sketch, return_dtype=pl.Binary)] if aggregates.quantiles else []
