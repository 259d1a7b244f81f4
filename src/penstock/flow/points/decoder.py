"""The decoder of metrics: it decodes a batch at once, and one by one the records that the fast path rejects."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.flow.decode.influx import InfluxFormat
from penstock.flow.decode.misfit import Inside, MisfitError, quoted
from penstock.flow.decode.outcome import Records, open_records
from penstock.flow.decode.telegraf import TelegrafFormat
from penstock.flow.points.fast import FastPoints, points_of
from penstock.flow.points.metrics import FIELDS_MAX, Format, MetricPoint, PointCounts
from penstock.flow.points.names import name_part
from penstock.flow.points.series import BLACKLISTED, PAIR_BITS, SeriesBook
from penstock.flow.rows import BadRows, bad_rows
from penstock.flow.spans import Integers
from penstock.job.spec import DecodeFormat, DecodeSpec, NameStyle, PointTimes, Policies

POINTS_SCHEMA = {"row": pl.UInt32, "series": pl.UInt32, "at_ms": pl.Int64, "value": pl.Float64}
_FORMATS_KEPT_MAX = 4


@dataclass(frozen=True, slots=True)
class DecodedPoints:
    """The outcome of one batch: every record is bad, filtered, in `rest`, or has points."""

    points: pl.DataFrame
    """`POINTS_SCHEMA`, unordered: `row` is the record's number in the batch, `series` the number in the book."""
    bad: BadRows
    filtered: int
    """Records that are not bad and have no point: tombstones, and those whose fields were all left out."""
    counts: PointCounts
    rest: pa.RecordBatch | None = None
    """The last rows of the batch, to be decoded next: unpacked, the rows before them reach the size limit."""


class PointsDecoder:
    """Decodes records that hold metrics as text, and numbers their series in a book of its own."""

    def __init__(self, decode: DecodeSpec, on: Policies) -> None:
        points = decode.points
        self.series = SeriesBook(points.blacklist)
        self._payload = decode.payload
        self._tombstone = on.tombstone
        unit = points.timestamps or ("ns" if decode.format == "influx" else "auto")
        self._format = _format(decode.format, points.names, unit)

    def decode(self, batch: pa.RecordBatch) -> DecodedPoints:
        """Decode the records of one batch; bad rows are returned, whatever the policy for them."""
        records = open_records(batch, self._payload, self._tombstone)
        errors = dict(records.errors)
        fast = points_of(self._format, records.values, self.series)
        exact = _ExactPoints(self.series, self._format.names)
        filtered = records.filtered + fast.empty
        for row, value, written_at_ms in _single_records(batch, records, np.flatnonzero(fast.refused)):
            try:
                filtered += not exact.add(row, self._format.metrics(value, written_at_ms))
            except MisfitError as misfit:
                errors[row] = str(misfit)
        return DecodedPoints(
            pl.concat([_frame(records.rows[fast.rows], fast), _frame(np.array(exact.rows, np.int64), exact)]),
            bad_rows(batch, errors),
            filtered,
            fast.counts + exact.counts,
            records.rest,
        )


@dataclass(slots=True)
class _ExactPoints:
    """The points of single records, in lists of equal length."""

    book: SeriesBook
    names: NameStyle
    rows: list[int] = field(default_factory=list)
    series: list[int] = field(default_factory=list)
    at_ms: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    counts: PointCounts = field(default_factory=PointCounts)

    def add(self, row: int, metrics: Iterator[MetricPoint]) -> bool:
        """Add all points of a record, or none; returns whether it has any. Raises `MisfitError`."""
        points: list[tuple[int, int, float]] = []
        left_out = PointCounts()
        for metric in metrics:
            with Inside(metric.place), Inside("fields"):
                left_out += self._read(metric, points)
        count_before = len(self.rows)
        for number, (_, at_ms, value) in zip(self.book.numbers([pair for pair, _, _ in points]), points, strict=True):
            if number != BLACKLISTED:
                self.rows.append(row)
                self.series.append(number)
                self.at_ms.append(at_ms)
                self.values.append(value)
        count = len(self.rows) - count_before
        self.counts += left_out + PointCounts(points=count, blacklisted=len(points) - count)
        return count > 0

    def _read(self, metric: MetricPoint, points: list[tuple[int, int, float]]) -> PointCounts:
        """The points of one metric, and how many of its fields are left out."""
        if len(metric.fields) > FIELDS_MAX:
            raise MisfitError(f"{len(metric.fields)} fields: a metric has at most {FIELDS_MAX}")
        sources: dict[str, str] = {}
        non_numeric = non_finite = 0
        for key, number in metric.fields:
            part = name_part(key, self.names)
            if part in sources:
                if sources[part] == key:
                    raise MisfitError("given twice").inside(key)
                raise MisfitError(f"{quoted(sources[part])} and {quoted(key)} both become {quoted(part)}")
            sources[part] = key
            if number is None:
                non_numeric += 1
            elif not math.isfinite(number):
                non_finite += 1
            else:
                name, tags = self.book.metric(f"{metric.label.name}.{part}"), self.book.tag_set(metric.label.tags)
                points.append((name << PAIR_BITS | tags, metric.at_ms, number))
        return PointCounts(non_numeric=non_numeric, non_finite=non_finite)


def _frame(rows: Integers, points: FastPoints | _ExactPoints) -> pl.DataFrame:
    return pl.DataFrame(
        {"row": rows, "series": points.series, "at_ms": points.at_ms, "value": points.values}, schema=POINTS_SCHEMA
    )


def _single_records(
    batch: pa.RecordBatch, records: Records, numbers: Integers
) -> Iterator[tuple[int, bytes, int | None]]:
    """Row in the batch, value and timestamp in milliseconds of the records with these numbers."""
    values = records.values.take(pa.array(numbers)).to_pylist()
    taken = records.rows[numbers]
    times = batch.column("timestamp").take(pa.array(taken)).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    for row, value, micros in zip(taken.tolist(), values, times.to_pylist(), strict=True):
        yield row, value, None if micros is None else micros // 1000


@lru_cache(maxsize=_FORMATS_KEPT_MAX)
def _format(name: DecodeFormat, names: NameStyle, unit: PointTimes) -> Format:
    """A format with its cache of parsed texts, reused by all tasks of the process."""
    return InfluxFormat(names, unit) if name == "influx" else TelegrafFormat(names, unit)
