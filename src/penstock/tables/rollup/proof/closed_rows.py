"""Closed windows against the partials that are still there: each row once, well formed, and with the right values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.lake.delta.active_files import ActiveFile, active_files
from penstock.lake.delta.table import Table
from penstock.lake.storage import NotFoundError
from penstock.proof.findings import Unproven
from penstock.tables.rollup.closing.decide import PartialsFile
from penstock.tables.rollup.closing.files import SPANNED, span_ms
from penstock.tables.rollup.closing.portion.numbering import series_text
from penstock.tables.rollup.closing.portion.scan import Wanted, empty_frame, scan
from penstock.tables.rollup.closing.standing import Standing
from penstock.tables.rollup.partials.aggregate import merge_partials
from penstock.tables.rollup.partials.schema import BUCKETS, INSTANT, written_schema
from penstock.tables.rollup.spec import Aggregates, RollupSpec, Window

ROWS_PER_PASS_MAX = 8_000_000
SUM_TOLERANCE = 1e-9
"""Of a sum, relative: additions in another order differ in the last digits."""
_KEY = ["series", "window_start"]
_VALUES = ("count", "sum", "min", "max")
_CLOSED = pa.schema(
    [
        ("series", pa.string()),
        ("window_start", INSTANT),
        ("window_end", INSTANT),
        ("count", pa.int64()),
        ("sum", pa.float64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("bucket", pa.int16()),
    ]
)


@dataclass(slots=True)
class ClosedRows:
    """What was found in the table of closed windows."""

    rows: int = 0
    compared: int = 0
    with_late: int = 0
    """Rows whose partials hold points that came later: only bounds of their values could be compared."""
    points: Counter[str] = field(default_factory=Counter)
    """By interval."""
    faults: list[str] = field(default_factory=list)

    @property
    def unproven(self) -> list[Unproven]:
        if not self.with_late:
            return []
        what = f"the exact values of {self.with_late} windows: late points were merged with theirs"
        return [Unproven(what, "their counts, least and greatest values fit")]


def compare_closed(
    spec: RollupSpec, windows: Table, partials: Table, files: Sequence[PartialsFile], standing: Standing
) -> ClosedRows:
    """Look at every closed window, an interval and a day at a time."""
    found = ClosedRows()
    by_name = {each.name: each for each in spec.windows}
    for (interval, day), group in sorted(_groups(windows).items()):
        window = by_name.get(interval)
        if window is None:
            # The job had this interval once; its rows stay as they are.
            continue
        comparing = _Comparing(window, windows, partials, files, standing, found)
        try:
            comparing.look_at(group)
        except (NotFoundError, InvariantError) as error:
            found.faults.append(f"windows of {interval} on {day}: {error.primary}")
    return found


def _groups(windows: Table) -> dict[tuple[str, str], list[ActiveFile]]:
    groups: dict[tuple[str, str], list[ActiveFile]] = {}
    for file in active_files(windows.handle, SPANNED):
        interval, day = file.values
        groups.setdefault((interval or "", day or ""), []).append(file)
    return groups


@dataclass(frozen=True, slots=True)
class _Comparing:
    """The windows of one interval on one day."""

    window: Window
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
            closed = _together(self._closed(group, wanted), _CLOSED)
            self._count(closed)
            self._compare(closed, self._merged(inputs, wanted))

    def _closed(self, group: Sequence[ActiveFile], wanted: Wanted) -> Iterator[pl.DataFrame]:
        storage = self.windows.storage()
        for each in group:
            yield from scan(storage, each.path, _CLOSED, wanted)

    def _merged(self, inputs: Sequence[PartialsFile], wanted: Wanted) -> pl.DataFrame:
        storage = self.partials.storage()
        schema = pa.schema([each for each in written_schema(Aggregates()) if each.name != "day"])
        rows = _together((row for each in inputs for row in scan(storage, each.path, schema, wanted)), schema)
        return merge_partials(rows.lazy(), self.window.millis, Aggregates()).with_columns(series_text()).collect()

    def _count(self, closed: pl.DataFrame) -> None:
        self.found.rows += closed.height
        self.found.points[self.window.name] += int(closed["count"].sum())
        start, end = (pl.col(name).to_physical() for name in ("window_start", "window_end"))
        length = self.window.millis * 1000
        odd = closed.filter(
            (start % length != 0) | (end - start != length) | (pl.col("count") < 1) | (pl.col("min") > pl.col("max"))
        )
        twice = closed.height - closed.select(_KEY).n_unique()
        for frame, what in ((odd, "malformed"), (closed.filter(closed.select(_KEY).is_duplicated()), "there twice")):
            if frame.height:
                number = twice if what == "there twice" else frame.height
                self._fault(f"{number} windows are {what}", frame)

    def _compare(self, closed: pl.DataFrame, merged: pl.DataFrame) -> None:
        """Where partials may have been removed, they prove nothing."""
        kept = pl.col("window_start").to_physical() >= self.standing.cleaned_ms * 1000
        closed, merged = closed.filter(kept), merged.filter(kept)
        closed_us = (self.standing.closed_until_ms - self.standing.closed_until_ms % self.window.millis) * 1000
        due = merged.filter(pl.col("window_start").to_physical() < closed_us)
        both = closed.join(due, on=_KEY, how="left", suffix="_partials", coalesce=True)
        self.found.compared += both.height
        more = pl.col("count_partials").is_null() | (pl.col("count") > pl.col("count_partials"))
        self._fault_if(both.filter(more), "have more points than their partials")
        equal = both.filter(pl.col("count") == pl.col("count_partials"))
        self._fault_if(equal.filter(_differs()), "have other values than their partials")
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


def _differs() -> pl.Expr:
    same_sum = (pl.col("sum") - pl.col("sum_partials")).abs() <= SUM_TOLERANCE * pl.col("sum").abs() + SUM_TOLERANCE
    both_odd = ~pl.col("sum").is_finite() & ~pl.col("sum_partials").is_finite()
    return (
        ~(same_sum | both_odd) | (pl.col("min") != pl.col("min_partials")) | (pl.col("max") != pl.col("max_partials"))
    )


def _together(frames: Iterator[pl.DataFrame], schema: pa.Schema) -> pl.DataFrame:
    return pl.concat([empty_frame(schema), *frames])
