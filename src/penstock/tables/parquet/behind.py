"""Which types have to be brought up to the others, and over which offsets: a pure plan (RULES L5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import InvariantError
from penstock.job.spec import GapPolicy, Rotation
from penstock.log.offsets import Bounds, Partition, Slice
from penstock.plan import GapError
from penstock.tables.parquet.state import Cause, Lane, RoutedPartition


@dataclass(frozen=True, slots=True)
class CatchUpTerms:
    """What a plan depends on beside the lanes."""

    rotations: Mapping[str, Rotation | None]
    now: float
    gap: GapPolicy = GapPolicy.FAIL
    flush_now: bool = False
    resting: frozenset[str] = field(default_factory=frozenset)
    """Types that could not be written lately and are left alone for a while."""
    records_max: int = 1_000_000


@dataclass(frozen=True, slots=True)
class CatchUp:
    """One slice for the types that take part, each from its own position."""

    piece: Slice
    takes: Mapping[str, int]


def is_due(name: str, lane: Lane, terms: CatchUpTerms) -> bool:
    """Whether a type that is behind is to be written now."""
    if name in terms.resting:
        return False
    rotation = terms.rotations.get(name)
    if lane.cause is not Cause.ROTATION or rotation is None or terms.flush_now:
        return True
    return (
        (rotation.events is not None and lane.deferred >= rotation.events)
        or (rotation.seconds is not None and terms.now - lane.since >= rotation.seconds)
        or (rotation.size_bytes is not None and lane.size_bytes >= rotation.size_bytes)
    )


def catch_up(partition: Partition, here: RoutedPartition, bounds: Bounds, terms: CatchUpTerms) -> CatchUp | None:
    """The next slice behind a partition's position; None if nothing behind it is due.

    A backfill ends where counting began, so that its records and those that were deferred are never in one slice.
    """
    due = {name: lane for name, lane in here.lanes.items() if is_due(name, lane, terms)}
    backfills = {name: lane for name, lane in due.items() if lane.position < lane.counted_from}
    group = backfills or due
    if not group or here.position is None:
        return None
    start = min(lane.position for lane in group.values())
    end_max = min((lane.counted_from for lane in backfills.values()), default=here.position)
    if start < bounds.first and not backfills and terms.gap is GapPolicy.FAIL:
        raise GapError(partition, start, bounds.first)
    read_from = min(max(start, bounds.first), end_max)
    end = min(end_max, read_from + terms.records_max)
    takes = {name: lane.position for name, lane in group.items() if lane.position < end}
    return CatchUp(Slice(partition, start, end, read_from), takes)


def check_residue(piece: Slice, here: RoutedPartition, taken: Mapping[str, int], may_vanish: bool) -> None:
    """A type that has caught up must have found every record that was left for it."""
    if here.position is None or piece.end < here.position or may_vanish or piece.gap:
        return
    for name, count in taken.items():
        lane = here.lanes.get(name)
        if lane is not None and piece.end > lane.counted_from and lane.deferred != count:
            raise InvariantError(
                f"{piece.partition}: type {name} left {lane.deferred} records behind and found {count} of them",
                detail=f"offsets {lane.position} to {piece.end - 1}",
            )
