"""Single offsets: each is there once, none is missing, in two places, or not in the log. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from penstock.flow.write.offset_ranges import Ranges, offsets_of
from penstock.logs.log import Partition
from penstock.proof.findings import Violation, ViolationKind, violation_at
from penstock.proof.invariants import Span
from penstock.proof.offsets.scan_passes import Part

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
    """What a part showed: what the table's own word condemns, what the log's does, and counts per span."""

    violations: tuple[Violation, ...]
    log_violations: tuple[Violation, ...]
    held_counts: tuple[int, ...]
    log_counts: tuple[int, ...]
    quarantine_counts: tuple[int, ...]


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
    table, quarantine = held.table.sort(), _without(held.quarantine, leave.owed).sort()
    there = _merged(table, quarantine)
    once_table, once_quarantine = (_from(each, leave.twice_below) for each in (table, quarantine))
    # What is in neither is missing, whoever the pooled rows belong to.
    perhaps = _merged(there, held.pooled.sort()) if len(held.pooled) else there
    origin, position = (spans[0].lo, spans[-1].hi) if spans else (part.lo, part.hi)
    firsts = {
        ViolationKind.TWICE: _first_twice(once_table, held.by_type if leave.twice_below is not None else ()),
        ViolationKind.TWICE_IN_QUARANTINE: _first_repeated(once_quarantine),
        ViolationKind.BOTH: None if leave.in_both else _first_common(once_table, once_quarantine),
        ViolationKind.BEFORE_ORIGIN: there[0] if len(there) and there[0] < origin else None,
        ViolationKind.BEYOND_POSITION: _first_from(there, position),
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


def _without(offsets: pl.Series, ranges: Ranges) -> pl.Series:
    if not ranges:
        return offsets
    return offsets.filter(~offsets.is_in(pl.Series(offsets_of(ranges), dtype=pl.Int64).implode()))


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
    if len(ascending) < 2:
        return None
    repeated = ascending[1:].filter(ascending[1:] == ascending[:-1])
    return int(repeated[0]) if len(repeated) else None


def _first_common(one: pl.Series, other: pl.Series) -> int | None:
    common = other.filter(other.is_in(one.implode())) if len(one) and len(other) else NO_OFFSETS
    return int(common[0]) if len(common) else None


def _first_from(ascending: pl.Series, bound: int) -> int | None:
    index = ascending.search_sorted(bound, side="left")
    return int(ascending[index]) if index < len(ascending) else None


def _first_absent(ascending: pl.Series, lo: int, hi: int) -> int | None:
    """The first of `[lo, hi)` that is not among distinct ascending offsets."""
    start, stop = ascending.search_sorted(lo, side="left"), ascending.search_sorted(hi, side="left")
    if stop - start == hi - lo:
        return None
    inside = ascending[start:stop]
    wanted = pl.int_range(lo, lo + len(inside), eager=True)
    astray = wanted.filter(inside != wanted)
    return int(astray[0]) if len(astray) else lo + len(inside)


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
    lost = log.offsets.filter(~log.offsets.is_in(there.implode())) if len(there) else log.offsets
    lost = lost.filter((lost >= spans[0].lo) & (lost < spans[-1].hi))
    if not len(lost):
        return None
    starts = pl.Series([span.lo for span in spans], dtype=pl.Int64)
    owner = starts.search_sorted(lost, side="right").cast(pl.Int64) - 1
    counted_on = pl.Series([span.unfiltered for span in spans], dtype=pl.Boolean).gather(owner)
    sure = lost.filter(counted_on)
    return int(sure[0]) if len(sure) else None


def _first_unknown(there: pl.Series, log: LogOffsets | None, part: Part) -> int | None:
    """The first offset that somebody holds and the log, which still reaches there, does not have."""
    if log is None or not log.exact or there.equals(log.offsets):
        return None
    within = there.filter((there >= max(log.first, part.lo)) & (there < part.hi))
    unknown = within.filter(~within.is_in(log.offsets.implode())) if len(log.offsets) else within
    return int(unknown[0]) if len(unknown) else None


def counts_in(ascending: pl.Series, spans: Sequence[Span]) -> tuple[int, ...]:
    if not spans:
        return ()
    lows = ascending.search_sorted(pl.Series([span.lo for span in spans], dtype=pl.Int64), side="left")
    highs = ascending.search_sorted(pl.Series([span.hi for span in spans], dtype=pl.Int64), side="left")
    return tuple((highs.cast(pl.Int64) - lows.cast(pl.Int64)).to_list())
