"""An entry of the ledger: one atomic act, as a value. What it does to the state is in `fold`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.offset_ranges import Ranges
from penstock.lake.state import Totals
from penstock.logs.log import EpochMark, Partition
from penstock.tables.export.ledger.state import Cause, Day, Rename, Stored, TypeDay
from penstock.tables.export.spec import TypeStart


class EntryKind(StrEnum):
    """One word for people who read the ledger; the fold looks at the contents."""

    TYPES = "types"
    START = "start"
    FENCE = "fence"
    BATCH = "batch"
    CATCH_UP = "catch_up"
    IDLE = "idle"
    REPLAY = "replay"
    COMPACTION = "compaction"
    REBUILD = "rebuild"


class StartRecord(Stored, frozen=True):
    partition: Partition
    offset: int
    token: int


class FenceRecord(Stored, frozen=True):
    partition: Partition
    token: int


class DeferredRecord(Stored, frozen=True):
    """Records of a type that a slice read and left for later; `first` is the offset of the first of them."""

    count: int
    first: int
    size_bytes: int
    cause: Cause


class WrittenRecord(Stored, frozen=True):
    """What a slice wrote of a type."""

    rows: int
    files: int
    size_bytes: int
    days: Mapping[Day, int] = msgspec.field(default_factory=dict)

    def __add__(self, other: WrittenRecord) -> WrittenRecord:
        days = {day: self.days.get(day, 0) + other.days.get(day, 0) for day in {**self.days, **other.days}}
        return WrittenRecord(self.rows + other.rows, self.files + other.files, self.size_bytes + other.size_bytes, days)


class TakenRecord(Stored, frozen=True):
    """What a catch-up slice did for a type: from which offset, and how many of its records it dealt with."""

    start: int
    count: int
    gap: int = 0
    """Offsets from `start` on that the log no longer had."""


class SliceRecord(Stored, frozen=True):
    """One slice of a batch. `taken` is set for a catch-up: it moves lanes, not the partition."""

    partition: Partition
    start: int
    end: int
    token: int
    totals: Totals
    """What it adds."""
    watermark_ms: int | None = None
    written: Mapping[str, WrittenRecord] = msgspec.field(default_factory=dict)
    deferred: Mapping[str, DeferredRecord] = msgspec.field(default_factory=dict)
    taken: Mapping[str, TakenRecord] | None = None
    quarantine: tuple[StagedFile, ...] = ()
    routing: str = ""
    """The id of the routing under which a slice of the partition itself was read; empty: that of the job file."""
    mark: EpochMark | None = None
    """The last record of a slice of the partition itself, if its leader epoch is known."""


class TypeRecord(Stored, frozen=True):
    """A type that is new to the table, or whose columns changed."""

    schema: str = ""
    start: TypeStart | None = None
    """Where it begins in partitions that already have a position; None for a type that is not new."""
    routing: str = ""
    """The id of the routing by which what it has to catch up is found."""


class ReplayRecord(Stored, frozen=True):
    """What a replay run took out of quarantine: it moves no position, and its rows belong to no slice (RULES Q2)."""

    run: int
    offsets: tuple[tuple[Partition, Ranges], ...] = ()
    written: Mapping[str, WrittenRecord] = msgspec.field(default_factory=dict)


class Entry(Stored, frozen=True):
    """Everything that became true at once with number `number`."""

    number: int
    kind: EntryKind
    job: str
    batch_id: str
    at: float
    starts: tuple[StartRecord, ...] = ()
    fences: tuple[FenceRecord, ...] = ()
    slices: tuple[SliceRecord, ...] = ()
    types: Mapping[str, TypeRecord] = msgspec.field(default_factory=dict)
    idle: tuple[tuple[Partition, int], ...] = ()
    """Watermarks of partitions that were read to their end and stayed there."""
    renames: tuple[Rename, ...] = ()
    removes: tuple[str, ...] = ()
    pending: tuple[Rename, ...] = ()
    """Renames of earlier entries that still cannot be done; all others are done (RULES L1, L4)."""
    pending_removes: tuple[str, ...] = ()
    pending_marks: tuple[TypeDay, ...] = ()
    """Days whose markers earlier entries should have changed and could not."""
    dropped: tuple[Rename, ...] = ()
    """Pending renames that are given up because their staged files are gone; their rows count as vanished."""
    retired: int = 0
    """See `LedgerState.retired`; 0 leaves it as it was."""
    failures: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Writes to the final place that failed since the last entry, by type."""
    reopened: tuple[tuple[TypeDay, int], ...] = ()
    closed: tuple[TypeDay, ...] = ()
    """Days that are complete with this entry."""
    routings: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Routings that are new to the table, by id."""
    replay: ReplayRecord | None = None

    @property
    def writers(self) -> tuple[SliceRecord | ReplayRecord, ...]:
        """All that brought rows."""
        return self.slices if self.replay is None else (*self.slices, self.replay)
