"""Which types have to be brought up to the others, and over which offsets: a pure plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import InvariantError
from penstock.job.spec import GapPolicy
from penstock.logs.log import Batch, Bounds, Partition, Slice
from penstock.tables.export.spec import Rotation
from penstock.tables.export.state import Cause, JobPartition, Lag


@dataclass(frozen=True, slots=True)
class CatchUpBatch(Batch):
    """Slices below the positions, for types that lag."""

    takes: Mapping[Partition, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CatchUpTerms:
    """What a plan depends on beside the lags."""

    rotations: Mapping[str, Rotation | None]
    now: float
    gap: GapPolicy = GapPolicy.FAIL
    flush_now: bool = False
    resting: frozenset[str] = field(default_factory=frozenset)
    """Types that could not be written lately and are left alone for a while."""
    records_max: int = 1_000_000


def is_due(name: str, lag: Lag, terms: CatchUpTerms) -> bool:
    """Whether a type that lags is to be written now."""
    if name in terms.resting:
        return False
    rotation = terms.rotations.get(name)
    if lag.cause is not Cause.ROTATION or rotation is None or terms.flush_now:
        return True
    return (
        (rotation.events is not None and lag.deferred >= rotation.events)
        or terms.now - lag.since_ms / 1000 >= rotation.seconds
        or (rotation.size_bytes is not None and lag.size_bytes >= rotation.size_bytes)
    )


def lost_lags(here: JobPartition, bounds: Bounds) -> dict[str, Lag]:
    """The types that left records at offsets that the log no longer has."""
    return {name: lag for name, lag in here.lags.items() if lag.position < bounds.first}


def catch_up(
    partition: Partition, here: JobPartition, bounds: Bounds, terms: CatchUpTerms
) -> tuple[Slice, dict[str, int]] | None:
    """The next slice below a partition's position, with the types that take part, each from its own position.

    None if nothing below it is due. A type that lost records stands still where `on.gap` says so.
    """
    stopped = lost_lags(here, bounds) if terms.gap is GapPolicy.FAIL else {}
    due = {name: lag for name, lag in here.lags.items() if name not in stopped and is_due(name, lag, terms)}
    if not due or here.position is None:
        return None
    start = min(lag.position for lag in due.values())
    read_from = min(max(start, bounds.first), here.position)
    end = min(here.position, read_from + terms.records_max)
    takes = {name: lag.position for name, lag in due.items() if lag.position < end}
    return Slice(partition, start, end, read_from), takes


def check_residue(piece: Slice, here: JobPartition, taken: Mapping[str, int], may_vanish: bool) -> None:
    """A type that has caught up must have found every record that was left for it, unless the log lost some."""
    if here.position is None or piece.end < here.position or may_vanish:
        return
    for name, count in taken.items():
        lag = here.lags.get(name)
        if lag is None or lag.gap or lag.position < piece.read_from:
            continue
        if lag.deferred != count:
            raise InvariantError(
                f"{piece.partition}: type {name} left {lag.deferred} records and found {count} of them",
                detail=f"offsets {lag.position} to {piece.end - 1}; nothing was written",
                hint="if the topic is transactional or was compacted, say so (log.kafka.transactional); "
                "otherwise report this with the output of `penstock verify`",
            )
