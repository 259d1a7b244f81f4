"""The tasks of a close read partials, and write closed windows and those that late rows change.

Files are read and merged batch by batch. Buckets whose windows exceed memory are divided, and each half is read by
itself. A row may be late for one interval and in time for another (RULES W2, W3). Series are numbered: rows are merged
and sorted by numbers, so that each text is processed once.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.flow.columns.fitting import fit_columns
from penstock.flow.write.files import WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import closed_name
from penstock.lake.compaction import Limit, gather
from penstock.lake.delta.files import ActiveFile
from penstock.storage import Storage, open_storage
from penstock.tables.rollup.aggregate import MERGE_ROWS_MIN, MILLI, Merging, aligned, series_text
from penstock.tables.rollup.decide import ClosedSpan, CompleteClose, PartialsFile
from penstock.tables.rollup.files import (
    scan,
    span_ms,
    stage_files,
    starting_in,
    whole_rows,
    window_bounds,
)
from penstock.tables.rollup.numbers import LEAST_MS
from penstock.tables.rollup.schema import TAGS, read_schema, windows_schema
from penstock.tables.rollup.spec import Aggregates, Window

MERGED_ROWS_MAX = 1_000_000
"""Windows in memory of a task with more than one bucket."""
_KEY = ("series", "window_start")
_SERIES = ("metric", "tags")
_NUMBERED = {"metric": pl.String, "tags": pl.String, "bucket": pl.Int16, "series": pl.UInt32}
_ROWS_PER_BATCH = 131_072
_DAY_MS = 86_400_000
_decode_tags = msgspec.json.Decoder(dict[str, str]).decode


@dataclass(frozen=True, slots=True)
class CloseFlow:
    """The input of the tasks of a close."""

    partials: Storage
    windows: WriteOptions
    aggregates: Aggregates
    owner: str
    close: CompleteClose
    old_files: tuple[ActiveFile, ...] | None
    """The closed windows that late rows may update; None: late rows are only counted."""

    def new_name(self) -> str:
        return closed_name(self.owner, self.close.close, uuid.uuid4().hex)

    @property
    def windows_storage(self) -> Storage:
        return open_storage(self.windows.table_url, self.windows.storage_options)


class CloseReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What tasks report to the driver."""

    files: tuple[StagedFile, ...] = ()
    updates: tuple[StagedFile, ...] = ()
    """Files of rows that replace rows of closed windows, or are added to them."""
    kept: tuple[StagedFile, ...] = ()
    """Files of the unchanged rows of files in which others are replaced."""
    replaced: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Files of closed windows, with the number of their rows that are replaced."""
    late: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Points by interval."""

    def __add__(self, other: CloseReport) -> CloseReport:
        return CloseReport(
            self.files + other.files,
            self.updates + other.updates,
            self.kept + other.kept,
            Counter(self.replaced) + Counter(other.replaced),
            Counter(self.late) + Counter(other.late),
        )


class _TooManyRowsError(Exception):
    """The windows of some buckets do not fit in memory together."""


def close_share(flow: CloseFlow, buckets: range) -> CloseReport:
    """Close the windows of some buckets, together or in two halves."""
    try:
        return _BucketsClose(flow, buckets).run()
    except _TooManyRowsError:
        middle = (buckets.start + buckets.stop) // 2
    return close_share(flow, range(buckets.start, middle)) + close_share(flow, range(middle, buckets.stop))


def rewrite(flow: CloseFlow, work: tuple[ActiveFile, Sequence[str]]) -> CloseReport:
    """Rewrite a file of closed windows without the rows that other files replace."""
    file, updates = work
    storage = flow.windows_storage
    columns = pa.schema([flow.windows.schema.field(name) for name in _KEY])
    updated = pl.concat(rows for path in updates for rows in scan(storage, path, columns))
    replaced = 0

    def kept() -> Iterator[pa.RecordBatch]:
        nonlocal replaced
        for batch in whole_rows(storage, file, flow.windows):
            keys = pl.DataFrame(pa.Table.from_batches([batch.select(_KEY)])).with_row_index("row")
            rows = batch.take(keys.join(updated, on=_KEY, how="anti")["row"].sort().to_arrow())
            replaced += batch.num_rows - rows.num_rows
            yield rows

    files = stage_files(flow.windows, flow.new_name, kept())
    return CloseReport(kept=files, replaced={file.path: replaced})


