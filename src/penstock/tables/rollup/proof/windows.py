"""Compares closed windows with the retained partials: each row occurs once, well formed, with the right values.

A row of close *n* has exactly the points of the partials with an epoch below *n* (RULES W2). Close *n* closes the
windows of all intervals that end in `(until of close n - 1, until of close n]`, so the close of a row that was never
corrected follows from the end of its window. The log of the partials has the untils, as long as Delta keeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.points.series import BUCKETS, bucket_numbers
from penstock.job.spec import JobSpec
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.provenance import commits_of
from penstock.lake.delta.table import DeltaLog
from penstock.proof.findings import Check, Unproven
from penstock.proof.frame import shown
from penstock.publish.formats import json_texts
from penstock.storage import NotFoundError
from penstock.tables.rollup.aggregate import SERIES, merge_partials, series_text
from penstock.tables.rollup.decide import PartialsFile
from penstock.tables.rollup.files import (
    SPANNED,
    ValueBounds,
    cut,
    read_batches,
    scan,
    span_ms,
    window_bounds,
    within,
    without,
)
from penstock.tables.rollup.numbers import LATE, LEAST_MS, UPDATED, CloseState, number_key
from penstock.tables.rollup.schema import EPOCH, read_schema, windows_schema
from penstock.tables.rollup.spec import Aggregates, RollupSpec, Window
from penstock.tables.single.facts import TableFacts

SUM_TOLERANCE = 1e-9
"""Relative: additions in another order differ in the last digits."""
ROWS_PER_PASS_MAX = 8_000_000
_KEY = ["series", "window_start"]
_NAME = ["series", "metric", "tags", "bucket"]
"""The columns that name the series of a row."""
_PARTITIONED = ("interval", "day")
"""Columns that are not in the files."""


def same_sum(one: pl.Expr, other: pl.Expr, added: pl.Expr) -> pl.Expr:
    """Whether both can be sums of the same values; `added`: an upper bound of the sum of absolute values.

    Two non-finite sums count as equal: whether a sum is infinite or NaN depends on the order of additions too.
    """
    return ((one - other).abs() <= SUM_TOLERANCE * added + SUM_TOLERANCE) | (~one.is_finite() & ~other.is_finite())


def added_at_most() -> pl.Expr:
    """`added` of a window, from its columns: where values cancel out, the sum does not show their size."""
    return pl.max_horizontal(pl.col("min").abs(), pl.col("max").abs()) * pl.col("count")


def differs(aggregates: Aggregates) -> pl.Expr:
    """Whether a row with the same number of points differs from its columns `<name>_partials`."""
    apart = ~same_sum(pl.col("sum"), pl.col("sum_partials"), added_at_most()).fill_null(False)
    for name in ("min", "max"):
        apart |= pl.col(name).ne_missing(pl.col(f"{name}_partials"))
    for name in ("first", "last") if aggregates.ends else ():
        # A missing value on one side means that the job did not compute it at the time.
        apart |= (pl.col(name) != pl.col(f"{name}_partials")).fill_null(False)
    return apart


def bucket_ranges(rows: int) -> list[range]:
    """Ranges of buckets, one per pass, so that memory is bounded."""
    return cut(range(BUCKETS), -(-rows // ROWS_PER_PASS_MAX))


@dataclass(frozen=True, slots=True)
class Inputs:
    """One version of both tables."""

    job: JobSpec[RollupSpec]
    facts: TableFacts
    """Of the partials."""
    windows: DeltaLog
    files: Sequence[PartialsFile]
    """Of the partials."""
    closes: CloseState
    aggregates: Aggregates


def check_windows(inputs: Inputs, points: int, still_open: Mapping[Window, int]) -> Check:
    """Check that closed windows are unique and right, and that no point of an interval is missing or counted twice."""
    if inputs.closes.close != inputs.closes.closed:
        under_way = Unproven("the points of each interval: a close is under way", "verify again after it")
        return Check("windows", "not checked: a close is under way", False, unproven=[under_way])
    name, numbers = inputs.job.name, inputs.windows.transactions()
    windows = ClosedWindows(inputs)
    counts, faults, unproven = windows.counts, windows.faults, []
    updated = numbers.get(number_key(name, UPDATED), 0)
    if counts["revisions"] != updated:
        faults.append(
            f"late points changed {updated} windows, the revisions of windows add up to {counts['revisions']}"
        )
    for window in inputs.job.table.windows:
        closed, late = windows.points[window.name], numbers.get(number_key(name, LATE, window.name), 0)
        surplus = closed + late + still_open[window] - points
        if 0 < surplus <= late and updated:
            what = f"{surplus} late points of {window.name}: a later update may have taken them into their windows"
            unproven.append(Unproven(what, "the windows are compared with their partials"))
        elif surplus:
            faults.append(
                f"{window.name}: {closed} points in closed windows, {still_open[window]} in open ones and {late} late, "
                f"{points} counted"
            )
    # Partials and closes that the job removed as designed are counted as unproven.
    removed, unknown = counts["without_partials"], counts["unknown_closes"]
    warnings = [f"{removed} windows: partials removed as designed, values not compared"] if removed else []
    if unknown:
        what = "the log of the partials no longer has the beginning of their close"
        warnings.append(f"{unknown} windows: {what}, only the order of closes within a day checked")
    return Check(
        "windows",
        shown(faults) or f"{counts['rows']} closed windows, {counts['compared']} compared with their partials",
        bool(faults),
        unproven=unproven,
        warnings=warnings,
        facts={"windows": counts["rows"], "windows_without_partials": removed},
    )


class ClosedWindows:
    """Checks every closed window, an interval and a day at a time."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self.counts: Counter[str] = Counter()
        """Counts of rows and of revisions."""
        self.points: Counter[str] = Counter()
        """By interval."""
        self.faults: list[str] = []
        commits = (commit for _, commit in commits_of(inputs.facts.history, inputs.job.name))
        untils = {int(commit.batch): commit.until_ms for commit in commits if commit.until_ms is not None}
        self._closes = closes_frame(untils)
        groups: dict[tuple[str, str], list[ActiveFile]] = {}
        for file in inputs.windows.active_files(SPANNED):
            interval, day = file.values
            groups.setdefault((interval or "", day or ""), []).append(file)
        by_name = {window.name: window for window in inputs.job.table.windows}
        for (interval, day), files in sorted(groups.items()):
            if interval not in by_name:
                rows = sum(file.rows or 0 for file in files)
                self.faults.append(f"{rows} foreign rows on {day}: the job has no windows of {interval}")
                continue
            try:
                self._check_day(by_name[interval], day, files)
            except (NotFoundError, InvariantError) as error:
                self.faults.append(f"windows of {interval} on {day}: {error}")

    def _check_day(self, window: Window, day: str, files: Sequence[ActiveFile]) -> None:
        spans = [span_ms(file, day) for file in files]
        start, end = min(first for first, _ in spans), max(last for _, last in spans) + window.millis
        closed = self._inputs.closes.closed
        taken = [file for file in self._inputs.files if file.epoch < closed and file.meets(start, end)]
        listed, read = sum(file.rows or 0 for file in files), 0
        for buckets in bucket_ranges(listed + sum(file.rows for file in taken)):
            chosen = window_bounds(buckets, start, end)
            rows = with_due_close(self._closed(files, chosen), window, self._closes)
            read += rows.height
            self._check_rows(rows, window, day)
            self._compare(rows, self._partials(taken, chosen, window), window)
        if read != listed:
            what = f"{listed} windows of {window.name} on {day} by the log of the table"
            self.faults.append(f"{what}, its files have {read} in their buckets and time")

    def _closed(self, files: Sequence[ActiveFile], chosen: ValueBounds) -> pl.DataFrame:
        """Rows of closed windows, with their tags as the text in the name of their series."""
        columns = without(windows_schema(self._inputs.aggregates), _PARTITIONED)
        frames = [pl.DataFrame(columns.empty_table()).with_columns(pl.lit("").alias("tags"))]
        for file in files:
            for batch in read_batches(self._inputs.windows.storage(), file.path, columns, chosen):
                tags = json_texts(pa.chunked_array([batch.column("tags")])).alias("tags")
                rows = pl.DataFrame(pa.Table.from_batches([batch.drop_columns(["tags"])])).with_columns(tags)
                frames.append(within(rows.select(columns.names), chosen))
        return pl.concat(frames)

    def _partials(self, files: Sequence[PartialsFile], chosen: ValueBounds, window: Window) -> pl.DataFrame:
        """Merged to windows by the epoch of their file."""
        schema, storage = read_schema(self._inputs.aggregates), self._inputs.facts.table.storage()
        frames = [pl.DataFrame(schema.empty_table()).with_columns(pl.lit(0).alias(EPOCH))]
        for file in files:
            epoch = pl.lit(file.epoch).alias(EPOCH)
            frames += [rows.with_columns(epoch) for rows in scan(storage, file.path, schema, chosen)]
        rows = pl.concat(frames, how="vertical_relaxed").lazy()
        by_epoch = merge_partials(rows, window.millis, self._inputs.aggregates, (*SERIES, EPOCH))
        return by_epoch.with_columns(series_text()).collect()

    def _check_rows(self, closed: pl.DataFrame, window: Window, day: str) -> None:
        """Faults that rows show without their points."""
        self.counts["rows"] += closed.height
        self.counts["revisions"] += int(closed["revision"].sum())
        self.counts["unknown_closes"] += closed["due"].null_count()
        self.points[window.name] += int(closed["count"].sum())
        start, end = (pl.col(name).to_physical() for name in ("window_start", "window_end"))
        length = window.millis * 1000
        well_formed = (start % length == 0) & (end - start == length) & (pl.col("count") > 0) & self._values_fit()
        well_formed &= (pl.col("revision") >= 0) & pl.col("close").is_between(1, self._inputs.closes.closed)
        well_formed &= pl.col("window_start").dt.date().cast(pl.String) == day
        named = closed.unique(_NAME)
        buckets = pl.lit(pl.Series(bucket_numbers(named["metric"].fill_null(""), named["tags"]), dtype=pl.Int16))
        other = pl.col("series").ne_missing(series_text()) | pl.col("bucket").ne_missing(buckets)
        for wrong, what in (
            (closed.filter(~well_formed.fill_null(False)), "are malformed"),
            (closed.filter(closed.select(_KEY).is_duplicated()), "occur more than once"),
            (closed.filter(~has_due_close()), "have a close that does not match their end"),
            (out_of_order(closed), "are closed before earlier ones, or by another close than those that end with them"),
            (named.filter(other), "have a series or a bucket that is not that of their metric and tags"),
        ):
            self._fault_if(wrong, what, window)

    def _values_fit(self) -> pl.Expr:
        aggregates = self._inputs.aggregates
        fit = pl.col("min") <= pl.col("max")
        for name in ("first", "last") if aggregates.ends else ():
            fit &= pl.col(name).is_between("min", "max").fill_null(True)
        if aggregates.mean:
            fit &= same_sum(pl.col("mean"), pl.col("sum") / pl.col("count"), pl.col("mean").abs()).fill_null(True)
        return fit

    def _compare(self, closed: pl.DataFrame, partials: pl.DataFrame, window: Window) -> None:
        """Windows whose partials may have been removed are not compared."""
        kept = pl.col("window_start").to_physical() >= self._inputs.closes.cleaned_ms * 1000
        self.counts["without_partials"] += closed.filter(~kept).height
        closed, partials = closed.filter(kept), partials.filter(kept)
        self.counts["compared"] += closed.height
        by_epoch = with_due_close(partials, window, self._closes)
        taken = by_epoch.filter(pl.col(EPOCH) < pl.col("due")).unique(_KEY)
        in_time = partials.join(closed.select(*_KEY, "close"), on=_KEY).filter(pl.col(EPOCH) < pl.col("close"))
        points = merge_partials(in_time.lazy(), window.millis, self._inputs.aggregates, ("series",)).collect()
        both = closed.join(points, on=_KEY, how="left", suffix="_partials")
        same = (pl.col("count") == pl.col("count_partials")).fill_null(False)
        for wrong, what in (
            (taken.join(closed, on=_KEY, how="anti"), "are missing"),
            (both.filter(same & differs(self._inputs.aggregates)), "have other values than their partials"),
            (both.filter(~same), "have other points than the partials that their close took"),
        ):
            self._fault_if(wrong, what, window)

    def _fault_if(self, wrong: pl.DataFrame, what: str, window: Window) -> None:
        if wrong.height:
            first = wrong.sort(_KEY).row(0, named=True)
            at = f"{first['series']} at {first['window_start']}"
            self.faults.append(f"{window.name}: {wrong.height} windows {what}, the first is {at}")


