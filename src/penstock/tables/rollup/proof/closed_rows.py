"""Closed windows against the partials that are still there: each row once, well formed, and with the right values.

A row of close *n* has exactly the points of the partials with an epoch below *n* (RULES W2). Partials that were merged
have the greatest of their epochs: of those the row may have all points, or only those that were not late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.points.series import BUCKETS, bucket_numbers
from penstock.flow.write.names import parse_compacted_name
from penstock.job.faults import RefusedError
from penstock.job.spec import JobSpec
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.table import Table
from penstock.lake.storage import NotFoundError
from penstock.proof.findings import Unproven
from penstock.publish.formats.json_text import json_texts
from penstock.tables.rollup.closing.decide import PartialsFile
from penstock.tables.rollup.closing.files import SPANNED, span_ms
from penstock.tables.rollup.closing.portion.closed_rows import quantile_column, windows_schema
from penstock.tables.rollup.closing.portion.numbering import series_text
from penstock.tables.rollup.closing.portion.scan import Wanted, as_frame, empty_frame, read_batches, scan
from penstock.tables.rollup.closing.standing import Standing
from penstock.tables.rollup.partials.aggregate import SERIES, merge_partials
from penstock.tables.rollup.partials.schema import EPOCH, written_schema
from penstock.tables.rollup.partials.sketches import SKETCH_ITEMS, quantiles
from penstock.tables.rollup.proof.closes import CLOSES, Closes, check_closes
from penstock.tables.rollup.spec import Aggregates, RollupSpec, Window
from penstock.tables.rollup.spec import window as window_of
from penstock.tables.single.facts import TableFacts

SUM_TOLERANCE = 1e-9
"""Relative: additions in another order differ in the last digits."""


def same_sum(one: pl.Expr, other: pl.Expr, added: pl.Expr) -> pl.Expr:
    """Whether both can be sums of the same values; `added`: what these come to at most, without their signs.

    Two that are not finite count as the same: which of them is infinite or no number depends on the order, too.
    """
    return ((one - other).abs() <= SUM_TOLERANCE * added + SUM_TOLERANCE) | (~one.is_finite() & ~other.is_finite())


def added_at_most() -> pl.Expr:
    """Of the values of a window, by its columns: where they cancel out, the sum says nothing about their size."""
    return pl.max_horizontal(pl.col("min").abs(), pl.col("max").abs()) * pl.col("count")


def differs(aggregates: Aggregates, other: str) -> pl.Expr:
    """Whether a row of as many points has another value than its columns `<name><other>`."""
    apart = ~same_sum(pl.col("sum"), pl.col(f"sum{other}"), added_at_most()).fill_null(False)
    for name in ("min", "max"):
        apart |= pl.col(name).ne_missing(pl.col(f"{name}{other}"))
    for name in ("first", "last") if aggregates.ends else ():
        # Where one of both does not tell, the job did not ask for it at the time.
        apart |= (pl.col(name) != pl.col(f"{name}{other}")).fill_null(False)
    return apart


def beyond(part: str, whole: str) -> pl.Expr:
    """Whether some of the points of a window have values that all of them do not have."""
    least = pl.col(f"min{part}") < pl.col(f"min{whole}")
    return least | (pl.col(f"max{part}") > pl.col(f"max{whole}"))


ROWS_PER_PASS_MAX = 8_000_000
_KEY = ["series", "window_start"]
_NAME = ["series", "metric", "tags", "bucket"]
"""What names the series of a row."""
_PARTITIONED = ("interval", "day")
"""Columns that are not in the files."""


@dataclass(slots=True)
class ClosedRows:
    """What was found in the table of closed windows."""

    rows: int = 0
    compared: int = 0
    with_late: int = 0
    """Rows whose partials hold points that came later: only bounds of their values could be compared."""
    without_partials: int = 0
    """Rows whose partials were removed: only their shape and, in sum, their number of points could be checked."""
    past: Counter[str] = field(default_factory=Counter)
    """Rows of intervals that the job no longer has."""
    unknown_closes: int = 0
    """Rows whose close is only checked by the order of closes."""
    revisions: int = 0
    points: Counter[str] = field(default_factory=Counter)
    """By interval."""
    faults: list[str] = field(default_factory=list)

    @property
    def unproven(self) -> list[Unproven]:
        if not self.with_late:
            return []
        what = f"the exact values of {self.with_late} windows: late points were merged with theirs"
        return [Unproven(what, "their counts, least and greatest values fit")]

    @property
    def warnings(self) -> Iterator[str]:
        """What the job removed or forgot as designed; it is counted, and proves nothing."""
        if self.without_partials:
            yield f"{self.without_partials} windows: partials removed as designed, values not compared"
        if self.unknown_closes:
            yield (
                f"{self.unknown_closes} windows: the log of the partials no longer has the beginning of their close, "
                "only the order of closes checked"
            )
        for interval, rows in sorted((+self.past).items()):
            yield f"{rows} windows of {interval}, which the job no longer has: points not compared in sum"


@dataclass(frozen=True, slots=True)
class Inputs:
    """One version of both tables."""

    job: JobSpec[RollupSpec]
    facts: TableFacts
    """Of the partials."""
    windows: Table
    files: Sequence[PartialsFile]
    """Of the partials."""
    standing: Standing

    @property
    def aggregates(self) -> Aggregates:
        return self.job.table.aggregates


def compare_closed(inputs: Inputs) -> ClosedRows:
    """Look at every closed window, an interval and a day at a time."""
    found = ClosedRows()
    by_name = {window.name: window for window in inputs.job.table.windows}
    closes = Closes.of(inputs.job.name, inputs.facts.history, inputs.windows.transactions())
    ends = [pl.DataFrame(schema=CLOSES)]
    for (interval, day), files in sorted(_groups(inputs.windows).items()):
        try:
            window = by_name.get(interval) or window_of(interval)
            ends.append(_Comparison(window, day, inputs, closes, found).check(files))
            found.past[interval] += 0 if interval in by_name else sum(file.rows or 0 for file in files)
        except (NotFoundError, InvariantError, RefusedError) as error:
            found.faults.append(f"windows of {interval} on {day}: {error}")
    faults, found.unknown_closes = check_closes(pl.concat(ends), closes)
    found.faults += faults
    return found


def _groups(windows: Table) -> dict[tuple[str, str], list[ActiveFile]]:
    groups: dict[tuple[str, str], list[ActiveFile]] = {}
    for file in windows.active_files(SPANNED):
        interval, day = file.values
        groups.setdefault((interval or "", day or ""), []).append(file)
    return groups


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The windows of one interval on one day."""

    window: Window
    day: str
    inputs: Inputs
    closes: Closes
    found: ClosedRows

    def check(self, files: Sequence[ActiveFile]) -> pl.DataFrame:
        """In passes over ranges of buckets, so that memory is bounded; which close each end of a window has."""
        spans = [span_ms(file, self.day) for file in files]
        start, end = min(first for first, _ in spans), max(last for _, last in spans) + self.window.millis
        taken = [
            file for file in self.inputs.files if file.epoch < self.inputs.standing.closed and file.meets(start, end)
        ]
        rows = sum(file.rows or 0 for file in files) + sum(file.rows for file in taken)
        passes = min(BUCKETS, max(1, -(-rows // ROWS_PER_PASS_MAX)))
        closes, read = [], 0
        for number in range(passes):
            wanted = Wanted(range(BUCKETS * number // passes, BUCKETS * (number + 1) // passes), start, end)
            closed = pl.concat([self._closed(file, wanted) for file in files])
            read += closed.height
            self._check_rows(closed)
            self._compare(closed, self._partials(taken, wanted))
            ends = closed.group_by("window_end", "close", (pl.col("revision") > 0).alias("revised"))
            closes.append(ends.agg(pl.len().alias("rows")))
        if read != (listed := sum(file.rows or 0 for file in files)):
            what = f"{listed} windows of {self.window.name} on {self.day} by the log of the table"
            self.found.faults.append(f"{what}, its files have {read} in their buckets and time")
        return pl.concat(closes).cast(CLOSES)

    def _closed(self, file: ActiveFile, wanted: Wanted) -> pl.DataFrame:
        """Rows of a file, with their tags as the text that is in the name of their series."""
        columns = pa.schema(
            [column for column in windows_schema(self.inputs.aggregates) if column.name not in _PARTITIONED]
        )
        frames = [empty_frame(columns).with_columns(pl.lit("").alias("tags"))]
        for batch in read_batches(self.inputs.windows.storage(), file.path, columns, wanted):
            tags = json_texts(pa.chunked_array([batch.column("tags")])).alias("tags")
            rows = as_frame(pa.Table.from_batches([batch.drop_columns(["tags"])])).with_columns(tags)
            frames.append(wanted.of(rows.select(columns.names)))
        return pl.concat(frames)

    def _partials(self, files: Sequence[PartialsFile], wanted: Wanted) -> pl.DataFrame:
        """Merged to windows by the epoch of their file; `merged` if it also has rows of earlier epochs."""
        schema = pa.schema([column for column in written_schema(self.inputs.aggregates) if column.name != "day"])
        frames = [empty_frame(schema).with_columns(pl.lit(0).alias(EPOCH), pl.lit(False).alias("merged"))]
        for file in files:
            merged = parse_compacted_name(file.path) is not None
            columns = (pl.lit(file.epoch).alias(EPOCH), pl.lit(merged).alias("merged"))
            storage = self.inputs.facts.table.storage()
            frames += [rows.with_columns(columns) for rows in scan(storage, file.path, schema, wanted)]
        rows = pl.concat(frames, how="vertical_relaxed").lazy()
        by_epoch = merge_partials(rows, self.window.millis, self.inputs.aggregates, (*SERIES, EPOCH, "merged"))
        return by_epoch.with_columns(series_text()).collect()

    def _check_rows(self, closed: pl.DataFrame) -> None:
        """What rows tell of themselves, whatever the points were."""
        self.found.rows += closed.height
        self.found.points[self.window.name] += int(closed["count"].sum())
        self.found.revisions += int(closed["revision"].sum())
        start, end = (pl.col(name).to_physical() for name in ("window_start", "window_end"))
        length = self.window.millis * 1000
        well_formed = (start % length == 0) & (end - start == length) & (pl.col("count") > 0) & self._values_fit()
        well_formed &= (pl.col("revision") >= 0) & pl.col("close").is_between(1, self.inputs.standing.closed)
        well_formed &= pl.col("window_start").dt.date().cast(pl.String) == self.day
        self._fault_if(closed.filter(~well_formed.fill_null(False)), "are malformed")
        self._fault_if(closed.filter(closed.select(_KEY).is_duplicated()), "are there more than once")
        named = closed.unique(_NAME)
        buckets = pl.lit(pl.Series(bucket_numbers(named["metric"].fill_null(""), named["tags"]), dtype=pl.Int16))
        other = pl.col("series").ne_missing(series_text()) | pl.col("bucket").ne_missing(buckets)
        self._fault_if(named.filter(other), "have a series or a bucket that is not that of their metric and tags")

    def _values_fit(self) -> pl.Expr:
        fit = pl.col("min") <= pl.col("max")
        for name in (*(("first", "last") if self.inputs.aggregates.ends else ()), *self._quantile_columns):
            fit &= pl.col(name).is_between("min", "max").fill_null(True)
        if self.inputs.aggregates.mean:
            fit &= same_sum(pl.col("mean"), pl.col("sum") / pl.col("count"), pl.col("mean").abs()).fill_null(True)
        return fit

    def _compare(self, closed: pl.DataFrame, partials: pl.DataFrame) -> None:
        """Where partials may have been removed, they prove nothing."""
        kept = pl.col("window_start").to_physical() >= self.inputs.standing.cleaned_ms * 1000
        self.found.without_partials += closed.filter(~kept).height
        closed, partials = closed.filter(kept), partials.filter(kept)
        self.found.compared += closed.height
        taken = self.closes.taken(partials, self.window)
        self._fault_if(taken.join(closed, on=_KEY, how="anti"), "are missing")
        in_time = partials.join(closed.select(*_KEY, "close"), on=_KEY)
        surely = pl.col(EPOCH) < pl.col("close")
        most, least = (self._merged(in_time.filter(which)) for which in (surely | pl.col("merged"), surely))
        for points in (most, least):
            equal = closed.join(points, on=[*_KEY, "count"], suffix="_partials")
            self._fault_if(equal.filter(self._differs(equal)), "have other values than their partials")
            closed = closed.join(points, on=[*_KEY, "count"], how="anti")
        both = closed.join(most, on=_KEY, how="left", suffix="_most").join(least, on=_KEY, how="left", suffix="_least")
        fits = pl.col("count").is_between(pl.col("count_least").fill_null(0), "count_most").fill_null(False)
        self._fault_if(both.filter(~fits), "have other points than the partials that their close took")
        late = both.filter(fits)
        outside = beyond("", "_most") | beyond("_least", "").fill_null(False)
        self._fault_if(late.filter(outside), "have values beyond those of their partials")
        self.found.with_late += late.height

    def _merged(self, rows: pl.DataFrame) -> pl.DataFrame:
        return merge_partials(rows.lazy(), self.window.millis, self.inputs.aggregates, ("series",)).collect()

    def _differs(self, equal: pl.DataFrame) -> pl.Expr:
        """Quantiles are exact up to so many points."""
        other, ranks = differs(self.inputs.aggregates, "_partials"), self.inputs.aggregates.quantiles
        for name, expected in zip(
            self._quantile_columns, quantiles(equal["sketch"], ranks) if ranks else (), strict=True
        ):
            other |= (pl.col(name) != pl.lit(expected)).fill_null(False) & (pl.col("count") <= SKETCH_ITEMS)
        return other

    @property
    def _quantile_columns(self) -> list[str]:
        return [quantile_column(rank) for rank in self.inputs.aggregates.quantiles]

    def _fault_if(self, frame: pl.DataFrame, what: str) -> None:
        if frame.height:
            first = frame.sort(_KEY).row(0, named=True)
            at = f"{first['series']} at {first['window_start']}"
            self.found.faults.append(f"{self.window.name}: {frame.height} windows {what}, the first is {at}")
