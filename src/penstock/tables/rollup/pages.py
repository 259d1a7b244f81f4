"""Reads the rows to publish next, of all buckets of a process, a page at a time.

A page has the first rows after a position, in the order of publishing. A compacted file has rows of many closes, so
each pass over the files reads rows of every bucket and of as many closes as fit into a page.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.delta.table import DeltaLog
from penstock.publish.output import PublishPosition
from penstock.tables.rollup.files import whole_rows, write_options

PAGE_ROWS_MAX = 500_000
"""Rows in memory that wait to be published; up to twice as many while a page is read."""
ORDER = ("close", "bucket", "series", "interval", "window_start")
"""Rows of a publish bucket are published in this order."""


@dataclass(frozen=True, slots=True)
class Page:
    """All rows of some publish buckets between two positions, sorted."""

    start: PublishPosition
    after: PublishPosition
    """Where publishing continues after the rows of the page."""
    rows: dict[int, pa.Table]
    """By publish bucket."""

    def holds(self, position: PublishPosition, buckets: Collection[int]) -> bool:
        """Whether a position is in the page, and the page has rows of all these publish buckets."""
        return sort_key(self.start) <= sort_key(position) < sort_key(self.after) and self.rows.keys() >= set(buckets)


def sort_key(position: PublishPosition) -> tuple[int | str, ...]:
    """Orders positions by close, then by the key of the last published row."""
    return (position.close, *(json.loads(position.after) if position.after else ()))


def position_after(rows: pa.Table) -> PublishPosition:
    """Where publishing continues after the last of sorted rows."""
    close, bucket, series, interval, start = (rows[name][-1] for name in ORDER)
    row = [bucket.as_py(), series.as_py(), interval.as_py(), start.value]
    return PublishPosition(close.as_py(), json.dumps(row))


def rows_after(rows: pa.Table, position: PublishPosition) -> pa.Table:
    """The rows that are not yet published."""
    values = [position.close, *json.loads(position.after)] if position.after else [position.close - 1]
    later: pa.ChunkedArray | None = None
    for name, value in reversed(list(zip(ORDER, values, strict=False))):
        column, bound = rows[name], pa.scalar(value, rows.schema.field(name).type)
        greater = pc.greater(column, bound)
        later = greater if later is None else pc.or_(greater, pc.and_(pc.equal(column, bound), later))
    return rows.filter(later)


def read_page(windows: DeltaLog, start: PublishPosition, closed: int, buckets: Collection[int], count: int) -> Page:
    """The first rows after a position of some of `count` publish buckets; closes go up to `closed`."""
    last = _last_close(windows, start.close, closed)
    page, truncated = windows.schema.empty_table(), False
    for rows in _rows(windows, start, last, buckets, count):
        page = pa.concat_tables([page, rows])
        if page.num_rows > 2 * PAGE_ROWS_MAX:
            page, truncated = _first_rows(page), True
    truncated |= page.num_rows > PAGE_ROWS_MAX
    page = _first_rows(page)
    return Page(
        start,
        position_after(page) if truncated else PublishPosition(last + 1),
        {bucket: page.filter(pa.array(page["bucket"].to_numpy() % count == bucket)) for bucket in buckets},
    )


def _first_rows(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in ORDER]).slice(0, PAGE_ROWS_MAX)


def _last_close(windows: DeltaLog, first: int, closed: int) -> int:
    """The last close that fits into a page by the statistics of files; at least one close is taken."""
    rows_until: Counter[int] = Counter()
    for file in windows.active_files(("close",)):
        last = (file.spans["close"] or (first, closed))[1]
        if last >= first:
            rows_until[min(last, closed)] += file.rows or 0
    rows, chosen = 0, None
    for close in sorted(rows_until):
        rows += rows_until[close]
        if rows > PAGE_ROWS_MAX:
            return chosen or close
        chosen = close
    return closed


def _rows(
    windows: DeltaLog, start: PublishPosition, last: int, buckets: Collection[int], count: int
) -> Iterator[pa.Table]:
    """The rows after a position, up to a close, in the columns of the table."""
    storage, options = windows.storage(), write_options(windows)
    for file in windows.active_files(("close",)):
        span = file.spans["close"]
        if span is not None and (span[0] > last or span[1] < start.close):
            continue
        for batch in whole_rows(storage, file, options, {"close": (start.close, last)}):
            ours = pc.is_in(pa.array(batch.column("bucket").to_numpy() % count), pa.array(list(buckets), pa.int16()))
            batch = batch.filter(pc.and_(ours, pc.less_equal(batch.column("close"), last)))
            yield rows_after(pa.Table.from_batches([batch]), start)
