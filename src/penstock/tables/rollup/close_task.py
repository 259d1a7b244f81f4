"""What the tasks of a close do: they read partials, and write closed windows and what late rows change of them.

Buckets are taken a few at a time, files batch by batch, and what is read is merged on the way: memory holds a bounded
number of rows, however many the files have. A row may be late for one interval and in time for another (RULES W2, W3).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import polars as pl
import pyarrow as pa

from penstock.flow.write.files import WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import closed_name
from penstock.lake.delta.files import ActiveFile
from penstock.lake.storage import Storage, open_storage
from penstock.tables.rollup.aggregate import MERGE_ROWS_MIN, MILLI, Merging, aligned
from penstock.tables.rollup.closed_rows import Numbering, OrderedSeries, closed_rows
from penstock.tables.rollup.decide import ClosePortion, PartialsFile, Span
from penstock.tables.rollup.files import (
    in_larger_parts,
    read_batches,
    scan,
    span_ms,
    stage_files,
    starting_in,
    window_bounds,
    with_partition_columns,
)
from penstock.tables.rollup.numbers import LEAST_MS
from penstock.tables.rollup.schema import read_schema
from penstock.tables.rollup.spec import Aggregates, Window

_KEY = ("series", "window_start")


@dataclass(frozen=True, slots=True)
class CloseFlow:
    """Everything that the tasks of a portion need to know."""

    partials: Storage
    windows: WriteOptions
    aggregates: Aggregates
    owner: str
    portion: ClosePortion
    old_files: tuple[ActiveFile, ...] | None
    """Of closed windows that late rows may update; None: late rows are only counted."""

    def new_name(self) -> str:
        return closed_name(self.owner, self.portion.close, uuid.uuid4().hex)

    @property
    def windows_storage(self) -> Storage:
        return open_storage(self.windows.table_url, self.windows.storage_options)


class CloseReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task tells the driver."""

    files: tuple[StagedFile, ...] = ()
    updates: tuple[StagedFile, ...] = ()
    """Files of rows that replace rows of closed windows, or add to them."""
    replaced: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Files of closed windows, with the number of their rows that are replaced."""
    late: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Points by interval."""


def close_share(flow: CloseFlow, share: tuple[range, ...]) -> CloseReport:
    """Close the windows of a task's buckets, in the pieces in which it takes them."""
    task = _CloseTask(flow)
    for buckets in share:
        task.take(buckets)
    return CloseReport(tuple(task.files), tuple(task.updates), dict(task.replaced), dict(task.late))


def rewrite(flow: CloseFlow, work: tuple[ActiveFile, Sequence[str]]) -> CloseReport:
    """Write the rows of a file of closed windows again, without those that the rows of other files replace."""
    file, updates = work
    storage, schema = flow.windows_storage, flow.windows.schema
    columns = pa.schema([schema.field(name) for name in _KEY])
    updated = pl.concat(rows for path in updates for rows in scan(storage, path, columns))
    inside = pa.schema([column for column in schema if column.name not in flow.windows.partition_by])
    replaced = 0

    def kept() -> Iterator[pa.RecordBatch]:
        nonlocal replaced
        for batch in read_batches(storage, file.path, inside):
            keys = pl.DataFrame(pa.Table.from_batches([batch.select(_KEY)])).with_row_index("row")
            rows = batch.take(keys.join(updated, on=_KEY, how="anti")["row"].sort().to_arrow())
            replaced += batch.num_rows - rows.num_rows
            yield with_partition_columns(rows, flow.windows.partition_by, file.scalars, schema)

    files = stage_files(flow.windows, flow.new_name, kept())
    return CloseReport(files=files, replaced={file.path: replaced})


