"""The windows that are not closed yet, read from partials without Spark, a range of buckets at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import polars as pl

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.points.series import BUCKETS
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table, find_table
from penstock.tables.kind import OpenWindow, OpenWindows, WindowsRequest
from penstock.tables.rollup.aggregate import merge_partials
from penstock.tables.rollup.decide import Span, spans_of
from penstock.tables.rollup.files import cut, partials_files, scan, starting_in, window_bounds
from penstock.tables.rollup.numbers import LEAST_MS, close_state
from penstock.tables.rollup.schema import read_schema
from penstock.tables.rollup.spec import Aggregates, RollupSpec, partials_job
from penstock.tables.single.table import existing_table

PASS_ROWS_MAX = 1_000_000
"""Of partials that are read before they are counted and all but the first rows are dropped."""
_ORDER = ("metric", "tags", "interval_ms", "window_start")


def open_windows(job: JobSpec[RollupSpec], request: WindowsRequest) -> OpenWindows:
    """The first open windows by series, interval and start, and how many there are.

    `UserError` if there are no partials yet.
    """
    windows = find_table(job.table.windows_place, job.name)
    closed = {} if windows is None else windows.transactions()
    # Opened after the other table was asked: what was cleaned in between was closed, and is not shown.
    partials = existing_table(partials_job(job), Environment())
    until_ms = close_state(job.name, partials.transactions(), closed).closed_until_ms
    aggregates = job.table.aggregates
    spans = {span.window.name: span for span in spans_of(job.table.windows, until_ms, until_ms)}
    if request.interval is not None:
        if request.interval not in spans:
            raise UserError(f"the job has no windows of {request.interval}", hint=f"it has {', '.join(spans)}")
        spans = {request.interval: spans[request.interval]}
    first, total = pl.DataFrame(), 0
    for rows in _merged(partials, list(spans.values()), aggregates, request.metrics):
        total += rows.height
        first = (
            pl.concat([first, rows.sort(*_ORDER).head(request.limit)], how="diagonal").sort(*_ORDER).head(request.limit)
        )
    names = {span.window.millis: name for name, span in spans.items()}
    return OpenWindows(tuple(_window(row, names, aggregates) for row in first.iter_rows(named=True)), total)


def _merged(
    partials: Table, spans: Sequence[Span], aggregates: Aggregates, metrics: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """The open windows of each interval, those of some buckets after the other."""
    start_ms = min(span.start_ms for span in spans)
    files = [file for file in partials_files(partials) if file.meets(start_ms, -LEAST_MS)]
    schema, storage = read_schema(aggregates), partials.storage()
    for buckets in cut(range(BUCKETS), -(-sum(file.rows for file in files) // PASS_ROWS_MAX)):
        bounds = window_bounds(buckets, start_ms, -LEAST_MS)
        frames = (part for file in files for part in scan(storage, file.path, schema, bounds))
        chosen = (part.filter(pl.col("metric").is_in(metrics)) if metrics else part for part in frames)
        rows = pl.concat([pl.DataFrame(schema.empty_table()), *chosen])
        for span in spans:
            started = starting_in(rows, span.start_ms, -LEAST_MS).lazy()
            merged = merge_partials(started, span.window.millis, aggregates).collect()
            yield merged.with_columns(pl.lit(span.window.millis, pl.Int64).alias("interval_ms"))


def _window(row: dict[str, Any], names: dict[int, str], aggregates: Aggregates) -> OpenWindow:
    values = {
        name: row[name] for name in ("count", "sum", "min", "max", *(("first", "last") if aggregates.ends else ()))
    }
    if aggregates.mean:
        values["mean"] = row["sum"] / row["count"]
    start, length_ms = row["window_start"], row["interval_ms"]
    tags = msgspec.json.decode(row["tags"], type=dict[str, str])
    return OpenWindow(row["metric"], tags, names[length_ms], start, start + timedelta(milliseconds=length_ms), values)
