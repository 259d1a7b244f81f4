"""Rows of closed windows from merged partials.

Series are numbered: rows are merged and sorted by numbers, and each text is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.flow.columns.fitting import fit_columns
from penstock.tables.rollup.aggregate import MILLI, quantiles
from penstock.tables.rollup.schema import TAGS, quantile_column, windows_schema
from penstock.tables.rollup.spec import Aggregates, Window

_KEY = ("metric", "tags")
_NUMBERED = {"metric": pl.String, "tags": pl.String, "bucket": pl.Int16, "series": pl.UInt32}
_ROWS_PER_BATCH = 131_072
_DAY_MS = 86_400_000
_decode_tags = msgspec.json.Decoder(dict[str, str]).decode


def series_text() -> pl.Expr:
    """What names a series in the table: its metric and its tags."""
    return pl.concat_str("metric", "tags").alias("series")


class Numbering:
    """Numbers of the series of some rows of partials, from 0 on."""

    def __init__(self) -> None:
        self._known = pl.DataFrame(schema=_NUMBERED)

    def numbered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with `series`, a number, instead of metric, tags and bucket."""
        # Files are sorted by series: of neighbours with the same one only the first is looked up.
        first = rows.select(pl.any_horizontal(pl.col(_KEY).ne_missing(pl.col(_KEY).shift())).alias("first"))["first"]
        if rows.height:
            first[0] = True
        heads = rows.filter(first).select(*_KEY, "bucket")
        numbers = self._numbers(heads).gather(first.cum_sum() - 1)
        return rows.drop(*_KEY, "bucket").with_columns(numbers.alias("series"))

    def texts(self) -> pl.DataFrame:
        """The number of each series with its name in the table, as `text`."""
        return self._known.select("series", series_text().alias("text"))

    def ordered(self) -> OrderedSeries:
        """All series so far."""
        return OrderedSeries(self._known)

    def _numbers(self, heads: pl.DataFrame) -> pl.Series:
        new = heads if self._known.is_empty() else heads.join(self._known, on=_KEY, how="anti")
        if new.height:
            new = new.unique(_KEY).with_row_index("series", self._known.height).select([*_NUMBERED])
            self._known = pl.concat([self._known, new])
        return heads.join(self._known, on=_KEY, how="left", maintain_order="left")["series"]


class OrderedSeries:
    """Series in the order of the table of closed windows."""

    def __init__(self, known: pl.DataFrame) -> None:
        ordered = known.with_columns(series_text().alias("text")).sort("metric", "text")
        places = np.empty(known.height, np.uint32)
        places[ordered["series"].to_numpy()] = np.arange(known.height, dtype=np.uint32)
        self._places = pl.Series(places)
        self._columns = pa.RecordBatch.from_arrays(
            [
                ordered["text"].to_arrow().cast(pa.string()),
                ordered["metric"].to_arrow().cast(pa.string()),
                tags_of(ordered["tags"]),
                ordered["bucket"].to_arrow(),
            ],
            ["series", "metric", "tags", "bucket"],
        )

    def __len__(self) -> int:
        return len(self._places)

    def places(self, numbers: pl.Series) -> pl.Series:
        """Where the series with these numbers stand in the order."""
        return self._places.gather(numbers)

    def columns(self, places: pl.Series) -> dict[str, pa.Array]:
        """What the table says of the series at these places."""
        taken = self._columns.take(places.to_arrow())
        return dict(zip(taken.schema.names, taken.columns, strict=True))


def tags_of(texts: pl.Series) -> pa.Array:
    """The tags of canonical JSON texts, as maps."""
    if texts.str.contains("\\", literal=True).any():
        return pa.array([list(_decode_tags(text).items()) for text in texts], TAGS)
    # Without escapes a quote is never part of a key or a value, which stand between every two.
    pieces = texts.str.split('"')
    lengths = pieces.list.len().to_numpy().astype(np.int64)
    flat = pieces.explode()
    starts = np.cumsum(lengths) - lengths
    place = (np.arange(len(flat), dtype=np.int64) - np.repeat(starts, lengths)) % 4
    keys, values = flat.gather(np.flatnonzero(place == 1)), flat.gather(np.flatnonzero(place == 3))
    offsets = np.concatenate(([0], np.cumsum(lengths // 4))).astype(np.int32)
    strings = (column.to_arrow().cast(pa.string()) for column in (keys, values))
    return pa.MapArray.from_arrays(pa.array(offsets), *strings)


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
    for batch in rows.iter_slices(_ROWS_PER_BATCH):
        yield _in_columns(batch, series, aggregates, schema)


def _place_in_table(window: Window, series_count: int) -> pl.Expr:
    """Day, place of the series and start as one number: by three columns a sort takes five times as long."""
    start = pl.col("window_start").to_physical() // MILLI
    day = start // _DAY_MS
    number = (day - day.min()) * series_count + pl.col("place").cast(pl.Int64)
    return number * (_DAY_MS // window.millis + 1) + start % _DAY_MS // window.millis


def _in_columns(rows: pl.DataFrame, series: OrderedSeries, aggregates: Aggregates, schema: pa.Schema) -> pa.RecordBatch:
    if aggregates.quantiles:
        values = quantiles(rows["sketch"], aggregates.quantiles)
        names = map(quantile_column, aggregates.quantiles)
        rows = rows.with_columns(column.alias(name) for column, name in zip(values, names, strict=True))
    written, of_series = windows_schema(aggregates), series.columns(rows["place"])
    columns = [of_series[field.name] if field.name in of_series else rows[field.name].to_arrow() for field in written]
    cast = [column.cast(field.type) for column, field in zip(columns, written, strict=True)]
    return fit_columns(pa.RecordBatch.from_arrays(cast, schema=written), schema)