def closes_frame(untils_ms: Mapping[int, int]) -> pl.DataFrame:
    """The closes as `due`, each with the event time `(before_us, until_us]` that it closed, if known."""
    closes = sorted({0: LEAST_MS, **untils_ms}.items())
    rows = [
        (close, before * 1000, until * 1000)
        for (last, before), (close, until) in pairwise(closes)
        if close == last + 1 and before < until
    ]
    return pl.DataFrame(rows, dict.fromkeys(("due", "before_us", "until_us"), pl.Int64), orient="row")


def with_due_close(rows: pl.DataFrame, window: Window, closes: pl.DataFrame) -> pl.DataFrame:
    """The rows with `due`, the close whose event time contains the end of their window; null if unknown."""
    end = (pl.col("window_start").to_physical() + window.millis * 1000).alias("end")
    ends = rows.with_columns(end).sort("end")
    dated = ends.join_asof(closes, left_on="end", right_on="until_us", strategy="forward")
    due = pl.when(pl.col("end") > pl.col("before_us")).then(pl.col("due")).alias("due")
    return dated.select(*rows.columns, due)


def has_due_close() -> pl.Expr:
    """Whether a row has the close that is due, or a later one if late points corrected it; null if unknown."""
    close, due = pl.col("close"), pl.col("due")
    return pl.when(pl.col("revision") > 0).then(close > due).otherwise(close == due)


def out_of_order(closed: pl.DataFrame) -> pl.DataFrame:
    """Rows without corrections whose close does not belong to their end, or is lower than that of earlier rows."""
    ends = closed.filter(pl.col("revision") == 0).select("window_end", "close").unique().sort("window_end", "close")
    wrong = ends.filter(pl.col("window_end").is_duplicated() | (pl.col("close") < pl.col("close").shift()))
    return closed.join(wrong, on=["window_end", "close"], how="semi")
