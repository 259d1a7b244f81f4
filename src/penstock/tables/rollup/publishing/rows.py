"""The rows that are published next, of all buckets of a process, read from the table a page at a time.

A compacted file has rows of many closes, so each pass over the files serves every bucket and as many closes as a page
holds. Where the files have more rows than a page, `close` and `bucket` are read first, for thousands of closes at once:
they tell what each page holds.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.flow.points.series import BUCKETS
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.table import Table
from penstock.publish.output import PublishPosition
from penstock.tables.rollup.closing.portion.scan import group_meets, read_batches, with_partition_columns

PAGE_ROWS_MAX = 500_000
"""Of rows that are in memory, unless the series of one hash bucket have more: those are never divided."""
COUNTED_CLOSES_MAX = 4_096
"""Closes whose rows are counted in one pass."""
ORDER = ("close", "bucket", "series", "interval", "window_start")
"""Rows of a publish bucket are published in this order."""
_COUNTED = pa.schema([("bucket", pa.int16()), ("close", pa.int64())])

Counts = npt.NDArray[np.int64]
"""Rows by close and hash bucket."""


@dataclass(frozen=True, slots=True)
class Page:
    """All rows of the closes `[first, last]`; of a close that is too large the rows of hash buckets `[start, end)`."""

    first: int
    last: int
    start: int = 0
    end: int = BUCKETS

    @property
    def after(self) -> PublishPosition:
        """Where publishing goes on once all rows of the page are published."""
        if self.end == BUCKETS:
            return PublishPosition(self.last + 1)
        return PublishPosition(self.last, json.dumps([self.end - 1]))

    def holds(self, close: int, hash_bucket: int) -> bool:
        return self.first <= close <= self.last and self.start <= hash_bucket < self.end


def next_row(position: PublishPosition) -> tuple[int, int]:
    """The close and the hash bucket of the first rows that may not be published."""
    if not position.after:
        return position.close, 0
    hash_bucket, *row = json.loads(position.after)
    return position.close, hash_bucket if row else hash_bucket + 1


def rows_after(rows: pa.Table, position: PublishPosition) -> pa.Table:
    """Those of sorted rows that are not published."""
    values = [position.close, *json.loads(position.after)] if position.after else [position.close - 1]
    later: pa.ChunkedArray | None = None
    for name, value in reversed(list(zip(ORDER, values, strict=False))):
        column, bound = rows[name], pa.scalar(value, rows.schema.field(name).type)
        greater = pc.greater(column, bound)
        later = greater if later is None else pc.or_(greater, pc.and_(pc.equal(column, bound), later))
    count = pc.sum(later).as_py() or 0
    return rows.slice(rows.num_rows - count)


def position_between(published: pa.Table, rest: pa.Table) -> PublishPosition:
    """Where to go on after the first of sorted rows, if there are others of the same page."""
    close, *key = (published[name][-1] for name in ORDER)
    next_close = rest["close"][0]
    if next_close != close:
        return PublishPosition(next_close.as_py())
    hash_bucket, series, interval, start = key
    return PublishPosition(
        close.as_py(), json.dumps([hash_bucket.as_py(), series.as_py(), interval.as_py(), start.value])
    )


def page_from(counts: Counts, first: int, start: tuple[int, int], rows_max: int) -> Page:
    """The page that begins at this close and hash bucket; `counts` are those of the closes from `first` on."""
    close, hash_bucket = start
    of_close = np.cumsum(counts[close - first, hash_bucket:])
    if hash_bucket or of_close[-1] > rows_max:
        fitting = int(np.searchsorted(of_close, rows_max, side="right"))
        # At least one hash bucket with rows: a page without any would be read for nothing.
        some = int(np.searchsorted(of_close, 1, side="left")) + 1
        return Page(close, close, hash_bucket, min(BUCKETS, hash_bucket + max(fitting, some)))
    of_closes = np.cumsum(counts[close - first :].sum(axis=1))
    return Page(close, close + int(np.searchsorted(of_closes, rows_max, side="right")) - 1)


@dataclass(slots=True)
class Pages:
    """The page that is in memory, and how many rows the closes after it have at most: no row is added to a close."""

    windows: Table
    buckets: int
    """How many publish buckets there are."""
    page: Page | None = None
    _rows: dict[int, pa.Table] = field(default_factory=dict)
    """Of the page, by publish bucket, sorted."""
    _counts: Counts | None = None
    _counted_first: int = 0
    _counted_buckets: frozenset[int] = frozenset()

    def turn_to(self, position: PublishPosition, closed: int, buckets: Collection[int]) -> Page:
        """Read the page with the next row after a position, for these publish buckets; closes go up to `closed`."""
        start = next_row(position)
        if self.page is not None and self.page.holds(*start) and set(buckets) <= self._rows.keys():
            return self.page
        # The old page goes before the new one comes.
        self.page, self._rows = None, {}
        page = self._page(start, closed, frozenset(buckets))
        self._rows = _read(self.windows, page, self.buckets, buckets)
        self.page = page
        return page

    def rows(self, bucket: int, position: PublishPosition) -> pa.Table:
        """The rows of a publish bucket in the page that are not published."""
        return rows_after(self._rows[bucket], position)

    def _page(self, start: tuple[int, int], closed: int, buckets: frozenset[int]) -> Page:
        close = start[0]
        rows = [file.rows for file in _files(self.windows, close, closed)]
        known = [count for count in rows if count is not None]
        if len(known) == len(rows) and sum(known) <= PAGE_ROWS_MAX:
            return Page(close, closed)
        first = self._counted_first
        if self._counts is None or not first <= close < first + len(self._counts) or buckets != self._counted_buckets:
            self._counted_first, self._counted_buckets = close, buckets
            last = min(closed, close + COUNTED_CLOSES_MAX - 1)
            self._counts = _counted(self.windows, close, last) * _shares(buckets, self.buckets)
        return page_from(self._counts, self._counted_first, start, PAGE_ROWS_MAX)


def _shares(buckets: Collection[int], count: int) -> npt.NDArray[np.bool_]:
    """By hash bucket, whether its rows belong to one of these publish buckets."""
    return np.isin(np.arange(BUCKETS) % count, list(buckets))


def _counted(windows: Table, first: int, last: int) -> Counts:
    storage, closes = windows.storage(), last - first + 1
    counts = np.zeros(closes * BUCKETS, np.int64)
    for file in _files(windows, first, last):
        for batch in read_batches(storage, file.path, _COUNTED, _Closes(first, last)):
            close = batch.column("close").to_numpy() - first
            places = close * BUCKETS + batch.column("bucket").to_numpy()
            counts += np.bincount(places[(close >= 0) & (close < closes)], minlength=len(counts))
    return counts.reshape(closes, BUCKETS)


def _read(windows: Table, page: Page, count: int, buckets: Collection[int]) -> dict[int, pa.Table]:
    """The rows of a page by publish bucket, in the columns of the table."""
    schema, partition_by, storage = windows.schema, windows.spec.partition_by, windows.storage()
    inside = pa.schema([column for column in schema if column.name not in partition_by])
    shares = _shares(buckets, count)
    shares[: page.start] = shares[page.end :] = False
    wanted = pa.array(np.flatnonzero(shares), pa.int16())
    closes = _Closes(page.first, page.last)
    batches = [
        with_partition_columns(batch.filter(closes.rows(batch, wanted)), partition_by, file.scalars, schema)
        for file in _files(windows, page.first, page.last)
        for batch in read_batches(storage, file.path, inside, closes)
    ]
    rows = pa.Table.from_batches(batches, schema)
    numbers = rows["bucket"].to_numpy() % count
    order = [(name, "ascending") for name in ORDER]
    return {bucket: rows.filter(pa.array(numbers == bucket)).sort_by(order) for bucket in buckets}


def _files(windows: Table, first: int, last: int) -> Iterator[ActiveFile]:
    for file in windows.active_files(("close",)):
        span = file.spans["close"]
        if span is None or (span[0] <= last and span[1] >= first):
            yield file


@dataclass(frozen=True, slots=True)
class _Closes:
    """Rows of the closes `[first, last]`."""

    first: int
    last: int

    def can_be_in(self, group: pq.RowGroupMetaData, numbers: dict[str, int]) -> bool:
        """Whether the statistics of a row group leave it possible."""
        return group_meets(group, numbers.get("close"), self.first, self.last)

    def rows(self, batch: pa.RecordBatch, hash_buckets: pa.Array) -> pa.Array:
        close = batch.column("close")
        in_closes = pc.and_(pc.greater_equal(close, self.first), pc.less_equal(close, self.last))
        return pc.and_(in_closes, pc.is_in(batch.column("bucket"), hash_buckets))
