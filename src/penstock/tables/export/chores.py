"""The chores of an export: slices below the positions for types that wait, and marks of partitions that are idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.environment import new_batch_id
from penstock.job.spec import DaysSpec, JobSpec
from penstock.logs.log import Batch, Partition
from penstock.plan import records_per_batch_max
from penstock.tables.export.catching_up.catch_up import CatchUpTerms, catch_up
from penstock.tables.export.days.days import next_boundary_ms
from penstock.tables.export.ledger.state import LedgerState
from penstock.tables.export.spec import ExportSpec
from penstock.tables.kind import View


@dataclass(frozen=True, slots=True)
class CatchUpBatch(Batch):
    """Slices below the positions, for types that wait."""

    takes: Mapping[Partition, Mapping[str, int]] = field(default_factory=dict)
    routing: str = ""
    """The id of the routing under which their records were counted."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Types that wait are due."""

    name: ClassVar[str] = "catch-up"
    batch: CatchUpBatch


@dataclass(frozen=True, slots=True)
class IdleMarks:
    """An entry without rows: event times that idle partitions have passed, and days that close by them."""

    name: ClassVar[str] = "idle marks"
    batch: ClassVar[None] = None
    idle: Mapping[Partition, int]


def next_catch_up(
    job: JobSpec[ExportSpec], state: LedgerState, view: View, resting: frozenset[str]
) -> CatchUpBatch | None:
    """The next slices of types that wait and are due; None if there are none."""
    waiting = [each for each in view.tokens if state.of(each).lanes]
    if not waiting:
        return None
    terms = CatchUpTerms(
        rotations={name: spec.rotation for name, spec in job.table.types.items()},
        now=view.now,
        gap=job.on.gap,
        flush_now=view.flush_now,
        resting=resting,
        records_max=max(1, records_per_batch_max(job.flush, view.record_bytes) // len(waiting)),
    )
    planned = [
        found for each in waiting if (found := catch_up(each, state.of(each), view.bounds[each], terms)) is not None
    ]
    if not planned:
        return None
    # A Spark job routes in one way; what was counted under another comes next.
    planned = [each for each in planned if each.routing == planned[0].routing]
    takes = {each.piece.partition: each.takes for each in planned}
    slices = tuple(each.piece for each in planned)
    return CatchUpBatch(new_batch_id(), slices, takes=takes, routing=planned[0].routing)


@dataclass(slots=True)
class IdlePartitions:
    """Since when partitions are read to their end: a cache, losing it costs a wait."""

    days: DaysSpec
    since: dict[Partition, float] = field(default_factory=dict)

    def marks(self, state: LedgerState, view: View) -> dict[Partition, int]:
        """The event times, in milliseconds, that partitions have passed which have been idle for long enough."""
        idle: dict[Partition, int] = {}
        for partition in view.tokens:
            here = state.of(partition)
            if here.position != view.bounds[partition].end:
                self.since.pop(partition, None)
                continue
            since = self.since.setdefault(partition, view.now)
            seen_ms = int((view.now - self.days.idle_seconds) * 1000)
            after = self.days.complete_after_seconds
            boundary_ms = next_boundary_ms(here.watermark_ms, seen_ms, after, state.reopened.values())
            if view.now - since >= self.days.idle_seconds and boundary_ms is not None:
                idle[partition] = seen_ms
        return idle
