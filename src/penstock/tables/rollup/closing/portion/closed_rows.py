"""Rows of closed windows: their columns, and how merged partials become them."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pyarrow as pa

from penstock.flow.columns.fitting import fit_columns
from penstock.tables.rollup.closing.portion.numbering import OrderedSeries
from penstock.tables.rollup.closing.portion.tags import TAGS
from penstock.tables.rollup.partials.schema import INSTANT
from penstock.tables.rollup.partials.sketches import quantiles
from penstock.tables.rollup.spec import Aggregates, Window

_ROWS_PER_BATCH = 131_072
_MILLI = 1000
"""Microseconds."""
_DAY_MS = 86_400_000


def quantile_column(rank: float) -> str:
    """`q99` for 0.99, `q99_9` for 0.999."""
    return "q" + f"{rank * 100:.10g}".replace(".", "_")


def windows_schema(aggregates: Aggregates) -> pa.Schema:
    """Of the table, partition columns included."""
    asked = [
        *(("first", "last") if aggregates.ends else ()),
        *(("mean",) if aggregates.mean else ()),
        *map(quantile_column, aggregates.quantiles),
    ]
    return pa.schema(
        [
            pa.field("series", pa.string()),
            pa.field("metric", pa.string()),
            pa.field("tags", TAGS),
            pa.field("interval", pa.string()),
            pa.field("window_start", INSTANT),
            pa.field("window_end", INSTANT),
            pa.field("count", pa.int64()),
            pa.field("sum", pa.float64()),
            pa.field("min", pa.float64()),
            pa.field("max", pa.float64()),
            *(pa.field(name, pa.float64()) for name in asked),
            pa.field("revision", pa.int32()),
            pa.field("close", pa.int64()),
            pa.field("bucket", pa.int16()),
            pa.field("day", pa.date32()),
        ]
    )


def closed_rows(
    merged: pl.DataFrame, series: OrderedSeries, window: Window, close: int, aggregates: Aggregates, schema: pa.Schema
) -> Iterable[pa.RecordBatch]:
    """The sorted rows of one interval in the columns of the table, from numbered partials merged to its windows.

    They are sorted by day, of which a file has one, metric, series and window: a reader of one metric skips most row
    groups. A column `revision` counts as it is; without one the rows are new.
    """
    start = pl.col("window_start")
    columns = [
        series.places(merged["series"]).alias("place"),
        pl.lit(window.name).alias("interval"),
        (start + pl.duration(milliseconds=window.millis)).alias("window_end"),
        pl.lit(close, pl.Int64).alias("close"),
        start.dt.date().alias("day"),
    ]
    if "revision" not in merged.columns:
        columns.append(pl.lit(0, pl.Int32).alias("revision"))
    if aggregates.mean:
        # Not by Polars: it multiplies by the reciprocal of a column that it knows to be constant, which is less exact.
        columns.append(pl.lit(pl.Series("mean", merged["sum"].to_numpy() / merged["count"].to_numpy())))
    rows = merged.with_columns(columns).sort(_place_in_table(window, len(series)))
    for first in range(0, rows.height, _ROWS_PER_BATCH):
        yield _batch(rows.slice(first, _ROWS_PER_BATCH), series, aggregates, schema)


def _place_in_table(window: Window, series_count: int) -> pl.Expr:
    """Day, place of the series and start as one number: by three columns a sort takes five times as long."""
    start = pl.col("window_start").to_physical() // _MILLI
    day = start // _DAY_MS
    number = (day - day.min()) * series_count + pl.col("place").cast(pl.Int64)
    return number * (_DAY_MS // window.millis + 1) + start % _DAY_MS // window.millis


def _batch(rows: pl.DataFrame, series: OrderedSeries, aggregates: Aggregates, schema: pa.Schema) -> pa.RecordBatch:
    if aggregates.quantiles:
        found = quantiles(rows["sketch"], aggregates.quantiles)
        names = map(quantile_column, aggregates.quantiles)
        rows = rows.with_columns(each.alias(name) for each, name in zip(found, names, strict=True))
    wanted, of_series = windows_schema(aggregates), series.columns(rows["place"])
    columns = [of_series[each.name] if each.name in of_series else rows[each.name].to_arrow() for each in wanted]
    cast = [column.cast(each.type) for column, each in zip(columns, wanted, strict=True)]
    return fit_columns(pa.RecordBatch.from_arrays(cast, schema=wanted), schema)
