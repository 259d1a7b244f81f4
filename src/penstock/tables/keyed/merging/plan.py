"""What a task of the merge is told about its bucket, and what it tells afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from penstock.flow.stage import NamedSlice, TaskFlow
from penstock.flow.write.manifest import PartitionKey, StagedFile
from penstock.flow.write.names import compacted_name, replayed_name, staged_name
from penstock.tables.keyed.merging.chunks import ChunkStore
from penstock.tables.keyed.merging.runs import RunPart

Bounds = Mapping[str, tuple[Any, Any] | None]
"""By column, the least and the greatest value; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class OldFile:
    """A file of the table that may hold keys of the batch."""

    path: str
    rows: int
    size_bytes: int
    bounds: Bounds
    digest: str = ""


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """One bucket that a batch touches."""

    bucket: int
    runs: tuple[RunPart, ...]
    files: tuple[OldFile, ...] = ()
    """Those whose bounds meet those of the runs."""
    joined: frozenset[str] = frozenset()
    """Small ones among them that are put together, whether the batch touches them or not."""
    tombstones: tuple[str, ...] = ()
    tombstones_joined: frozenset[str] = frozenset()
    """Small ones among them that are put together."""


@dataclass(frozen=True, slots=True)
class Naming:
    """How the files of a batch are called: after its first slice, its replay, or the last version that a load can be.

    The batch lands whole or not at all, so once that slice is behind the position no commit can name them any more.
    """

    number: int = 0
    slice: NamedSlice | None = None
    replay_run: int | None = None
    version_max: int | None = None

    @classmethod
    def of(cls, flow: TaskFlow) -> Naming:
        (_, number), piece = min(flow.slices.items())
        return cls(number, piece, flow.replay_run)

    def fresh(self) -> str:
        if self.version_max is not None:
            return compacted_name(self.version_max, uuid.uuid4().hex)
        if self.replay_run is not None:
            return replayed_name(str(self.replay_run), uuid.uuid4().hex)
        piece = self.slice
        assert piece is not None
        return staged_name(piece.topic_id, self.number, piece.start, piece.end, uuid.uuid4().hex)


class Meeting(StrEnum):
    """What becomes of the rows that are there when others come."""

    NEWER = "newer"
    """A row is replaced by a newer one of its key."""
    NOT_OLDER = "not older"
    """Also by one that is as new: files that are loaded again replace what they brought before."""
    PARTITIONS = "partitions"
    """All rows with a partition key that comes are replaced."""
    NONE = "none"
    """Nobody looks: a bulk load, or one that replaces the whole table."""


@dataclass(frozen=True, slots=True)
class MergeFlow:
    """What every task of a merge needs to know; it travels to the workers."""

    store: ChunkStore
    naming: Naming
    tombstones_url: str
    meeting: Meeting = Meeting.NEWER
    now: float = 0.0
    """When rows are deleted."""
    tombstone_retention_seconds: float = float("inf")


class BucketReport(msgspec.Struct, frozen=True):
    """What became of a bucket."""

    bucket: int
    files: tuple[StagedFile, ...] = ()
    removed: tuple[str, ...] = ()
    """Paths of the files that the new ones stand for."""
    skipped: tuple[tuple[PartitionKey, int], ...] = ()
    """Records that lost to a newer one, by partition."""
    tombstones: tuple[StagedFile, ...] = ()
    tombstones_removed: tuple[str, ...] = ()
    """Paths of the tombstones that the new ones contain, but for those whose time is over."""
    unread: int = 0
    """Rows that were found to be there already by the names of files alone."""
