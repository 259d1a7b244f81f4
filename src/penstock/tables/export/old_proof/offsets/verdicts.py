"""Single offsets: each is there once, none is missing, in two places, or not in the log. Pure.

Of some rows nothing tells the life of their topic, because compaction mixes the incarnations of a recreated one. What
can be said of them, as a pool: how often each offset is there, over all incarnations. What cannot: that a row of one
life does not stand where a row of another should.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from penstock.flow.write.offset_ranges import Ranges, offsets_of
from penstock.logs.log import Partition
from penstock.proof.findings import Violation, ViolationKind, violation_at
from penstock.tables.export.old_proof.invariants import Span
from penstock.tables.export.old_proof.offsets.scan_passes import Part

NO_OFFSETS = pl.Series(dtype=pl.Int64)


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The offsets of records that the log has in a part, ascending, from `first` on.

    `exact` is False for a compacted topic: its log may have lost records since they were read.
    """

    offsets: pl.Series
    first: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Held:
    """The offsets that table and quarantine hold in a part, in any order."""

    table: pl.Series = field(default_factory=lambda: NO_OFFSETS)
    quarantine: pl.Series = field(default_factory=lambda: NO_OFFSETS)
    by_type: Sequence[pl.Series] = ()
    """Those of the table by type, of an export."""
    pooled: pl.Series = field(default_factory=lambda: NO_OFFSETS)
    """Of rows that may be of this partition or of another life of its topic."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What parts showed: what the table's own word condemns, what the log's does, and counts per span."""

    violations: tuple[Violation, ...]
    log_violations: tuple[Violation, ...]
    held_counts: tuple[int, ...]
    log_counts: tuple[int, ...]
    quarantine_counts: tuple[int, ...]

    def __add__(self, other: Reconciled) -> Reconciled:
        return Reconciled(
            self.violations + other.violations,
            self.log_violations + other.log_violations,
            _sums(self.held_counts, other.held_counts),
            _sums(self.log_counts, other.log_counts),
            _sums(self.quarantine_counts, other.quarantine_counts),
        )


def _sums(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True)
class Leave:
    """Where offsets may be held twice."""

    in_both: bool = False
    """In table and quarantine, as an unfinished replay leaves them (RULES Q2)."""
    twice_below: int | None = None
    """Below this offset records were read again for a type that was added later: it has them, and so has the place
    where they were before. One type never has an offset twice."""
    owed: Ranges = ()
    """Offsets that an unfinished replay has still to take out of quarantine: there they do not count."""


def reconcile(
    partition: Partition, part: Part, spans: Sequence[Span], held: Held, log: LogOffsets | None, leave: Leave
) -> Reconciled:
    """Compare what is held with what must be, in one part."""
    owed = pl.Series(offsets_of(leave.owed), dtype=pl.Int64)
    table, quarantine = held.table.sort(), _without(held.quarantine, owed).sort()
    there = _merged(table, quarantine)
    once_table, once_quarantine = (_from(each, leave.twice_below) for each in (table, quarantine))
    # What is in neither is missing, whoever the pooled rows belong to.
    perhaps = _merged(there, held.pooled.sort()) if len(held.pooled) else there
    origin, position = (spans[0].lo, spans[-1].hi) if spans else (part.lo, part.hi)
    firsts = {
        ViolationKind.TWICE: _first_twice(once_table, held.by_type if leave.twice_below is not None else ()),
        ViolationKind.TWICE_IN_QUARANTINE: _first_repeated(once_quarantine),
        ViolationKind.BOTH: None if leave.in_both else _first_common(once_table, once_quarantine),
        ViolationKind.BEFORE_ORIGIN: _first(there.filter(there < origin)),
        ViolationKind.BEYOND_POSITION: _first(_from(there, position)),
        ViolationKind.MISSING: _first_missing(perhaps, part, spans),
    }
    log_firsts = {
        ViolationKind.NOT_IN_LOG: _first_unknown(there, log, part),
        ViolationKind.MISSING: _first_unheld(perhaps, log, spans),
    }
    return Reconciled(
        violations=tuple(violation_at(partition, at, kind) for kind, at in firsts.items() if at is not None),
        log_violations=tuple(violation_at(partition, at, kind) for kind, at in log_firsts.items() if at is not None),
        held_counts=counts_in(there if leave.twice_below is None else _both(table, quarantine), spans),
        log_counts=counts_in(log.offsets if log else NO_OFFSETS, spans),
        quarantine_counts=counts_in(quarantine, spans),
    )


def held_violations(partition: Partition, spans: Sequence[Span], counts: Sequence[int]) -> tuple[Violation, ...]:
    """Compare the offsets that whole spans hold with their counts, once every part was seen."""
    return tuple(
        violation_at(
            partition, span.lo, ViolationKind.MISSING if count < span.held else ViolationKind.TOO_MANY, span.hi
        )
        for span, count in zip(spans, counts, strict=True)
        if not span.held <= count <= span.held_max
    )


def quarantine_violations(
    partition: Partition, spans: Sequence[Span], counts: Sequence[int], replayed: bool
) -> tuple[Violation, ...]:
    """Compare the quarantined records of whole spans with their counts; a replay takes some of them out."""
    found: list[Violation] = []
    for span, count in zip(spans, counts, strict=True):
        if span.rough:
            continue
        if count > span.totals.quarantined:
            found.append(violation_at(partition, span.lo, ViolationKind.TOO_MANY_QUARANTINED, span.hi))
        elif count < span.totals.quarantined and not replayed:
            found.append(violation_at(partition, span.lo, ViolationKind.MISSING_IN_QUARANTINE, span.hi))
    return tuple(found)


