"""The closes of rows: each window is closed by the close whose time it ends in, and corrected by later ones.

Close *n* closes the windows of all intervals that end in `(until of close n - 1, until of close n]`, so the close of a
row that was never corrected follows from the end of its window. The log of the partials tells the untils, as long as
Delta keeps it; closes that it no longer has still have to be in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl

from penstock.lake.delta.provenance import commits_of
from penstock.tables.rollup.numbers import JOINED, LEAST_MS, SINCE, number_key
from penstock.tables.rollup.schema import EPOCH
from penstock.tables.rollup.spec import Window

_TYPES = pl.Datetime("us", "UTC"), pl.Int64(), pl.Boolean(), pl.Int64()
CLOSES = pl.Schema(zip(("window_end", "close", "revised", "rows"), _TYPES, strict=True))
"""How many rows there are of each end and close; `revised`: rows that late points changed or added."""


@dataclass(frozen=True, slots=True)
class Closes:
    """Closes with the event time `(before, until]` that they closed, as far as it is known."""

    frame: pl.DataFrame
    joined: Mapping[str, tuple[int, int]]
    """By interval, the first and the last of the closes that it took part in without a break."""

    @classmethod
    def of(cls, job: str, history: Iterable[Mapping[str, Any]], numbers: Mapping[str, int]) -> Closes:
        """From the history of the partials, and the app transactions of the windows."""
        commits, head = (commit for _, commit in commits_of(history, job)), number_key(job, SINCE, "")
        names = [number.removeprefix(head) for number in numbers if number.startswith(head)]
        joined = {
            name: (numbers[number_key(job, SINCE, name)], numbers.get(number_key(job, JOINED, name), 0))
            for name in names
        }
        untils = {int(commit.batch): commit.until_ms for commit in commits if commit.until_ms is not None}
        known = sorted({0: LEAST_MS, **untils}.items())
        rows = [(n, before * 1000, until * 1000) for (m, before), (n, until) in pairwise(known) if n == m + 1]
        schema = dict.fromkeys(("close", "before_us", "until_us"), pl.Int64)
        return cls(pl.DataFrame(rows, schema, orient="row"), joined)

    def taken(self, partials: pl.DataFrame, window: Window) -> pl.DataFrame:
        """The windows that have partials which the close of their end took: each of them has a row."""
        end = (pl.col("window_start").to_physical() + window.millis * 1000).alias("end")
        known = self.frame.filter(
            pl.col("close").is_between(*self.joined.get(window.name, (0, 0))), pl.col("before_us") < pl.col("until_us")
        )
        found = (
            partials.with_columns(end)
            .sort("end")
            .join_asof(known, left_on="end", right_on="until_us", strategy="forward")
        )
        taken = (pl.col("end") > pl.col("before_us")) & (pl.col(EPOCH) < pl.col("close"))
        return found.filter(taken).unique(["series", "window_start"])


def check_closes(rows: pl.DataFrame, closes: Closes) -> tuple[list[str], int]:
    """What is wrong with the closes of rows, and of how many rows only the order of closes could be checked."""
    ends = rows.group_by("window_end", "close", "revised").agg(pl.col("rows").sum())
    ends = ends.join(closes.frame, on="close", how="left").sort("window_end", "close")
    end, revised = pl.col("window_end").to_physical(), pl.col("revised")
    regular = ends.filter(~revised)
    first = regular.select("window_end", regular="close")
    corrected = ends.filter(revised).join(first, on="window_end", how="left")
    faults = [
        *_faults(regular.filter(pl.col("window_end").is_duplicated()), "in one of several closes"),
        *_faults(regular.filter(pl.col("close") < pl.col("close").shift()), "closed before earlier ones"),
        *_faults(regular.filter((end > pl.col("until_us")) | (end <= pl.col("before_us"))), "not of their close"),
        *_faults(
            corrected.filter((end > pl.col("before_us")) | (pl.col("close") <= pl.col("regular"))),
            "corrected by a close that did not follow theirs",
        ),
    ]
    return faults, int(ends.filter(pl.col("until_us").is_null())["rows"].sum())


def _faults(ends: pl.DataFrame, what: str) -> Iterator[str]:
    if ends.height:
        row = ends.row(0, named=True)
        at = f"those that end at {row['window_end']} in close {row['close']}"
        yield f"{int(ends['rows'].sum())} windows are {what}, the first are {at}"
