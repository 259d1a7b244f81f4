"""Metrics through a decoder, on both of its paths, as values that a test can write down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.flow.points.decoder import PointsDecoder
from penstock.flow.points.metrics import Format, Lines, PointCounts
from penstock.flow.spans import Integers
from penstock.job.spec import DecodeFormat, DecodeSpec, Payload, PointsSpec, Policies, TombstonePolicy
from tests.unit.flow.kafka_batches import kafka_batch

Point = tuple[int, str, str, int, float]
"""The row, the metric, the tags, milliseconds and the value."""


@dataclass(frozen=True)
class Outcome:
    points: list[Point]
    bad: dict[int, str]
    filtered: int
    counts: PointCounts

    @property
    def values(self) -> dict[str, float]:
        """By metric, where each has one point."""
        result = {metric: value for _, metric, _, _, value in self.points}
        assert len(result) == len(self.points)
        return result


def decode(
    format_stated: DecodeFormat,
    values: Sequence[bytes | None],
    points: PointsSpec | None = None,
    *,
    payload: Payload = "plain",
    tombstone: TombstonePolicy = "filter",
) -> Outcome:
    """The outcome of the records: the same with and without the fast path, and without losses."""
    spec = DecodeSpec(format_stated, payload, points=points or PointsSpec())
    fast, exact = (PointsDecoder(spec, Policies(tombstone=tombstone)) for _ in range(2))
    exact._format = without_fast_path(exact._format)
    outcome = _decode(fast, values)
    assert outcome == _decode(exact, values)
    return outcome


def without_fast_path(format_stated: Format) -> Format:
    """The same format, whose fast path covers no record."""

    class Exact(type(format_stated)):  # type: ignore[misc]
        def lines(self, values: pa.Array) -> tuple[Lines, Integers]:
            lines, _ = super().lines(values.slice(0, 0))
            return lines, np.zeros(len(values), np.int64)

    return Exact(format_stated.names, format_stated.unit)


def error_of(format_stated: DecodeFormat, value: bytes, points: PointsSpec | None = None) -> str:
    """Why a record is bad: the same reason alone and among good records."""
    good = {"telegraf": b'{"name":"m","fields":{"f":1},"timestamp":1}', "influx": b"m f=1 1"}[format_stated]
    outcome = decode(format_stated, [good, value, good], points)
    assert sorted(outcome.bad) == [1]
    assert [row for row, *_ in outcome.points] == [0, 2]
    assert decode(format_stated, [value], points).bad == {0: outcome.bad[1]}
    return outcome.bad[1]


def _decode(decoder: PointsDecoder, values: Sequence[bytes | None]) -> Outcome:
    decoded = decoder.decode(kafka_batch(values))
    assert decoded.rest is None
    series = decoder.series.frame()
    assert series["series"].to_list() == list(range(len(decoder.series)))
    assert series.select("metric", "tags").n_unique() == series.height
    named = {number: (metric, tags) for number, metric, tags, _ in series.iter_rows()}
    points = [(row, *named[number], at_ms, value) for row, number, at_ms, value in decoded.points.iter_rows()]
    assert all(math.isfinite(value) for *_, value in points)
    bad = [offset - 100 for offset in decoded.bad.kafka.column("offset").to_pylist()]
    with_points = {row for row, *_ in points}
    assert not with_points & set(bad)
    assert len(with_points) + len(bad) + decoded.filtered == len(values)
    assert decoded.counts.points == len(points)
    errors = dict(zip(bad, decoded.bad.errors.to_pylist(), strict=True))
    return Outcome(sorted(points), errors, decoded.filtered, decoded.counts)