def record_violations(
    partition: Partition, spans: Sequence[Span], counts: Sequence[int], first: int, exact: bool
) -> tuple[Violation, ...]:
    """Compare the records that the log still has in whole spans, those from `first` on, with those that were read."""
    return tuple(
        violation_at(partition, span.lo, ViolationKind.NOT_COUNTED, span.hi)
        for span, records in zip(spans, counts, strict=True)
        if span.read_from >= first and (records > span.records_max or (exact and records < span.totals.read))
    )


def _first(offsets: pl.Series) -> int | None:
    return int(offsets[0]) if len(offsets) else None


def _without(offsets: pl.Series, others: pl.Series) -> pl.Series:
    return offsets.filter(~offsets.is_in(others.implode())) if len(others) else offsets


def _both(table: pl.Series, quarantine: pl.Series) -> pl.Series:
    return pl.concat([table, quarantine]).sort() if len(quarantine) else table


def _merged(table: pl.Series, quarantine: pl.Series) -> pl.Series:
    both = _both(table, quarantine)
    return both if _first_repeated(both) is None else both.unique().sort()


def _from(ascending: pl.Series, bound: int | None) -> pl.Series:
    return ascending if bound is None else ascending[ascending.search_sorted(bound, side="left") :]


def _first_twice(table: pl.Series, by_type: Sequence[pl.Series]) -> int | None:
    """The first offset that the table has twice where it must not, or that one type has twice."""
    found = [_first_repeated(table), *(_first_repeated(each.sort()) for each in by_type)]
    return min((each for each in found if each is not None), default=None)


def _first_repeated(ascending: pl.Series) -> int | None:
    return _first(ascending[1:].filter(ascending[1:] == ascending[:-1]))


def _first_common(one: pl.Series, other: pl.Series) -> int | None:
    return _first(other.filter(other.is_in(one.implode()))) if len(one) and len(other) else None


def _first_absent(ascending: pl.Series, lo: int, hi: int) -> int | None:
    """The first of `[lo, hi)` that is not among distinct ascending offsets."""
    start, stop = ascending.search_sorted(lo, side="left"), ascending.search_sorted(hi, side="left")
    if stop - start == hi - lo:
        return None
    inside = ascending[start:stop]
    wanted = pl.int_range(lo, lo + len(inside), eager=True)
    astray = _first(wanted.filter(inside != wanted))
    return lo + len(inside) if astray is None else astray


def _first_missing(there: pl.Series, part: Part, spans: Sequence[Span]) -> int | None:
    for span in spans:
        lo, hi = max(span.read_from, part.lo), min(span.hi, part.hi)
        if span.full and lo < hi:
            absent = _first_absent(there, lo, hi)
            if absent is not None:
                return absent
    return None


def _first_unheld(there: pl.Series, log: LogOffsets | None, spans: Sequence[Span]) -> int | None:
    """The first record of the log that nobody holds although nothing was filtered there."""
    if log is None or not spans or not len(log.offsets) or there.equals(log.offsets):
        return None
    lost = _without(log.offsets, there)
    lost = lost.filter((lost >= spans[0].lo) & (lost < spans[-1].hi))
    if not len(lost):
        return None
    counted_on = pl.Series([span.unfiltered for span in spans], dtype=pl.Boolean).gather(_span_numbers(lost, spans))
    return _first(lost.filter(counted_on))


def _span_numbers(offsets: pl.Series, spans: Sequence[Span]) -> pl.Series:
    """The number of the span that holds each offset; -1 for those below all of them."""
    starts = pl.Series([span.lo for span in spans], dtype=pl.Int64)
    return starts.search_sorted(offsets, side="right").cast(pl.Int64) - 1


def _first_unknown(there: pl.Series, log: LogOffsets | None, part: Part) -> int | None:
    """The first offset that somebody holds and the log, which still reaches there, does not have."""
    if log is None or not log.exact or there.equals(log.offsets):
        return None
    within = there.filter((there >= max(log.first, part.lo)) & (there < part.hi))
    return _first(_without(within, log.offsets))


def counts_in(ascending: pl.Series, spans: Sequence[Span]) -> tuple[int, ...]:
    if not spans:
        return ()
    lows = ascending.search_sorted(pl.Series([span.lo for span in spans], dtype=pl.Int64), side="left")
    highs = ascending.search_sorted(pl.Series([span.hi for span in spans], dtype=pl.Int64), side="left")
    return tuple((highs.cast(pl.Int64) - lows.cast(pl.Int64)).to_list())


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
    parts = [
        pl.int_range(max(span.read_from, part.lo), max(span.read_from, part.lo, min(span.hi, part.hi)), eager=True)
        for span in placed.spans
        if span.full
    ]
    return _without(pl.concat(parts) if parts else NO_OFFSETS, placed.offsets)


def _times(offsets: pl.Series, name: str) -> pl.DataFrame:
    return offsets.alias("offset").to_frame().group_by("offset").len(name)


def _may_hold(offsets: pl.Series, spans: Sequence[Span]) -> pl.Series:
    """1 where a span may or may not hold the offset: some of its records are filtered, or holes."""
    if not spans or not len(offsets):
        return pl.Series([0] * len(offsets), dtype=pl.Int64)
    owner = _span_numbers(offsets, spans).clip(0)
    loose = pl.Series([int(not span.full) for span in spans], dtype=pl.Int64).gather(owner)
    return loose * ((offsets >= spans[0].lo) & (offsets < spans[-1].hi)).cast(pl.Int64)
