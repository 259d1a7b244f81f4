"""Aggregation by Polars: points to partials, and partials to fewer or longer ones. The order of rows never matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from penstock.tables.rollup.schema import read_schema
from penstock.tables.rollup.spec import Aggregates, Window

SERIES = ("metric", "tags", "bucket")
MERGE_ROWS_MIN = 500_000
"""Rows that wait before they are merged."""
MILLI = 1000
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
    start = ((at - at % finest_ms) * MILLI).cast(pl.Datetime("us", "UTC")).alias("window_start")
    return points.lazy().group_by("series", start).agg(columns).collect()


def merge_partials(
    partials: pl.LazyFrame, window_ms: int, aggregates: Aggregates, series: Sequence[str] = SERIES
) -> pl.LazyFrame:
    """One row per series and window of this length; `window_ms` of the finest merges rows of the same window.

    `series`: the columns that distinguish series; other ones are dropped.
    """
    columns = [pl.col("count").sum(), pl.col("sum").sum(), pl.col("min").min(), pl.col("max").max()]
    if aggregates.ends:
        first, last = pl.col("first_ms"), pl.col("last_ms")
        ends = [
            first.min(),
            pl.col("first").filter(first == first.min()).min(),
            last.max(),
            pl.col("last").filter(last == last.max()).max(),
        ]
        # Partials without these columns are older than the setting: their first and last points are unknown.
        columns += [pl.when(first.null_count() == 0).then(end) for end in ends]
    return partials.group_by(*series, aligned(window_ms)).agg(columns)


def aligned(window_ms: int) -> pl.Expr:
    """The start of the window of this length that contains a row of partials, as `window_start`."""
    micros = pl.col("window_start").cast(pl.Int64)
    return (micros - micros % (window_ms * MILLI)).cast(pl.Datetime("us", "UTC")).alias("window_start")


def series_text() -> pl.Expr:
    """The name of a series in the table of closed windows: its metric and its tags."""
    return pl.concat_str("metric", "tags").alias("series")


@dataclass(slots=True)
class Merging:
    """Rows of partials, merged to windows of one length as they arrive."""

    window: Window
    aggregates: Aggregates
    series: Sequence[str] = SERIES
    """The columns that distinguish series."""
    rows: int = 0
    """The number of rows after the last merge."""
    _waiting: list[pl.DataFrame] = field(default_factory=list)
    _waiting_rows: int = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, rows: pl.DataFrame) -> None:
        if rows.height:
            self._waiting.append(rows)
            self._waiting_rows += rows.height
        # If a merge removes few rows, the next one waits for twice as many.
        if self._waiting_rows > max(MERGE_ROWS_MIN, 2 * self.rows):
            self._merge()

    def merged(self) -> pl.DataFrame:
        """All rows, one per series and window."""
        if not self._waiting:
            return pl.DataFrame(read_schema(self.aggregates).empty_table())
        self._merge()
        return self._waiting[0]

    def _merge(self) -> None:
        rows = pl.concat(self._waiting)
        in_windows = merge_partials(rows.lazy(), self.window.millis, self.aggregates, self.series)
        merged = in_windows.select(rows.columns).collect()
        self._waiting, self._waiting_rows, self.rows = [merged], merged.height, merged.height
