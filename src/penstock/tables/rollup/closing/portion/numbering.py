"""Series by number: rows are merged and sorted by numbers, and each text is looked at once."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.tables.rollup.closing.portion.tags import tags_of

KEY = ("metric", "tags")
_SCHEMA = {"metric": pl.String, "tags": pl.String, "bucket": pl.Int16, "series": pl.UInt32}


def series_text() -> pl.Expr:
    """What names a series in the table: its metric and its tags."""
    return pl.concat_str("metric", "tags").alias("series")


class Numbering:
    """Numbers of the series of some rows of partials, from 0 on."""

    def __init__(self) -> None:
        self._known = pl.DataFrame(schema=_SCHEMA)

    def numbered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with `series`, a number, instead of metric, tags and bucket."""
        # Files are sorted by series: of neighbours with the same one only the first is looked up.
        first = rows.select(pl.any_horizontal(pl.col(KEY).ne_missing(pl.col(KEY).shift())).alias("first"))["first"]
        if rows.height:
            first[0] = True
        heads = rows.filter(first).select(*KEY, "bucket")
        numbers = self._numbers(heads).gather(first.cum_sum() - 1)
        return rows.drop(*KEY, "bucket").with_columns(numbers.alias("series"))

    def _numbers(self, heads: pl.DataFrame) -> pl.Series:
        new = heads.unique(KEY) if self._known.is_empty() else heads.join(self._known, on=KEY, how="anti").unique(KEY)
        if new.height:
            self._known = pl.concat([self._known, new.with_row_index("series", self._known.height).select([*_SCHEMA])])
        return heads.join(self._known, on=KEY, how="left", maintain_order="left")["series"]

    def ordered(self) -> OrderedSeries:
        """All series so far."""
        return OrderedSeries(self._known)


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
