"""The rows of a close that belong to one publish bucket, in the order in which they are published, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import TransientError
from penstock.flow.points.series import BUCKETS
from penstock.lake.delta.active_files import ActiveFile, active_files
from penstock.lake.delta.table import Table
from penstock.tables.rollup.closing.portion.scan import read_batches, with_partition_columns

PAGE_ROWS_MAX = 100_000
"""Of rows that are in memory, unless the series of one hash bucket have more: those are never divided."""
ORDER = [
    ("bucket", "ascending"),
    ("series", "ascending"),
    ("interval", "ascending"),
    ("window_start", "ascending"),
]
_COUNTED = pa.schema([("bucket", pa.int16()), ("close", pa.int64())])


@dataclass(frozen=True, slots=True)
class Page:
    """Rows `[start, end)`: those of some hash buckets."""

    start: int
    end: int
    buckets: tuple[int, ...]


def pages_of(counts: Sequence[tuple[int, int]], rows_max: int) -> tuple[Page, ...]:
    """Hash buckets in order, each with the number of its rows, as many together as have so many rows; at least one."""
    pages: list[Page] = []
    for bucket, rows in counts:
        last = pages[-1] if pages else Page(0, 0, ())
        if pages and last.end - last.start + rows <= rows_max:
            pages[-1] = Page(last.start, last.end + rows, (*last.buckets, bucket))
        elif rows:
            pages.append(Page(last.end, last.end + rows, (bucket,)))
    return tuple(pages)


@dataclass(slots=True)
class CloseRows:
    """Rows by number, from 0 on; the same rows have the same numbers, however often they are asked for."""

    windows: Table
    close: int
    pages: tuple[Page, ...]
    _page: Page | None = None
    _rows: pa.Table = field(default_factory=lambda: pa.table({}))

    @property
    def count(self) -> int:
        return self.pages[-1].end if self.pages else 0

    def part(self, first: int, rows_max: int) -> pa.Table:
        """At most so many rows from this number on, in the columns of the table; fewer at the end of a page."""
        page = next((each for each in self.pages if each.start <= first < each.end), None)
        if page is None:
            return self.windows.schema.empty_table()
        if page is not self._page:
            # The old page goes before the new one comes.
            self._rows = pa.table({})
            self._page, rows = None, _page_rows(self.windows, self.close, page.buckets)
            if rows.num_rows != page.end - page.start:
                raise TransientError(f"rows of close {self.close} were changed while it was published")
            self._page, self._rows = page, rows
        return self._rows.slice(first - page.start, rows_max)


def rows_of(windows: Table, close: int, bucket: int, buckets: int) -> CloseRows:
    """Those of one of so many publish buckets."""
    storage = windows.storage()
    counts = np.zeros(BUCKETS, np.int64)
    for file in _files(windows, close):
        for batch in read_batches(storage, file.path, _COUNTED):
            mine = batch.filter(pc.equal(batch.column("close"), close))
            counts += np.bincount(mine.column("bucket").to_numpy(), minlength=BUCKETS)
    numbers = range(bucket, BUCKETS, buckets)
    return CloseRows(windows, close, pages_of([(each, int(counts[each])) for each in numbers], PAGE_ROWS_MAX))


def _page_rows(windows: Table, close: int, buckets: Sequence[int]) -> pa.Table:
    schema, partition_by = windows.schema, windows.spec.partition_by
    inside = pa.schema([each for each in schema if each.name not in partition_by])
    storage, wanted = windows.storage(), pa.array(buckets, pa.int16())
    found = [
        with_partition_columns(batch.filter(_wanted(batch, close, wanted)), partition_by, file.scalars, schema)
        for file in _files(windows, close)
        for batch in read_batches(storage, file.path, inside)
    ]
    return pa.Table.from_batches(found, schema).sort_by(ORDER)


def _files(windows: Table, close: int) -> Iterator[ActiveFile]:
    for file in active_files(windows.handle, ("close",)):
        span = file.spans["close"]
        if span is None or span[0] <= close <= span[1]:
            yield file


def _wanted(batch: pa.RecordBatch, close: int, buckets: pa.Array) -> pa.Array:
    return pc.and_(pc.equal(batch.column("close"), close), pc.is_in(batch.column("bucket"), buckets))
