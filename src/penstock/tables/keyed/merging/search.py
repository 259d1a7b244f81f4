"""Finds the rows of a file that have the keys of records, and reads only the row groups that may have one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.flow.write.names import content_of
from penstock.lake.delta.files import ActiveFile
from penstock.tables.keyed.layout import Layout, key_frame, newer, older, order_columns, order_frame
from penstock.tables.keyed.merging.chunks import ChunkStore
from penstock.tables.keyed.merging.open_chunk import OpenChunk
from penstock.tables.keyed.merging.packing import Numbers, Places, packed

ROWS_SEARCHED_MIN = 50_000
ROWS_PER_KEY_MIN = 32
"""Keys are searched by bisection in more rows than that, if there are so many for each key; else both are joined.

Measured with 500,000 rows of (device, time): 200 keys take 12 ms of CPU, joined 34; 20,000 the same either way."""
TEXTS = (pl.String, pl.Binary)
Ranges = tuple[Numbers, Numbers, Numbers]
"""The values of the records, and the least and the greatest value of each row group, encoded alike."""


def old_rows(store: ChunkStore, file: ActiveFile, records: pl.DataFrame) -> pl.DataFrame:
    """The rows of a file that have the key of a record, in the order of keys: `key`, and the number of the row, `old`.

    Also whether the record is `newer` than the row, or of the same order, a `tie`. The records have one row for each
    key, in the order of keys.
    """
    layout = store.layout
    coming = records.filter(_within(layout, file)).select("key", *layout.key_names, *order_columns(layout))
    # A file that cannot have any of the keys is not opened.
    if not len(coming):
        return coming.select("key", old=pl.lit(0), newer=True, tie=False)
    with store.opened(file.path) as chunk:
        groups = _groups_with(layout, chunk, coming)
        rows = sum(chunk.footer.row_group(group).num_rows for group in groups)
        are_few = rows > max(ROWS_SEARCHED_MIN, len(coming) * ROWS_PER_KEY_MIN)
        # Only files of Penstock are known to be in the order of keys.
        search = _searched if are_few and content_of(file.path) else _joined
        places = [np.arange(chunk.group_starts[group], chunk.group_starts[group + 1]) for group in groups]
        pairs = search(layout, chunk, groups, coming)
        pairs = pairs.with_columns(old=np.concatenate([np.arange(0), *places])[pairs["old"].to_numpy()])
        if file.vector is not None:
            pairs = pairs.filter(~np.isin(pairs["old"].to_numpy(), store.deleted(file)))
        # The orders of rows are most of what there is to read, so they are not read for nothing.
        if not len(pairs) or _all_newer(layout, chunk, groups, coming):
            return pairs.select("key", "old", newer=True, tie=False)
        orders = order_frame(layout, chunk.read_at(pairs["old"].to_numpy(), layout.order_names))
    pairs = pairs.hstack(orders.select(pl.all().name.suffix("_old")))
    is_newer, is_older = newer(layout, "_old"), older(layout, "_old")
    return pairs.select("key", "old", newer=is_newer, tie=~is_newer & ~is_older)


def _joined(layout: Layout, chunk: OpenChunk, groups: Sequence[int], coming: pl.DataFrame) -> pl.DataFrame:
    keys = key_frame(layout, chunk.read(layout.keys, groups)).with_row_index("old")
    return coming.join(keys, on=layout.key_names, maintain_order="left")


def _searched(layout: Layout, chunk: OpenChunk, groups: Sequence[int], coming: pl.DataFrame) -> pl.DataFrame:
    """By bisection for all records at once: the keys of the rows ascend."""
    rows = chunk.read_codes(layout.keys, groups)
    types = [chunk.schema.field(column).type for column in layout.keys]
    sought = [coming[name].to_arrow().cast(kind) for name, kind in zip(layout.key_names, types, strict=True)]
    columns = [column.combine_chunks() for column in rows.columns]

    def keys_at(places: Places) -> Iterator[tuple[pa.Array, pa.Array]]:
        """For each part of the key, the values of the records, and those of these rows."""
        at = pa.array(np.minimum(places, rows.num_rows - 1))
        return ((value, column.take(at).cast(value.type)) for value, column in zip(sought, columns, strict=True))

    low, high = np.zeros(len(coming), np.int64), np.full(len(coming), rows.num_rows)
    while (is_open := low < high).any():
        middle = (low + high) // 2
        after = pa.repeat(False, len(coming))
        for value, other in reversed([*keys_at(middle)]):
            after = pc.or_(pc.greater(value, other), pc.and_(pc.equal(value, other), after))
        is_after = after.to_numpy(zero_copy_only=False)
        low, high = np.where(is_open & is_after, middle + 1, low), np.where(is_open & ~is_after, middle, high)
    equal = [pc.equal(value, other).to_numpy(zero_copy_only=False) for value, other in keys_at(low)]
    return coming.with_columns(old=low).filter(np.logical_and.reduce(equal))


def _within(layout: Layout, file: ActiveFile) -> pl.Expr:
    """Whether a key can be in a file, by the bounds of its columns."""
    inside: pl.Expr = pl.lit(True)
    for name, column in zip(layout.key_names, layout.keys, strict=True):
        bounds = file.spans.get(column)
        if bounds is not None:
            inside = inside & (pl.col(name) >= bounds[0]) & (pl.col(name) <= bounds[1])
    return inside


def _groups_with(layout: Layout, chunk: OpenChunk, coming: pl.DataFrame) -> list[int]:
    """The row groups that may have one of the keys, by the bounds of the key columns in the footer."""
    groups = [*range(chunk.footer.num_row_groups)]
    if len(groups) == 1:
        return groups
    ranges = []
    for name, column in zip(layout.key_names, layout.keys, strict=True):
        statistics = _statistics(chunk, groups, column)
        if statistics is None:
            return groups
        ranges.append(_ranges(coming[name], statistics))
    # The records are sorted by the first column, so those within its bounds are adjacent.
    values, low, high = ranges[0]
    first, end = np.searchsorted(values, low, side="left"), np.searchsorted(values, high, side="right")
    return [group for group in np.flatnonzero(first < end).tolist() if _any_within(ranges[1:], group, first, end)]


def _all_newer(layout: Layout, chunk: OpenChunk, groups: list[int], coming: pl.DataFrame) -> bool:
    """Whether all records are newer than all rows of row groups, by the bounds in the footer."""
    statistics = _statistics(chunk, groups, layout.order_names[0])
    if not statistics:
        return False
    values, _, high = _ranges(coming[order_columns(layout)[0]], statistics)
    return bool(values.min() > high.max())


def _statistics(chunk: OpenChunk, groups: Iterable[int], column: str) -> list[pq.Statistics] | None:
    """The bounds of a column in each row group; None if one of them lacks them."""
    number = chunk.column_number(column)
    statistics = [chunk.footer.row_group(group).column(number).statistics for group in groups]
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
