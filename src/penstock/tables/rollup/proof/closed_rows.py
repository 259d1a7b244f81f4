"""Closed windows against the partials that are still there: each row once, well formed, and with the right values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.points.series import BUCKETS
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.table import Table
from penstock.lake.storage import NotFoundError
from penstock.proof.findings import Unproven
from penstock.tables.rollup.closing.decide import PartialsFile
from penstock.tables.rollup.closing.files import SPANNED, span_ms
from penstock.tables.rollup.closing.portion.closed_rows import quantile_column, windows_schema
from penstock.tables.rollup.closing.portion.numbering import series_text
from penstock.tables.rollup.closing.portion.scan import Wanted, empty_frame, scan
from penstock.tables.rollup.closing.standing import Standing, updated_key
from penstock.tables.rollup.partials.aggregate import merge_partials
from penstock.tables.rollup.partials.schema import written_schema
from penstock.tables.rollup.proof.finer_windows import compare_lengths
from penstock.tables.rollup.proof.sums import added_at_most, same_sum
from penstock.tables.rollup.spec import Aggregates, RollupSpec, Window

ROWS_PER_PASS_MAX = 8_000_000
_KEY = ["series", "window_start"]
_UNUSED = ("metric", "tags", "interval", "revision", "close", "day")
"""Columns of closed windows that are not compared."""


@dataclass(slots=True)
class ClosedRows:
    """What was found in the table of closed windows."""

    rows: int = 0
    compared: int = 0
    with_late: int = 0
    """Rows whose partials hold points that came later: only bounds of their values could be compared."""
    without_partials: int = 0
    """Rows whose partials were removed: only their number of points could be compared, in sum."""
    agreeing: int = 0
    """Those of them that have the same values as the shortest windows of the same time, as far as points allow."""
    points: Counter[str] = field(default_factory=Counter)
    """By interval."""
    faults: list[str] = field(default_factory=list)

    @property
    def unproven(self) -> list[Unproven]:
        found = []
        if self.with_late:
            what = f"the exact values of {self.with_late} windows: late points were merged with theirs"
            found.append(Unproven(what, "their counts, least and greatest values fit"))
        if self.without_partials:
            agree = f"; {self.agreeing} of them agree with the shortest windows" if self.agreeing else ""
            what = f"the values of {self.without_partials} windows: their partials were removed{agree}"
            found.append(Unproven(what, "verify before that, or keep partials longer (update_grace)"))
        return found


def compare_closed(
    spec: RollupSpec, windows: Table, partials: Table, files: Sequence[PartialsFile], standing: Standing
) -> ClosedRows:
    """Look at every closed window, an interval and a day at a time."""
    found = ClosedRows()
    by_name = {each.name: each for each in spec.windows}
    groups = _groups(windows)
    for (interval, day), group in sorted(groups.items()):
        window = by_name.get(interval)
        if window is None:
            # The job had this interval once; its rows stay as they are.
            continue
        comparing = _Comparing(window, spec.aggregates, windows, partials, files, standing, found)
        try:
            comparing.look_at(group)
        except (NotFoundError, InvariantError) as error:
            found.faults.append(f"windows of {interval} on {day}: {error.primary}")
    if found.without_partials and not found.faults and not windows.transaction(updated_key(windows.job)):
        # An update reaches the windows whose partials are there: of two lengths perhaps only one.
        agreement = compare_lengths(spec, windows, groups, standing.cleaned_ms)
        found.agreeing = agreement.compared
        found.faults += agreement.faults
    return found


def _groups(windows: Table) -> dict[tuple[str, str], list[ActiveFile]]:
    groups: dict[tuple[str, str], list[ActiveFile]] = {}
    for file in windows.active_files(SPANNED):
        interval, day = file.values
        groups.setdefault((interval or "", day or ""), []).append(file)
    return groups


@dataclass(frozen=True, slots=True)
class _Comparing:
    """The windows of one interval on one day."""

    window: Window
    aggregates: Aggregates
    windows: Table
    partials: Table
    files: Sequence[PartialsFile]
    standing: Standing
    found: ClosedRows

    def look_at(self, group: Sequence[ActiveFile]) -> None:
        """In passes over ranges of buckets, so that memory is bounded."""
        spans = [span_ms(each, each.values[1]) for each in group]
        start, end = min(first for first, _ in spans), max(last for _, last in spans) + self.window.millis
        inputs = [each for each in self.files if each.epoch < self.standing.closed and each.meets(start, end)]
        rows = sum(each.rows or 0 for each in group) + sum(each.rows for each in inputs)
        passes = min(BUCKETS, max(1, -(-rows // ROWS_PER_PASS_MAX)))
        for number in range(passes):
            buckets = range(BUCKETS * number // passes, BUCKETS * (number + 1) // passes)
            wanted = Wanted(buckets, start, end)
            closed = _together(self._closed(group, wanted), self._columns)
            self._count(closed)
            self._compare(closed, self._merged(inputs, wanted))

    def _closed(self, group: Sequence[ActiveFile], wanted: Wanted) -> Iterator[pl.DataFrame]:
        storage = self.windows.storage()
        for each in group:
            yield from scan(storage, each.path, self._columns, wanted)

    @property
    def _columns(self) -> pa.Schema:
        table = windows_schema(self.aggregates)
        return pa.schema([each for each in table if each.name not in _UNUSED])

    def _merged(self, inputs: Sequence[PartialsFile], wanted: Wanted) -> pl.DataFrame:
        storage = self.partials.storage()
        without_sketches = replace(self.aggregates, quantiles=())
        schema = pa.schema([each for each in written_schema(without_sketches) if each.name != "day"])
        rows = _together((row for each in inputs for row in scan(storage, each.path, schema, wanted)), schema)
        merged = merge_partials(rows.lazy(), self.window.millis, without_sketches)
        return merged.with_columns(series_text()).collect()

    def _count(self, closed: pl.DataFrame) -> None:
        self.found.rows += closed.height
        self.found.points[self.window.name] += int(closed["count"].sum())
        start, end = (pl.col(name).to_physical() for name in ("window_start", "window_end"))
        length = self.window.millis * 1000
        odd = closed.filter(
            (start % length != 0) | (end - start != length) | (pl.col("count") < 1) | self._values_odd()
        )
        twice = closed.height - closed.select(_KEY).n_unique()
        for frame, what in ((odd, "malformed"), (closed.filter(closed.select(_KEY).is_duplicated()), "there twice")):
            if frame.height:
                number = twice if what == "there twice" else frame.height
                self._fault(f"{number} windows are {what}", frame)

    def _values_odd(self) -> pl.Expr:
        """Values that contradict each other, whatever the points were."""
        odd = pl.col("min") > pl.col("max")
        for name in (*(("first", "last") if self.aggregates.ends else ()), *_quantile_columns(self.aggregates)):
            odd |= ~pl.col(name).is_between("min", "max").fill_null(True)
        if self.aggregates.mean:
            odd |= ~same_sum(pl.col("mean"), pl.col("sum") / pl.col("count"), pl.col("mean").abs()).fill_null(True)
        return odd

    def _compare(self, closed: pl.DataFrame, merged: pl.DataFrame) -> None:
        """Where partials may have been removed, they prove nothing."""
        kept = pl.col("window_start").to_physical() >= self.standing.cleaned_ms * 1000
        self.found.without_partials += closed.filter(~kept).height
        closed, merged = closed.filter(kept), merged.filter(kept)
        closed_us = (self.standing.closed_until_ms - self.standing.closed_until_ms % self.window.millis) * 1000
        due = merged.filter(pl.col("window_start").to_physical() < closed_us)
        both = closed.join(due, on=_KEY, how="left", suffix="_partials", coalesce=True)
        self.found.compared += both.height
        more = pl.col("count_partials").is_null() | (pl.col("count") > pl.col("count_partials"))
        self._fault_if(both.filter(more), "have more points than their partials")
        equal = both.filter(pl.col("count") == pl.col("count_partials"))
        self._fault_if(equal.filter(_differs(self.aggregates)), "have other values than their partials")
        late = both.filter(pl.col("count") < pl.col("count_partials"))
        outside = (pl.col("min") < pl.col("min_partials")) | (pl.col("max") > pl.col("max_partials"))
        self._fault_if(late.filter(outside), "have values beyond those of their partials")
        self.found.with_late += late.height

    def _fault_if(self, frame: pl.DataFrame, what: str) -> None:
        if frame.height:
            self._fault(f"{frame.height} windows {what}", frame)

    def _fault(self, what: str, frame: pl.DataFrame) -> None:
        first = frame.sort(_KEY).row(0, named=True)
        at = f"{first['series']} at {first['window_start'].isoformat()}"
        self.found.faults.append(f"{self.window.name}: {what}, the first is {at}")


def _differs(aggregates: Aggregates) -> pl.Expr:
    differs = ~same_sum(pl.col("sum"), pl.col("sum_partials"), added_at_most())
    for name in ("min", "max"):
        differs |= pl.col(name) != pl.col(f"{name}_partials")
    for name in ("first", "last") if aggregates.ends else ():
        # Where one of both does not tell, the job did not ask for it at the time.
        differs |= (pl.col(name) != pl.col(f"{name}_partials")).fill_null(False)
    return differs


def _quantile_columns(aggregates: Aggregates) -> list[str]:
    return [quantile_column(each) for each in aggregates.quantiles]


def _together(frames: Iterator[pl.DataFrame], schema: pa.Schema) -> pl.DataFrame:
    return pl.concat([empty_frame(schema), *frames])