class _BucketsClose:
    """The windows of some buckets: those that are due, and all rows of closed windows with late rows."""

    def __init__(self, flow: CloseFlow, buckets: range) -> None:
        self._flow = flow
        self._buckets = buckets
        self._schema = read_schema(flow.aggregates)
        self._numbering = CloseNumbers()
        self._replaced: Counter[str] = Counter()
        self._late: Counter[str] = Counter()

    def run(self) -> CloseReport:
        touched = self._touched()
        closed = self._merged(touched)
        series = self._numbering.ordered()
        files = self._written(
            series,
            ((span.window, starting_in(rows, span.start_ms, span.end_ms)) for span, rows in closed.items()),
        )
        updates: tuple[StagedFile, ...] = ()
        if touched:
            names = self._numbering.texts()
            corrected = (
                (span.window, self._corrected(closed[span], span, keys.join(names, on="series")))
                for span, keys in touched.items()
            )
            updates = self._written(series, corrected)
        return CloseReport(files, updates, replaced=self._replaced, late=self._late)

    def _touched(self) -> dict[ClosedSpan, pl.DataFrame]:
        """The closed windows of late rows, by series and start; late rows that change nothing are counted."""
        spans, updates = self._flow.close.spans, self._flow.old_files is not None
        keys: dict[ClosedSpan, list[pl.DataFrame]] = {}
        closed_ms = max(span.start_ms for span in spans)
        for rows in self._rows(self._flow.close.late_files, LEAST_MS, closed_ms):
            for span in spans:
                complete_from = -span.window.start_of(-self._flow.close.cleaned_ms)
                kept_from = min(complete_from, span.start_ms) if updates else span.start_ms
                lost = starting_in(rows, LEAST_MS, kept_from)
                self._late[span.window.name] += int(lost["count"].sum())
                late = starting_in(rows, kept_from, span.start_ms)
                if late.height:
                    windows = self._numbering.numbered(late).select("series", aligned(span.window.millis))
                    keys.setdefault(span, []).append(windows.unique())
        return {span: pl.concat(frames).unique() for span, frames in keys.items()}

    def _merged(self, touched: Mapping[ClosedSpan, pl.DataFrame]) -> dict[ClosedSpan, pl.DataFrame]:
        """One row per series and window, for the due windows and those with late rows."""
        merging = {
            span: Merging(span.window, self._flow.aggregates, ("series",))
            for span in self._flow.close.spans
            if not span.empty or span in touched
        }
        if not merging:
            return {}
        start = min(_first_ms(touched[span]) if span in touched else span.start_ms for span in merging)
        rows = self._rows(self._flow.close.files, start, max(span.end_ms for span in merging))
        size: Limit[pl.DataFrame] = Limit(lambda part: part.height, MERGE_ROWS_MIN)
        for parts in gather(rows, size):
            numbered = self._numbering.numbered(pl.concat(parts))
            for span, merged in merging.items():
                merged.add(starting_in(numbered, span.start_ms, span.end_ms))
                if span in touched:
                    windows = numbered.with_columns(aligned(span.window.millis).alias("window"))
                    keys = touched[span].rename({"window_start": "window"})
                    merged.add(windows.join(keys, on=["series", "window"], how="semi").drop("window"))
            if len(self._buckets) > 1 and sum(merged.rows for merged in merging.values()) > MERGED_ROWS_MAX:
                raise _TooManyRowsError
        return {span: merged.merged() for span, merged in merging.items() if merged}

    def _corrected(self, rows: pl.DataFrame, span: ClosedSpan, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows of touched windows, each with the revision after the one that it replaces.

        Revision 0 is a row of a window's own close.
        """
        bounds = window_bounds(self._buckets, _first_ms(keys), span.start_ms)
        columns = pa.schema([self._flow.windows.schema.field(name) for name in (*_KEY, "revision", "bucket")])
        replaced = [keys.select(*_KEY, pl.lit(0, pl.Int32).alias("revision")).clear()]
        for file in self._flow.old_files or ():
            interval, day = file.values
            first_ms, last_ms = span_ms(file, day)
            if interval != span.window.name or first_ms >= span.start_ms or last_ms < _first_ms(keys):
                continue
            for old in scan(self._flow.windows_storage, file.path, columns, bounds):
                touched = old.rename({"series": "text"}).join(keys, on=["text", "window_start"])
                if touched.height:
                    replaced.append(touched.select(*_KEY, "revision"))
                    self._replaced[file.path] += touched.height
        before = pl.concat(replaced).group_by(_KEY).agg(pl.col("revision").max())
        corrected = starting_in(rows, LEAST_MS, span.start_ms).join(before, on=_KEY, how="left")
        return corrected.with_columns((pl.col("revision").fill_null(0) + 1).cast(pl.Int32))

    def _rows(self, files: Iterable[PartialsFile], start_ms: int, end_ms: int) -> Iterator[pl.DataFrame]:
        bounds = window_bounds(self._buckets, start_ms, end_ms)
        for file in files:
            if file.meets(start_ms, end_ms):
                yield from scan(self._flow.partials, file.path, self._schema, bounds)

    def _written(self, series: OrderedSeries, several: Iterable[tuple[Window, pl.DataFrame]]) -> tuple[StagedFile, ...]:
        flow = self._flow
        batches = (
            batch
            for window, rows in several
            for batch in closed_rows(rows, series, window, flow.close.close, flow.aggregates, flow.windows.schema)
        )
        return stage_files(flow.windows, flow.new_name, batches)


def _first_ms(keys: pl.DataFrame) -> int:
    return int(keys.select(pl.col("window_start").to_physical().min()).item()) // MILLI


class CloseNumbers:
    """Numbers of the series of some rows of partials, from 0 on."""

    def __init__(self) -> None:
        self._series = pl.DataFrame(schema=_NUMBERED)

    def numbered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with `series`, a number, instead of metric, tags and bucket."""
        # Files are sorted by series: of adjacent rows with the same one only the first is looked up.
        changed = pl.any_horizontal(pl.col(_SERIES).ne_missing(pl.col(_SERIES).shift()))
        first = rows.select(changed.alias("first"))["first"]
        if rows.height:
            first[0] = True
        heads = rows.filter(first).select(*_SERIES, "bucket")
        numbers = self._numbers(heads).gather(first.cum_sum() - 1)
        return rows.drop(*_SERIES, "bucket").with_columns(numbers.alias("series"))

    def texts(self) -> pl.DataFrame:
        """The number of each series with its name in the table, as `text`."""
        return self._series.select("series", series_text().alias("text"))

    def ordered(self) -> OrderedSeries:
        """All series so far."""
        return OrderedSeries(self._series)

    def _numbers(self, heads: pl.DataFrame) -> pl.Series:
        new = heads if self._series.is_empty() else heads.join(self._series, on=_SERIES, how="anti")
        if new.height:
            new = new.unique(_SERIES).with_row_index("series", self._series.height).select([*_NUMBERED])
            self._series = pl.concat([self._series, new])
        return heads.join(self._series, on=_SERIES, how="left", maintain_order="left")["series"]


class OrderedSeries:
    """Series in the order of the table of closed windows."""

    def __init__(self, series: pl.DataFrame) -> None:
        ordered = series.with_columns(series_text().alias("text")).sort("metric", "text")
        places = np.empty(series.height, np.uint32)
        places[ordered["series"].to_numpy()] = np.arange(series.height, dtype=np.uint32)
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
        """The places of the series with these numbers in the order."""
        return self._places.gather(numbers)

    def columns(self, places: pl.Series) -> dict[str, pa.Array]:
        """The columns of the table for the series at these places."""
        taken = self._columns.take(places.to_arrow())
        return dict(zip(taken.schema.names, taken.columns, strict=True))


def tags_of(texts: pl.Series) -> pa.Array:
    """The tags of canonical JSON texts, as maps."""
    if texts.str.contains("\\", literal=True).any():
        return pa.array([list(_decode_tags(text).items()) for text in texts], TAGS)
    # Without escapes a quote is never part of a key or a value, so every two quotes enclose one.
    pieces = texts.str.split('"')
    lengths = pieces.list.len().to_numpy().astype(np.int64)
    flat = pieces.explode()
    starts = np.cumsum(lengths) - lengths
    place = (np.arange(len(flat), dtype=np.int64) - np.repeat(starts, lengths)) % 4
    keys, values = flat.gather(np.flatnonzero(place == 1)), flat.gather(np.flatnonzero(place == 3))
    offsets = np.concatenate(([0], np.cumsum(lengths // 4))).astype(np.int32)
    strings = (column.to_arrow().cast(pa.string()) for column in (keys, values))
    return pa.MapArray.from_arrays(pa.array(offsets), *strings)


def closed_rows(
    merged: pl.DataFrame, series: OrderedSeries, window: Window, close: int, aggregates: Aggregates, schema: pa.Schema
) -> Iterable[pa.RecordBatch]:
    """The sorted rows of one interval in the columns of the table, from numbered partials merged to its windows.

    They are sorted by day, metric, series and window: a file has one day, and a reader of one metric skips most row
    groups. Rows without a column `revision` are new.
    """
    start = pl.col("window_start")
    columns = [
        series.places(merged["series"]).alias("place"),
        pl.lit(window.name).alias("interval"),
        (start + pl.duration(milliseconds=window.millis)).alias("window_end"),
        pl.lit(close, pl.Int64).alias("close"),
        start.dt.date().alias("day"),
    ]
    if "revision" not in merged.columns:
        columns.append(pl.lit(0, pl.Int32).alias("revision"))
    if aggregates.mean:
        # Not by Polars: it multiplies by the reciprocal of a constant column, which is less exact.
        columns.append(pl.lit(pl.Series("mean", merged["sum"].to_numpy() / merged["count"].to_numpy())))
    rows = merged.with_columns(columns).sort(_place_in_table(window, len(series)))
    for batch in rows.iter_slices(_ROWS_PER_BATCH):
        yield _in_columns(batch, series, aggregates, schema)


def _place_in_table(window: Window, series_count: int) -> pl.Expr:
    """Day, place of the series and start as one number: a sort by three columns takes five times as long."""
    start = pl.col("window_start").to_physical() // MILLI
    day = start // _DAY_MS
    number = (day - day.min()) * series_count + pl.col("place").cast(pl.Int64)
    return number * (_DAY_MS // window.millis + 1) + start % _DAY_MS // window.millis


def _in_columns(rows: pl.DataFrame, series: OrderedSeries, aggregates: Aggregates, schema: pa.Schema) -> pa.RecordBatch:
    written, of_series = windows_schema(aggregates), series.columns(rows["place"])
    columns = [of_series[field.name] if field.name in of_series else rows[field.name].to_arrow() for field in written]
    cast = [column.cast(field.type) for column, field in zip(columns, written, strict=True)]
    return fit_columns(pa.RecordBatch.from_arrays(cast, schema=written), schema)
