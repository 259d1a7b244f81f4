"""Finds the rows of a file that have the keys of records, and reads only the row groups that may have one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.lake.delta.files import ActiveFile
from penstock.tables.keyed.layout import Layout, key_frame, newer, older, order_columns, order_frame
from penstock.tables.keyed.merging.chunks import ChunkStore, fitted, present, row_group_starts
from penstock.tables.keyed.merging.packing import Numbers, Places, packed

TEXTS = (pl.String, pl.Binary)
Ranges = tuple[Numbers, Numbers, Numbers]
"""The values of the records, and the least and the greatest value of each row group, encoded alike."""


def old_rows(store: ChunkStore, file: ActiveFile, records: pl.DataFrame) -> pl.DataFrame:
    """The rows of a file that have the key of a record, in the order of keys: `key`, and the number of the row, `old`.

    Also whether the record is `newer` than the row, or of the same order, a `tie`. The records have one row for each
    key, in the order of keys.
    """
    layout, all_newer = store.layout, False
    coming = records.filter(_within(layout, file)).select("key", *layout.key_names, *order_columns(layout))
    schema = pa.schema([store.schema.field(name) for name in layout.columns])
    rows, numbers = schema.empty_table(), np.array([], np.int64)
    # A file that cannot have any of the keys is not opened.
    if len(coming):
        with store.opened(file.path) as parquet:
            groups = _groups_with(layout, parquet, coming)
            all_newer = _all_newer(layout, parquet, groups, coming)
            if all_newer:
                # The orders of the rows are not needed: they are most of what there is to read.
                schema = pa.schema([store.schema.field(name) for name in layout.keys])
            read = parquet.read_row_groups(groups, columns=present(parquet, schema), use_threads=False)
            starts = row_group_starts(parquet.metadata)
        rows = fitted(read, schema)
        numbers = np.concatenate([numbers, *(np.arange(starts[group], starts[group + 1]) for group in groups)])
    there = key_frame(layout, rows).with_columns(pl.Series("old", numbers))
    there = there if all_newer else there.hstack(order_frame(layout, rows))
    pairs = coming.join(there, on=layout.key_names, suffix="_old", maintain_order="left")
    if file.vector is not None:
        pairs = pairs.filter(~np.isin(pairs["old"].to_numpy(), store.deleted(file)))
    if all_newer:
        return pairs.select("key", "old", newer=True, tie=False)
    is_newer, is_older = newer(layout, "_old"), older(layout, "_old")
    return pairs.select("key", "old", newer=is_newer, tie=~is_newer & ~is_older)


def _within(layout: Layout, file: ActiveFile) -> pl.Expr:
    """Whether a key can be in a file, by the bounds of its columns."""
    inside: pl.Expr = pl.lit(True)
    for name, column in zip(layout.key_names, layout.keys, strict=True):
        bounds = file.spans.get(column)
        if bounds is not None:
            inside = inside & (pl.col(name) >= bounds[0]) & (pl.col(name) <= bounds[1])
    return inside


def _groups_with(layout: Layout, parquet: pq.ParquetFile, coming: pl.DataFrame) -> list[int]:
    """The row groups that may have one of the keys, by the bounds of the key columns in the footer."""
    groups = [*range(parquet.metadata.num_row_groups)]
    if len(groups) == 1:
        return groups
    ranges = []
    for name, column in zip(layout.key_names, layout.keys, strict=True):
        statistics = _statistics(parquet, groups, column)
        if statistics is None:
            return groups
        ranges.append(_ranges(coming[name], statistics))
    # The records are sorted by the first column, so those within its bounds are adjacent.
    values, low, high = ranges[0]
    first, end = np.searchsorted(values, low, side="left"), np.searchsorted(values, high, side="right")
    return [group for group in np.flatnonzero(first < end).tolist() if _any_within(ranges[1:], group, first, end)]


def _all_newer(layout: Layout, parquet: pq.ParquetFile, groups: list[int], coming: pl.DataFrame) -> bool:
    """Whether all records are newer than all rows of row groups, by the bounds in the footer."""
    statistics = _statistics(parquet, groups, layout.order_names[0])
    if not statistics:
        return False
    values, _, high = _ranges(coming[order_columns(layout)[0]], statistics)
    return bool(values.min() > high.max())


def _statistics(parquet: pq.ParquetFile, groups: Iterable[int], column: str) -> list[pq.Statistics] | None:
    """The bounds of a column in each row group; None if one of them lacks them."""
    footer = parquet.metadata
    number = next(number for number in range(footer.num_columns) if footer.schema.column(number).path == column)
    statistics = [footer.row_group(group).column(number).statistics for group in groups]
    return None if any(item is None or not item.has_min_max for item in statistics) else statistics


def _any_within(ranges: Iterable[Ranges], group: int, first: Places, end: Places) -> bool:
    inside = np.ones(end[group] - first[group], np.bool_)
    for values, low, high in ranges:
        part = values[first[group] : end[group]]
        inside &= (part >= low[group]) & (part <= high[group])
    return bool(inside.any())


def _ranges(values: pl.Series, statistics: list[pq.Statistics]) -> Ranges:
    """All as numbers in the order of the values."""
    if values.dtype in TEXTS:
        bounds = [pl.Series([getattr(item, end) for item in statistics], dtype=values.dtype) for end in ("min", "max")]
    else:
        values = values.to_physical().cast(pl.Int64)
        raw = ([int(getattr(item, end)) for item in statistics] for end in ("min_raw", "max_raw"))
        bounds = [pl.Series(numbers, dtype=pl.Int64) for numbers in raw]
    codes = packed([pl.concat([values, *bounds])])
    of_values, low, high = np.split(codes, [len(values), len(values) + len(statistics)])
    return of_values, low, high
