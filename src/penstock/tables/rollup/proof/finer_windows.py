"""Closed windows against the shortest ones of the same time, where no partials are left to compare them with.

Both were computed from partials, each for itself (RULES W3). What the shortest window of a point has, every longer one
has too: a point may be late for the short window and in time for the long one, and never the other way round. So the
long window has at least as many points, and where it has as many, the same values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from penstock.flow.points.series import BUCKETS
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.table import Table
from penstock.tables.rollup.closing.portion.scan import Wanted, empty_frame, scan
from penstock.tables.rollup.closing.standing import LEAST_MS
from penstock.tables.rollup.partials.aggregate import aligned
from penstock.tables.rollup.partials.schema import INSTANT
from penstock.tables.rollup.proof.sums import added_at_most, same_sum
from penstock.tables.rollup.spec import RollupSpec, Window

ROWS_PER_PASS_MAX = 8_000_000
_DAY_MS = 86_400_000
_KEY = ["series", "window_start"]
_COLUMNS = pa.schema(
    [
        ("series", pa.string()),
        ("window_start", INSTANT),
        ("count", pa.int64()),
        ("sum", pa.float64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("bucket", pa.int16()),
    ]
)

Groups = Mapping[tuple[str, str], Sequence[ActiveFile]]
"""Files of closed windows by interval and day."""


@dataclass(slots=True)
class Agreement:
    """What the comparison found."""

    compared: int = 0
    faults: list[str] = field(default_factory=list)


def compare_lengths(spec: RollupSpec, windows: Table, groups: Groups, before_ms: int) -> Agreement:
    """Compare windows that start before an instant, of all lengths of which a day has a whole number."""
    found = Agreement()
    longer = [each for each in spec.windows[1:] if _DAY_MS % each.millis == 0]
    for interval, day in sorted(groups):
        by_window = {each: files for each in longer if (files := groups.get((each.name, day)))}
        if interval == spec.finest.name and by_window:
            _compare_day(windows, spec.finest, groups[interval, day], by_window, before_ms, found)
    return found


def _compare_day(
    windows: Table,
    finest: Window,
    finest_files: Sequence[ActiveFile],
    by_window: Mapping[Window, Sequence[ActiveFile]],
    before_ms: int,
    found: Agreement,
) -> None:
    """In passes over ranges of buckets, so that memory is bounded."""
    passes = min(BUCKETS, max(1, -(-sum(each.rows or 0 for each in finest_files) // ROWS_PER_PASS_MAX)))
    for number in range(passes):
        buckets = range(BUCKETS * number // passes, BUCKETS * (number + 1) // passes)
        short = _rows(windows, finest_files, Wanted(buckets, LEAST_MS, -LEAST_MS))
        for window, files in by_window.items():
            long = _rows(windows, files, Wanted(buckets, LEAST_MS, before_ms))
            both = long.join(_merged(short, window), on=_KEY, suffix="_short")
            found.compared += both.height
            found.faults += _faults(both, window, finest)


def _rows(windows: Table, files: Sequence[ActiveFile], wanted: Wanted) -> pl.DataFrame:
    storage = windows.storage()
    read: Iterator[pl.DataFrame] = (rows for each in files for rows in scan(storage, each.path, _COLUMNS, wanted))
    return pl.concat([empty_frame(_COLUMNS), *read])


def _merged(short: pl.DataFrame, window: Window) -> pl.DataFrame:
    """The shortest windows, put together to those of a longer one."""
    values = (pl.col("count").sum(), pl.col("sum").sum(), pl.col("min").min(), pl.col("max").max())
    return short.group_by("series", aligned(window.millis)).agg(values)


def _faults(both: pl.DataFrame, window: Window, finest: Window) -> Iterator[str]:
    fewer = pl.col("count") < pl.col("count_short")
    bounds = (pl.col("min") > pl.col("min_short")) | (pl.col("max") < pl.col("max_short"))
    differs = ~same_sum(pl.col("sum"), pl.col("sum_short"), added_at_most())
    differs |= (pl.col("min") != pl.col("min_short")) | (pl.col("max") != pl.col("max_short"))
    other = ~fewer & (bounds | ((pl.col("count") == pl.col("count_short")) & differs))
    for frame, what in ((both.filter(fewer), "fewer points"), (both.filter(other), "other values")):
        if frame.height:
            first = frame.sort(_KEY).row(0, named=True)
            at = f"{first['series']} at {first['window_start'].isoformat()}"
            yield f"{window.name}: {frame.height} windows have {what} than those of {finest.name}, the first is {at}"
