"""What the records of one key come to: the last one, or each value as the last record that has one left it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.tables.keyed.layout import Layout
from penstock.tables.keyed.merging.packing import Places, last_of_key

PUTS = {"key": pl.Int64, "first": pl.Int64, "last": pl.Int64, "anew": pl.Boolean}


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
    key, gone, place = (frame[name].to_numpy() for name in ("key", "gone", "place"))
    ends = last_of_key(key)
    index = np.arange(len(key))
    starts = index[np.concatenate([[True], ends[:-1]])[: len(key)]]
    # Of each key the last record that deletes it, if there is one.
    dead = np.maximum.accumulate(np.where(gone, index, -1))[ends]
    anew = dead >= starts
    alive = ~gone[ends]
    first = np.where(anew, dead + 1, starts) if layout.merge else index[ends]
    counts = (
        index >= np.repeat(np.where(anew, dead, starts), np.diff(starts, append=len(key))) if layout.merge else ends
    )
    puts = {
        "key": key[ends][alive],
        "first": place[first[alive]],
        "last": place[ends][alive],
        "anew": anew[alive],
    }
    return Folded(pl.DataFrame(puts, schema=PUTS), pl.Series(counts, dtype=pl.Boolean), layout.merge)


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
