"""Rows of closed windows: their columns, and how merged partials become them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.flow.columns.fitting import fit_columns
from penstock.tables.rollup.partials.schema import INSTANT
from penstock.tables.rollup.partials.sketches import quantiles
from penstock.tables.rollup.spec import Aggregates, Window

TAGS = pa.map_(pa.string(), pa.string())
SORTED_BY = ("day", "metric", "series", "window_start")
"""The order of rows in a file: a reader of one metric skips most row groups. A file has one day."""
_TAGS_PER_BATCH = 131_072
_decode_tags = msgspec.json.Decoder(dict[str, str]).decode


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


def series_text() -> pl.Expr:
    """What names a series in the table: its metric and its tags."""
    return pl.concat_str("metric", "tags").alias("series")


def closed_rows(
    merged: pl.DataFrame, window: Window, close: int, aggregates: Aggregates, schema: pa.Schema
) -> Iterable[pa.RecordBatch]:
    """The sorted rows of one interval in the columns of the table, from partials merged to its windows.

    A column `revision` counts as it is; without one the rows are new.
    """
    start = pl.col("window_start")
    columns = [
        series_text(),
        pl.lit(window.name).alias("interval"),
        (start + pl.duration(milliseconds=window.millis)).alias("window_end"),
        pl.lit(close, pl.Int64).alias("close"),
        start.dt.date().alias("day"),
    ]
    if "revision" not in merged.columns:
        columns.append(pl.lit(0, pl.Int32).alias("revision"))
    if aggregates.mean:
        columns.append((pl.col("sum") / pl.col("count")).alias("mean"))
    rows = merged.with_columns(columns).sort(*SORTED_BY)
    for first in range(0, rows.height, _TAGS_PER_BATCH):
        yield _batch(rows.slice(first, _TAGS_PER_BATCH), aggregates, schema)


def _batch(rows: pl.DataFrame, aggregates: Aggregates, schema: pa.Schema) -> pa.RecordBatch:
    if aggregates.quantiles:
        found = quantiles(rows["sketch"], aggregates.quantiles)
        names = map(quantile_column, aggregates.quantiles)
        rows = rows.with_columns(each.alias(name) for each, name in zip(found, names, strict=True))
    wanted = windows_schema(aggregates)
    columns = [
        tags_of(rows["tags"]) if each.name == "tags" else rows[each.name].to_arrow().cast(each.type) for each in wanted
    ]
    return fit_columns(pa.RecordBatch.from_arrays(columns, schema=wanted), schema)


def tags_of(texts: pl.Series) -> pa.Array:
    """The tags of canonical JSON texts, as maps."""
    if texts.str.contains("\\", literal=True).any():
        return pa.array([list(_decode_tags(each).items()) for each in texts], TAGS)
    return _plain_tags(texts)


def _plain_tags(texts: pl.Series) -> pa.Array:
    """Of texts without escapes: a quote is then never part of a key or a value, which stand between every two."""
    pieces = texts.str.split('"')
    lengths = pieces.list.len().to_numpy().astype(np.int64)
    flat = pieces.explode()
    starts = np.cumsum(lengths) - lengths
    place = (np.arange(len(flat), dtype=np.int64) - np.repeat(starts, lengths)) % 4
    keys, values = flat.gather(np.flatnonzero(place == 1)), flat.gather(np.flatnonzero(place == 3))
    offsets = np.concatenate(([0], np.cumsum(lengths // 4))).astype(np.int32)
    strings = (each.to_arrow().cast(pa.string()) for each in (keys, values))
    return pa.MapArray.from_arrays(pa.array(offsets), *strings)
