"""What decoders of metrics give: the points of a batch, each of a series, and what became of every record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec
import polars as pl
import pyarrow as pa

from penstock.flow.points.series import SeriesBook
from penstock.flow.rows import BadRows

POINTS_SCHEMA = {"row": pl.UInt32, "series": pl.UInt32, "at_ms": pl.Int64, "value": pl.Float64}


class PointCounts(msgspec.Struct, frozen=True):
    """Fields of the records that are not bad: those that are points, and those left out, by reason."""

    points: int = 0
    blacklisted: int = 0
    non_numeric: int = 0
    non_finite: int = 0

    def __add__(self, other: PointCounts) -> PointCounts:
        return PointCounts(
            self.points + other.points,
            self.blacklisted + other.blacklisted,
            self.non_numeric + other.non_numeric,
            self.non_finite + other.non_finite,
        )


@dataclass(frozen=True, slots=True)
class DecodedPoints:
    """What became of one batch: every record is bad, filtered, in `rest`, or has points."""

    points: pl.DataFrame
    """`POINTS_SCHEMA`, in no order: `row` is the number of the record in the batch, `series` that of the book."""
    bad: BadRows
    filtered: int
    """Records that are not bad and have no point: tombstones, and those whose fields were all left out."""
    counts: PointCounts
    rest: pa.RecordBatch | None = None
    """The last rows of the batch, to be decoded next: the others are as large unpacked as one batch may be."""


class PointsDecoder(Protocol):
    series: SeriesBook

    def decode(self, batch: pa.RecordBatch) -> DecodedPoints:
        """Decode the records of one batch; bad rows are returned, whatever the policy for them."""
