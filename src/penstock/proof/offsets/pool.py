"""Rows of which nothing tells the life of their topic: each offset as often as all of them have it. Pure.

Compaction mixes the incarnations of a recreated topic. What can be said then: how often each offset is there, over all
incarnations. What cannot: that a row of one life does not stand where a row of another should.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from penstock.logs.log import Partition
from penstock.proof.findings import Violation, ViolationKind, violation_at
from penstock.proof.invariants import Span
from penstock.proof.offsets.scan_passes import Part


@dataclass(frozen=True, slots=True)
class Placed:
    """What is known of one partition of a pool in a part: what it must hold, and the rows that are surely its own."""

    spans: Sequence[Span]
    offsets: pl.Series
    """Of table and quarantine, in any order."""


def reconcile_pool(
    part: Part, members: Mapping[Partition, Placed], pooled: pl.Series, with_others: bool
) -> tuple[Violation, ...]:
    """Compare how often offsets are in the pooled rows with how often the partitions lack them.

    `with_others` tells that rows of other jobs are among the pooled ones: then only what is missing can be seen.
    """
    lacking = {each: _lacking(part, placed) for each, placed in members.items()}
    wanted = pl.concat(list(lacking.values())) if lacking else pooled.clear()
    there = pooled.filter((pooled >= part.lo) & (pooled < part.hi))
    counts = (
        _times(wanted, "wanted").join(_times(there, "there"), on="offset", how="full", coalesce=True).fill_null(0)
    ).sort("offset")
    violations: list[Violation] = []
    missing = counts.filter(pl.col("there") < pl.col("wanted"))["offset"]
    if len(missing):
        offset = int(missing[0])
        owner = next(each for each, offsets in lacking.items() if offset in offsets)
        violations.append(violation_at(owner, offset, ViolationKind.MISSING))
    if not with_others:
        surplus = counts.filter(pl.col("there") > pl.col("wanted"))
        slack = sum((_may_hold(surplus["offset"], each.spans) for each in members.values()), pl.Series([0]))
        doubled = surplus.filter(surplus["there"].cast(pl.Int64) - surplus["wanted"].cast(pl.Int64) > slack)["offset"]
        outside = pooled.filter((pooled < part.lo) | (pooled >= part.hi))
        for offset in [*doubled[:1], *outside[:1]]:
            kind = ViolationKind.TWICE if part.lo <= offset < part.hi else ViolationKind.BEYOND_POSITION
            violations.append(violation_at(next(iter(members)), int(offset), kind))
    return tuple(violations)


def _lacking(part: Part, placed: Placed) -> pl.Series:
    """The offsets that a partition surely must hold and none of its own rows has."""
    full = [span for span in placed.spans if span.full]
    parts = [
        pl.int_range(max(span.read_from, part.lo), max(span.read_from, part.lo, min(span.hi, part.hi)), eager=True)
        for span in full
    ]
    wanted = pl.concat(parts) if parts else pl.Series(dtype=pl.Int64)
    return wanted.filter(~wanted.is_in(placed.offsets.implode())) if len(placed.offsets) else wanted


def _times(offsets: pl.Series, name: str) -> pl.DataFrame:
    return offsets.alias("offset").to_frame().group_by("offset").len(name)


def _may_hold(offsets: pl.Series, spans: Sequence[Span]) -> pl.Series:
    """1 where a span may or may not hold the offset: some of its records are filtered, or holes."""
    if not spans or not len(offsets):
        return pl.Series([0] * len(offsets), dtype=pl.Int64)
    starts = pl.Series([span.lo for span in spans], dtype=pl.Int64)
    owner = starts.search_sorted(offsets, side="right").cast(pl.Int64) - 1
    loose = pl.Series([int(not span.full) for span in spans], dtype=pl.Int64).gather(owner.clip(0))
    return loose * ((offsets >= spans[0].lo) & (offsets < spans[-1].hi)).cast(pl.Int64)
