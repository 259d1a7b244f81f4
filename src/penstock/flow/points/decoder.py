"""The decoder of metrics that a job asks for: a batch at a time, and one by one the records that this refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.decode.influx.format import InfluxFormat
from penstock.flow.decode.misfit import MisfitError
from penstock.flow.decode.outcome import Records, open_records
from penstock.flow.decode.telegraf.format import TelegrafFormat
from penstock.flow.points.exact import ExactPoints
from penstock.flow.points.fast import FastPoints, Meanings, Remembered, no_points, points_of
from penstock.flow.points.metrics import Format, PointCounts
from penstock.flow.points.series import Blacklist, SeriesBook
from penstock.flow.points.times import unit_of
from penstock.flow.rows import BadRows, bad_rows
from penstock.flow.spans import Integers
from penstock.job.spec import (
    POINT_FORMATS,
    DecodeFormat,
    DecodeSpec,
    MetricNames,
    PointTimes,
    Policies,
    TombstonePolicy,
)

POINTS_SCHEMA = {"row": pl.UInt32, "series": pl.UInt32, "at_ms": pl.Int64, "value": pl.Float64}
_FORMATS_KEPT_MAX = 4


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


def points_decoder(decode: DecodeSpec, on: Policies) -> TextPoints:
    """A decoder with a book of its own; raises `UserError` if the job's records are no metrics."""
    if decode.format not in POINT_FORMATS:
        raise UserError(f"decode {decode.format} gives rows, not points of series")
    if on.tombstone is TombstonePolicy.ROW:
        raise UserError("on.tombstone: row needs rows: a tombstone has no points", hint="use filter or quarantine")
    return TextPoints(decode, on.tombstone)


class TextPoints:
    """Decodes records that hold metrics as text; without `fast` all of them exactly."""

    def __init__(self, decode: DecodeSpec, tombstone: TombstonePolicy, *, fast: bool = True) -> None:
        points = decode.points
        self.series = SeriesBook(Blacklist(points.blacklist))
        self._points = points
        self._wrapping = decode.wrapping
        self._tombstone = tombstone
        self._format, self._meanings = _format(decode.format, points.names, unit_of(points, decode.format))
        self._fast = fast

    def decode(self, batch: pa.RecordBatch) -> DecodedPoints:
        """Decode the records of one batch; bad rows are returned, whatever the policy for them."""
        records = open_records(batch, self._wrapping, self._tombstone)
        rows = records.rows
        errors = dict(records.errors)
        fast = self._read_fast(records)
        exact = ExactPoints(self._points, self.series)
        filtered = records.filtered + fast.empty
        for row, value, written_at_ms in _single_records(batch, records, rows, np.flatnonzero(fast.refused)):
            try:
                filtered += not exact.add(row, self._format.metrics(value, written_at_ms))
            except MisfitError as misfit:
                errors[row] = str(misfit)
        return DecodedPoints(
            pl.concat([_frame(rows[fast.rows], fast), _frame(np.array(exact.rows, np.int64), exact)]),
            bad_rows(batch, errors),
            filtered,
            fast.counts + exact.counts,
            records.rest,
        )

    def _read_fast(self, records: Records) -> FastPoints:
        if self._fast:
            columns, refused = self._format.columns(records.values)
            skip_others = self._points.non_numeric == "skip"
            return points_of(columns, refused, self._meanings, self.series, skip_others=skip_others)
        return no_points(len(records.values))


def _frame(rows: Integers, points: FastPoints | ExactPoints) -> pl.DataFrame:
    return pl.DataFrame(
        {"row": rows, "series": points.series, "at_ms": points.at_ms, "value": points.values}, schema=POINTS_SCHEMA
    )


def _single_records(
    batch: pa.RecordBatch, records: Records, rows: Integers, numbers: Integers
) -> Iterator[tuple[int, bytes, int | None]]:
    """Of the records with these numbers: the row in the batch, the value, and the record's own time in milliseconds."""
    values = records.values.take(pa.array(numbers)).to_pylist()
    taken = rows[numbers]
    times = batch.column("timestamp").take(pa.array(taken)).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    for row, value, micros in zip(taken.tolist(), values, times.to_pylist(), strict=True):
        yield row, value, None if micros is None else micros // 1000


@lru_cache(maxsize=_FORMATS_KEPT_MAX)
def _format(name: DecodeFormat, names: MetricNames, unit: PointTimes) -> tuple[Format, Meanings]:
    """A format and what its texts were found to mean, kept from task to task."""
    texts: Format = InfluxFormat(names, unit) if name == "influx" else TelegrafFormat(names, unit)
    return texts, Meanings(Remembered(texts.label), Remembered(texts.key))
