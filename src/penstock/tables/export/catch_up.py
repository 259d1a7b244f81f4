"""Which types have to be brought up to the others, and over which offsets: a pure plan (RULES L5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import InvariantError
from penstock.job.spec import GapPolicy
from penstock.logs.log import Bounds, Partition, Slice
from penstock.tables.export.ledger.state import Cause, Lane, RoutedPartition
from penstock.tables.export.spec import Rotation


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
    routing: str = ""
    """The id of the routing by which their records are found; empty: that of the job file."""


def is_due(name: str, lane: Lane, terms: CatchUpTerms) -> bool:
    """Whether a type that lags is to be written now."""
    if name in terms.resting:
        return False
    rotation = terms.rotations.get(name)
    if lane.cause is not Cause.ROTATION or rotation is None or terms.flush_now:
        return True
    return (
        (rotation.events is not None and lane.deferred >= rotation.events)
        or terms.now - lane.since >= rotation.seconds
        or (rotation.size_bytes is not None and lane.size_bytes >= rotation.size_bytes)
    )


def lost_lanes(here: RoutedPartition, bounds: Bounds) -> dict[str, Lane]:
    """The types that left records at offsets that the log no longer has; a backfill takes what is there."""
    return {name: lane for name, lane in here.lanes.items() if lane.position < bounds.first and not _in_backfill(lane)}


def catch_up(partition: Partition, here: RoutedPartition, bounds: Bounds, terms: CatchUpTerms) -> CatchUp | None:
    """The next slice below a partition's position; None if nothing below it is due.

    A backfill ends where counting began, so that its records and those that were deferred are never in one slice; a
    slice also ends where another routing began. A type that lost records stands still where `on.gap` says so.
    """
    stopped = lost_lanes(here, bounds) if terms.gap is GapPolicy.FAIL else {}
    due = {name: lane for name, lane in here.lanes.items() if name not in stopped and is_due(name, lane, terms)}
    backfills = {name: lane for name, lane in due.items() if _in_backfill(lane)}
    if not due or here.position is None:
        return None
    first = min((backfills or due).values(), key=lambda lane: lane.position)
    if backfills:
        group = {name: lane for name, lane in backfills.items() if lane.routing == first.routing}
        routing, end_max = first.routing, min(lane.counted_from for lane in group.values())
    else:
        group = due
        routing, end_max = _routed_at(here, first.position)
    start = first.position
    read_from = min(max(start, bounds.first), end_max)
    end = min(end_max, read_from + terms.records_max)
    takes = {name: lane.position for name, lane in group.items() if lane.position < end}
    return CatchUp(Slice(partition, start, end, read_from), takes, routing)


def check_residue(piece: Slice, here: RoutedPartition, taken: Mapping[str, int], may_vanish: bool) -> None:
    """A type that has caught up must have found every record that was left for it, unless the log lost some."""
    if here.position is None or piece.end < here.position or may_vanish:
        return
    for name, count in taken.items():
        lane = here.lanes.get(name)
        if lane is None or lane.gap or lane.position < piece.read_from or piece.end <= lane.counted_from:
            continue
        if lane.deferred != count:
            raise InvariantError(
                f"{piece.partition}: type {name} left {lane.deferred} records and found {count} of them",
                detail=f"offsets {lane.position} to {piece.end - 1}; nothing was written",
                hint="if the topic is transactional or was compacted, say so (log.kafka.transactional); "
                "otherwise report this with the output of `penstock verify`",
            )


def _in_backfill(lane: Lane) -> bool:
    return lane.position < lane.counted_from


def _routed_at(here: RoutedPartition, offset: int) -> tuple[str, int]:
    """The routing under which records at an offset were counted, and where the next one begins."""
    routing, end = "", here.position or 0
    for each in here.routings:
        if each.offset > offset:
            return routing, each.offset
        routing = each.routing
    return routing, end
