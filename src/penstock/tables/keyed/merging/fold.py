"""What the records of one key come to: the last one, or each value as the last record that has one left it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.tables.keyed.layout import Layout

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Folded:
    """The keys that have a row afterwards, and which records count."""

    puts: pl.DataFrame
    """`key`, and the numbers `first` to `last` of the records that make its row; `anew` where one deleted it before."""
    counts: pl.Series
    """Of each record that came in: whether it had an effect. The others lost to a newer one."""
    merge: bool

    def rows(self, records: pa.Table, puts: pl.DataFrame, base: pa.Table | None = None) -> pa.Table:
        """The rows of these keys; `old` of a key is the row of `base` whose values stand where records have none."""
        if not self.merge:
            return records.take(puts["last"].to_arrow())
        columns = [_last_values(records.column(name), puts) for name in records.schema.names]
        if base is not None and "old" in puts.columns:
            kept = puts.select(pl.when(~pl.col("anew")).then("old"))["old"].to_arrow().cast(pa.int64())
            columns = [
                pa.chunked_array([pa.compute.coalesce(mine, base.column(name).take(kept).combine_chunks())])
                for name, mine in zip(records.schema.names, map(_whole, columns), strict=True)
            ]
        return pa.Table.from_arrays(columns, schema=records.schema)


def fold(layout: Layout, frame: pl.DataFrame) -> Folded:
    """Fold records that are in the order of key and sequence, none of them older than what is there."""
    if not len(frame):
        empty = pl.DataFrame(schema={"key": pl.Int64, "first": pl.Int64, "last": pl.Int64, "anew": pl.Boolean})
        return Folded(empty, pl.Series([], dtype=pl.Boolean), layout.merge)
    index = pl.col("index")
    told = frame.with_columns(pl.int_range(pl.len()).cast(pl.Int64).alias("index")).with_columns(
        pl.when(pl.col("gone")).then(index).max().over("key").alias("dead"),
        (index == index.max().over("key")).alias("end"),
    )
    if layout.merge:
        counts = told.select((pl.col("index") >= pl.col("dead").fill_null(-1)).alias("it"))["it"]
    else:
        counts = told["end"]
    alive = told.filter(counts & ~pl.col("gone"))
    puts = (
        alive.group_by("key", maintain_order=True)
        .agg(pl.col("place").first().alias("first"), pl.col("place").last().alias("last"), pl.col("dead").first())
        .with_columns(pl.col("dead").is_not_null().alias("anew"))
        .drop("dead")
    )
    return Folded(puts, counts, layout.merge)


def _last_values(column: pa.ChunkedArray, puts: pl.DataFrame) -> pa.ChunkedArray:
    """Of each key the last value among its records that is not null."""
    present = column.is_valid().to_numpy()
    newest: Places = np.maximum.accumulate(np.where(present, np.arange(len(column)), -1))
    at = newest[puts["last"].to_numpy()] if len(puts) else np.array([], np.int64)
    found = at >= puts["first"].to_numpy()
    return column.take(pa.array(np.maximum(at, 0), mask=~found))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