class _CloseTask:
    """The work of one task, and what it comes to, as in a report."""

    def __init__(self, flow: CloseFlow) -> None:
        self.files: list[StagedFile] = []
        self.updates: list[StagedFile] = []
        self.replaced: Counter[str] = Counter()
        self.late: Counter[str] = Counter()
        self._flow = flow
        self._schema = read_schema(flow.aggregates)

    def take(self, buckets: range) -> None:
        """Compute the due windows of some buckets, and those closed ones in full that late rows belong to."""
        numbering = Numbering()
        touched = self._touched(buckets, numbering)
        merging = {
            span: Merging(span.window, self._flow.aggregates, ("series",))
            for span in self._flow.portion.spans
            if not span.empty or span in touched
        }
        if not merging:
            return
        start = min(_first_ms(touched[span]) if span in touched else span.start_ms for span in merging)
        rows = self._rows(self._flow.portion.files, buckets, start, max(span.end_ms for span in merging))
        for part in in_larger_parts(rows, MERGE_ROWS_MIN):
            numbered = numbering.numbered(part)
            for span, merged in merging.items():
                merged.add(starting_in(numbered, span.emitted_from_ms, span.end_ms))
                if span.start_ms < span.emitted_from_ms:
                    lost = starting_in(numbered, span.start_ms, min(span.emitted_from_ms, span.end_ms))
                    self.late[span.window.name] += int(lost["count"].sum())
                if span in touched:
                    windows = numbered.with_columns(aligned(span.window.millis).alias("window"))
                    keys = touched[span].rename({"window_start": "window"})
                    merged.add(windows.join(keys, on=["series", "window"], how="semi").drop("window"))
        series, close = numbering.ordered(), {span: merged.merged() for span, merged in merging.items() if merged}
        self.files += self._written(
            series,
            ((span.window, starting_in(rows, span.emitted_from_ms, span.end_ms)) for span, rows in close.items()),
        )
        if touched:
            names = numbering.texts()
            self.updates += self._written(
                series,
                (
                    (span.window, self._corrected(close[span], span, keys.join(names, on="series"), buckets))
                    for span, keys in touched.items()
                ),
            )

    def _touched(self, buckets: range, numbering: Numbering) -> dict[Span, pl.DataFrame]:
        """The closed windows that late rows belong to, by series and start; rows that change nothing are counted."""
        spans, updates = self._flow.portion.spans, self._flow.old_files is not None
        keys: dict[Span, list[pl.DataFrame]] = {}
        closed_ms = max(span.start_ms for span in spans)
        for rows in self._rows(self._flow.portion.late_files, buckets, LEAST_MS, closed_ms):
            for span in spans:
                kept_from = min(span.complete_from_ms, span.start_ms) if updates else span.start_ms
                lost = starting_in(rows, LEAST_MS, kept_from)
                self.late[span.window.name] += int(lost["count"].sum())
                late = starting_in(rows, kept_from, span.start_ms)
                if late.height:
                    windows = numbering.numbered(late).select("series", aligned(span.window.millis))
                    keys.setdefault(span, []).append(windows.unique())
        return {span: pl.concat(frames).unique() for span, frames in keys.items()}

    def _corrected(self, rows: pl.DataFrame, span: Span, keys: pl.DataFrame, buckets: range) -> pl.DataFrame:
        """The rows of touched windows, each with the revision after the one that it replaces.

        Revision 0 is a row of a window's own close.
        """
        bounds = window_bounds(buckets, _first_ms(keys), span.start_ms)
        columns = pa.schema([self._flow.windows.schema.field(name) for name in (*_KEY, "revision", "bucket")])
        replaced = [keys.select(*_KEY, pl.lit(0, pl.Int32).alias("revision")).clear()]
        for file in self._flow.old_files or ():
            interval, day = file.values
            first_ms, last_ms = span_ms(file, day)
            if interval != span.window.name or first_ms >= span.start_ms or last_ms < _first_ms(keys):
                continue
            for old in scan(self._flow.windows_storage, file.path, columns, bounds):
                known = old.rename({"series": "text"}).join(keys, on=["text", "window_start"])
                if known.height:
                    replaced.append(known.select(*_KEY, "revision"))
                    self.replaced[file.path] += known.height
        before = pl.concat(replaced).group_by(_KEY).agg(pl.col("revision").max())
        corrected = starting_in(rows, LEAST_MS, span.start_ms).join(before, on=_KEY, how="left")
        return corrected.with_columns((pl.col("revision").fill_null(0) + 1).cast(pl.Int32))

    def _rows(
        self, files: Iterable[PartialsFile], buckets: range, start_ms: int, end_ms: int
    ) -> Iterator[pl.DataFrame]:
        for file in files:
            if file.meets(start_ms, end_ms):
                bounds = window_bounds(buckets, start_ms, end_ms)
                yield from scan(self._flow.partials, file.path, self._schema, bounds)

    def _written(self, series: OrderedSeries, several: Iterable[tuple[Window, pl.DataFrame]]) -> tuple[StagedFile, ...]:
        flow = self._flow
        batches = (
            batch
            for window, rows in several
            for batch in closed_rows(rows, series, window, flow.portion.close, flow.aggregates, flow.windows.schema)
        )
        return stage_files(flow.windows, flow.new_name, batches)


def _first_ms(keys: pl.DataFrame) -> int:
    return int(keys.select(pl.col("window_start").to_physical().min()).item()) // MILLI
