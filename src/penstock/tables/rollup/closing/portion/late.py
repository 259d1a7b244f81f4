"""Late rows of a close: counted per interval, or found with the closed windows that they change (RULES W2, W3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from penstock.tables.rollup.closing.decide import Span
from penstock.tables.rollup.closing.portion.numbering import series_text
from penstock.tables.rollup.closing.portion.scan import starts_in
from penstock.tables.rollup.closing.standing import LEAST_MS
from penstock.tables.rollup.partials.aggregate import aligned
from penstock.tables.rollup.spec import Window

_SERIES = ("metric", "tags", "bucket")
_KEY = ("series", "window_start")


@dataclass(frozen=True, slots=True)
class OldFile:
    """A file of closed windows of one interval, with the starts of its first and its last window."""

    path: str
    interval: str
    first_ms: int
    last_ms: int


class Late:
    """What the late rows of a close come to. A row may be late for one interval and in time for another."""

    def __init__(self, spans: Sequence[Span], *, update: bool) -> None:
        self.counts: Counter[str] = Counter()
        """Points that change nothing any more, by interval."""
        self.closed_ms = max(each.start_ms for each in spans)
        """Rows from here on are late for no interval."""
        self._spans = spans
        self._update = update
        self._touched: dict[Span, list[pl.DataFrame]] = {}

    def take(self, rows: pl.DataFrame) -> None:
        """Rows of partials that were committed after the last close began."""
        for span in self._spans:
            kept_from = min(span.complete_from_ms, span.start_ms) if self._update else span.start_ms
            lost = rows.filter(starts_in(LEAST_MS, kept_from))
            self.counts[span.window.name] += int(lost["count"].sum())
            touching = rows.filter(starts_in(kept_from, span.start_ms))
            if touching.height:
                keys = touching.select(*_SERIES, aligned(span.window.millis)).unique()
                self._touched.setdefault(span, []).append(keys)

    def touched(self) -> Iterator[Touched]:
        """The closed windows to be computed again, an interval at a time."""
        for span, keys in self._touched.items():
            yield Touched(span.window, pl.concat(keys).unique().with_columns(series_text()))


@dataclass(frozen=True, slots=True)
class Touched:
    """Closed windows of one interval that late rows belong to, by series and start."""

    window: Window
    keys: pl.DataFrame

    @property
    def start_ms(self) -> int:
        return _millis(self.keys["window_start"].min())

    @property
    def end_ms(self) -> int:
        return _millis(self.keys["window_start"].max()) + self.window.millis

    def only(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The partials of these windows."""
        start = aligned(self.window.millis).alias("_start")
        on = [*_SERIES, "_start"]
        keys = self.keys.rename({"window_start": "_start"}).select(on)
        return rows.with_columns(start).join(keys, on=on, how="semi").drop("_start")

    def old_rows(self, files: Iterable[OldFile], scan: Callable[[OldFile], Iterator[pl.DataFrame]]) -> OldRows:
        """The present rows of these windows, and the files that hold them."""
        replaced: Counter[str] = Counter()
        found = [self.keys.select(*_KEY, pl.lit(0, pl.Int32).alias("revision")).clear()]
        keys = self.keys.select(_KEY)
        for file in files:
            if file.interval != self.window.name or file.first_ms >= self.end_ms or file.last_ms < self.start_ms:
                continue
            for rows in scan(file):
                ours = rows.select(*_KEY, "revision").join(keys, on=_KEY, how="semi")
                if ours.height:
                    found.append(ours)
                    replaced[file.path] += ours.height
        return OldRows(pl.concat(found), replaced)


@dataclass(frozen=True, slots=True)
class OldRows:
    """Rows of closed windows that are replaced."""

    rows: pl.DataFrame
    replaced: Counter[str]
    """How many of them are in each file."""

    def with_revisions(self, merged: pl.DataFrame) -> pl.DataFrame:
        """The new rows: each has the revision after the one that it replaces; revision 0 is a row of its own close."""
        before = self.rows.group_by(_KEY).agg(pl.col("revision").max())
        joined = merged.with_columns(series_text()).join(before, on=_KEY, how="left")
        return joined.with_columns((pl.col("revision").fill_null(0) + 1).cast(pl.Int32)).drop("series")


def _millis(instant: object) -> int:
    return int(pl.Series([instant]).dt.epoch("ms")[0])
