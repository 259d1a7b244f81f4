"""The windows that are not closed yet, read from partials without Spark, a range of buckets at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.points.series import BUCKETS
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table, find_table
from penstock.lake.storage import NotFoundError
from penstock.tables.kind import OpenWindow, OpenWindows, WindowsWish
from penstock.tables.rollup.closing.decide import Span, spans_of
from penstock.tables.rollup.closing.files import partials_files
from penstock.tables.rollup.closing.portion.closing_job import cut
from penstock.tables.rollup.closing.portion.scan import Wanted, scan, starting_in
from penstock.tables.rollup.closing.portion.task import Merging
from penstock.tables.rollup.closing.standing import LEAST_MS, closed_until_key
from penstock.tables.rollup.partials.schema import cleaned_key, written_schema
from penstock.tables.rollup.spec import Aggregates, RollupSpec, partials_job
from penstock.tables.single.table import existing_table

PASS_ROWS_MAX = 1_000_000
"""Of partials that are read before they are counted and all but the first rows are dropped."""
READS_MAX = 3
"""A vacuum may delete files that a merge has replaced since they were listed."""
_ORDER = ("metric", "tags", "interval_ms", "window_start")


@dataclass(frozen=True, slots=True)
class Unclosed:
    """One version of the partials, and for each interval where its open windows begin."""

    partials: Table
    spans: tuple[Span, ...]

    def of(self, interval: str | None) -> tuple[Span, ...]:
        names = [span.window.name for span in self.spans]
        if interval is not None and interval not in names:
            raise UserError(f"the job has no windows of {interval}", hint=f"it has {', '.join(names)}")
        return tuple(span for span in self.spans if interval in (None, span.window.name))


def unclosed(job: JobSpec[RollupSpec]) -> Unclosed:
    """Both tables as they are now; `UserError` if there are no partials yet."""
    windows = find_table(job.table.windows_place, job.name)
    closed = None if windows is None else windows.transaction(closed_until_key(job.name))
    closed_ms = LEAST_MS if closed is None else closed
    # Opened after the other table was asked: what was cleaned in between was closed, and is not shown.
    partials = existing_table(partials_job(job), Environment())
    cleaned = partials.transaction(cleaned_key(job.name))
    return Unclosed(
        partials, spans_of(job.table.windows, closed_ms, closed_ms, LEAST_MS if cleaned is None else cleaned)
    )


def open_windows(job: JobSpec[RollupSpec], wish: WindowsWish) -> OpenWindows:
    """The first open windows by series, interval and start, and how many there are."""
    for _ in range(READS_MAX - 1):
        with suppress(NotFoundError):
            return _read(job, unclosed(job), wish)
    return _read(job, unclosed(job), wish)


def _read(job: JobSpec[RollupSpec], view: Unclosed, wish: WindowsWish) -> OpenWindows:
    spans, aggregates = view.of(wish.interval), replace(job.table.aggregates, quantiles=())
    first, total = pl.DataFrame(), 0
    for rows in _merged(view.partials, spans, aggregates, wish.metrics):
        total += rows.height
        first = pl.concat([first, rows.sort(*_ORDER).head(wish.limit)], how="diagonal").sort(*_ORDER).head(wish.limit)
    names = {span.window.millis: span.window.name for span in spans}
    return OpenWindows(tuple(_window(row, names, aggregates) for row in first.iter_rows(named=True)), total)


def _merged(
    partials: Table, spans: Sequence[Span], aggregates: Aggregates, metrics: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """The open windows of each interval, those of some buckets after the other."""
    start_ms = min(span.emitted_from_ms for span in spans)
    files = [file for file in partials_files(partials.handle) if file.meets(start_ms, -LEAST_MS)]
    schema = pa.schema([field for field in written_schema(aggregates) if field.name != "day"])
    storage = partials.storage()
    for buckets in cut(range(BUCKETS), max(1, -(-sum(file.rows for file in files) // PASS_ROWS_MAX))):
        merging = [(span, Merging(span.window, aggregates)) for span in spans]
        for file in files:
            for rows in scan(storage, file.path, schema, Wanted(buckets, start_ms, -LEAST_MS)):
                chosen = rows.filter(pl.col("metric").is_in(metrics)) if metrics else rows
                for span, merged in merging:
                    merged.add(starting_in(chosen, span.emitted_from_ms, -LEAST_MS))
        for span, merged in merging:
            if merged:
                yield merged.merged().with_columns(pl.lit(span.window.millis, pl.Int64).alias("interval_ms"))


def _window(row: dict[str, Any], names: dict[int, str], aggregates: Aggregates) -> OpenWindow:
    values = {
        name: row[name] for name in ("count", "sum", "min", "max", *(("first", "last") if aggregates.ends else ()))
    }
    if aggregates.mean:
        values["mean"] = row["sum"] / row["count"]
    start, length_ms = row["window_start"], row["interval_ms"]
    tags = msgspec.json.decode(row["tags"], type=dict[str, str])
    return OpenWindow(row["metric"], tags, names[length_ms], start, start + timedelta(milliseconds=length_ms), values)
