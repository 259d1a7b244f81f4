"""What a task of a close does: it reads the partials of its buckets and writes their closed windows.

Buckets are taken a few at a time, files batch by batch, and what is read is merged on the way: memory holds a bounded
number of rows, however many the files have.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import polars as pl
import pyarrow as pa

from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import closed_name
from penstock.lake.storage import Storage, open_storage
from penstock.tables.rollup.closing.decide import PartialsFile, Span
from penstock.tables.rollup.closing.portion.closed_rows import closed_rows
from penstock.tables.rollup.closing.portion.late import Late, OldFile, Touched
from penstock.tables.rollup.closing.portion.numbering import Numbering
from penstock.tables.rollup.closing.portion.scan import Wanted, empty_frame, in_larger_parts, scan, starting_in
from penstock.tables.rollup.closing.standing import LEAST_MS
from penstock.tables.rollup.partials.aggregate import SERIES, merge_partials
from penstock.tables.rollup.partials.schema import written_schema
from penstock.tables.rollup.spec import Aggregates, Window

MERGE_ROWS_MIN = 500_000
"""Rows that wait before they are merged."""


@dataclass(frozen=True, slots=True)
class CloseFlow:
    """Everything that the tasks of a portion need to know."""

    partials: Storage
    windows: WriteOptions
    aggregates: Aggregates
    close: int
    owner: str
    spans: tuple[Span, ...]
    files: tuple[PartialsFile, ...]
    late_files: tuple[PartialsFile, ...]
    old_files: tuple[OldFile, ...] | None
    """Of closed windows that late rows may update; None: late rows are only counted."""
    shares: tuple[tuple[range, ...], ...]
    """The buckets of each task, in the pieces in which it takes them."""


class CloseReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task tells the driver."""

    files: tuple[StagedFile, ...] = ()
    updates: tuple[StagedFile, ...] = ()
    """Files of rows that replace rows of closed windows, or add to them."""
    replaced: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Files of closed windows, with the number of their rows that are replaced."""
    late: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Points by interval."""


@dataclass(slots=True)
class Merging:
    """Rows of partials, merged to windows of one length as they come."""

    window: Window
    aggregates: Aggregates
    series: Sequence[str] = SERIES
    """The columns that tell series apart."""
    _waiting: list[pl.DataFrame] = field(default_factory=list)
    _rows: int = 0
    _rows_max: int = MERGE_ROWS_MIN

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, rows: pl.DataFrame) -> None:
        if rows.height:
            self._waiting.append(rows)
            self._rows += rows.height
        if self._rows > self._rows_max:
            self._merge()

    def merged(self) -> pl.DataFrame:
        """All of them, one row per series and window."""
        if not self._waiting:
            return empty_frame(written_schema(self.aggregates))
        self._merge()
        return self._waiting[0]

    def _merge(self) -> None:
        rows = pl.concat(self._waiting).lazy()
        merged = merge_partials(rows, self.window.millis, self.aggregates, self.series).collect()
        self._waiting, self._rows = [merged], merged.height
        # Where merging does not help, it is not tried again before there are twice as many.
        self._rows_max = max(MERGE_ROWS_MIN, 2 * merged.height)


class CloseTask:
    """The work of one task."""

    def __init__(self, flow: CloseFlow) -> None:
        self._flow = flow
        self._schema = pa.schema([each for each in written_schema(flow.aggregates) if each.name != "day"])
        self._files: list[StagedFile] = []
        self._updates: list[StagedFile] = []
        self._replaced: Counter[str] = Counter()
        self._late: Counter[str] = Counter()

    def take(self, buckets: range) -> None:
        """Close the due windows of some buckets, and see to their late rows."""
        numbering = Numbering()
        self._files += self._write(self._due(buckets, numbering), numbering)
        late = Late(self._flow.spans, update=self._flow.old_files is not None)
        for rows in self._rows(self._flow.late_files, Wanted(buckets, LEAST_MS, late.closed_ms)):
            late.take(rows)
        self._late += late.counts
        numbering = Numbering()
        updated = [(each.window, numbering.numbered(self._updated(buckets, each))) for each in late.touched()]
        self._updates += self._write(updated, numbering)

    def report(self) -> CloseReport:
        return CloseReport(tuple(self._files), tuple(self._updates), dict(self._replaced), dict(self._late))

    def _due(self, buckets: range, numbering: Numbering) -> list[tuple[Window, pl.DataFrame]]:
        """The rows of each interval whose windows are due, numbered."""
        due = [each for each in self._flow.spans if not each.empty]
        if not due:
            return []
        merging = {each: Merging(each.window, self._flow.aggregates, ("series",)) for each in due}
        wanted = Wanted(buckets, min(each.start_ms for each in due), max(each.end_ms for each in due))
        for read in in_larger_parts(self._rows(self._flow.files, wanted), MERGE_ROWS_MIN):
            rows = numbering.numbered(read)
            for span, merged in merging.items():
                merged.add(starting_in(rows, span.emitted_from_ms, span.end_ms))
                if span.emitted_from_ms > span.start_ms:
                    lost = starting_in(rows, span.start_ms, min(span.emitted_from_ms, span.end_ms))
                    self._late[span.window.name] += int(lost["count"].sum())
        return [(span.window, merged.merged()) for span, merged in merging.items() if merged]

    def _updated(self, buckets: range, touched: Touched) -> pl.DataFrame:
        """Closed windows in full, from all their partials, with the next revision."""
        window = touched.window
        merging = Merging(window, self._flow.aggregates)
        wanted = Wanted(buckets, touched.start_ms, touched.end_ms)
        for rows in self._rows(self._flow.files, wanted):
            merging.add(touched.only(rows))
        found = touched.old_rows(self._flow.old_files or (), lambda each: self._scan_old(each, wanted))
        self._replaced += found.replaced
        return found.with_revisions(merging.merged())

    def _rows(self, files: Iterable[PartialsFile], wanted: Wanted) -> Iterator[pl.DataFrame]:
        for each in files:
            if each.meets(wanted.start_ms, wanted.end_ms):
                yield from scan(self._flow.partials, each.path, self._schema, wanted)

    def _scan_old(self, file: OldFile, wanted: Wanted) -> Iterator[pl.DataFrame]:
        whole = self._flow.windows.schema
        schema = pa.schema([whole.field(name) for name in ("series", "window_start", "revision", "bucket")])
        return scan(windows_storage(self._flow.windows), file.path, schema, wanted)

    def _write(self, several: Iterable[tuple[Window, pl.DataFrame]], numbering: Numbering) -> tuple[StagedFile, ...]:
        flow, series = self._flow, numbering.ordered()
        writer = StagedWriter(flow.windows, close_names(flow.owner, flow.close), "", 0)
        try:
            for window, merged in several:
                for batch in closed_rows(merged, series, window, flow.close, flow.aggregates, flow.windows.schema):
                    writer.write(batch)
            return writer.finish()
        except BaseException:
            writer.abandon()
            raise


def close_share(flow: CloseFlow, share: tuple[range, ...]) -> CloseReport:
    """Close the windows of a task's buckets."""
    task = CloseTask(flow)
    for buckets in share:
        task.take(buckets)
    return task.report()


def close_names(owner: str, close: int) -> Callable[[], str]:
    """Fresh names for files of a close."""
    return lambda: closed_name(owner, close, uuid.uuid4().hex)


def windows_storage(options: WriteOptions) -> Storage:
    return open_storage(options.table_url, options.storage_options)
