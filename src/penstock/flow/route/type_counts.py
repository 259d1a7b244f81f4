"""What a task of a routed job is told, and what it tells of each type: the share that a type has in a slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import pyarrow as pa

from penstock.failpoints import Failpoint
from penstock.flow.columns.seen_types import from_json, merged, to_json
from penstock.flow.write.manifest import Counts, Marks, PartitionKey, Reason, StagedFile, read_report
from penstock.flow.write.offset_ranges import Ranges, offsets_of, ranges_of
from penstock.job.expressions import Expression
from penstock.job.spec import DaysSpec, DecodeSpec, MessageName, Policies, RouteSpec

UNROUTED = ""
"""Stands for the records that belong to no type: tombstones, unknown types that are dropped or quarantined."""


@dataclass(frozen=True, slots=True)
class TypeFlow:
    """One type as a task sees it."""

    name: str
    values: tuple[str, ...]
    decoded: pa.Schema | None
    """What the decoder gives; None: not known yet, so the records are only looked at to infer it."""
    target: pa.Schema | None
    """The columns of its files."""
    event_time: Expression
    message: MessageName | None = None
    stated: pa.Schema | None = None
    """The fields that the job file states; None: all that are decoded."""
    raw: bool = False
    """The table of unknown types: key and value as they came."""


@dataclass(frozen=True, slots=True)
class RoutedSlice:
    """What a batch does with one partition: which types take part, each from its offset on."""

    topic_id: str
    start: int
    end: int
    pieces: tuple[int, ...]
    """Where the tasks' pieces of the slice begin, ascending; a piece belongs to one task."""
    takes: Mapping[str, int]
    """The types that are written, with the offset from which on; others are only counted."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """From which offset on records of a type belong to this slice; those below `takes` are there already: skipped."""
    main: bool = True
    """False for a catch-up: records that no type takes are none of its business."""
    left: Mapping[str, Ranges] = field(default_factory=dict)
    """Of a replay, by type: offsets whose records the log gives to the type; they are passed over and stay bad."""


@dataclass(frozen=True, slots=True)
class FanoutFlow:
    """Everything that a task of a routed job needs to know; it travels to the workers."""

    job: str
    batch_id: str
    decode: DecodeSpec
    on: Policies
    route: RouteSpec
    types: Mapping[str, TypeFlow]
    columns: Mapping[str, Expression]
    days: DaysSpec
    now_ms: int
    """When the batch was planned: event times may be ahead of it by `days.early_seconds_max`."""
    root_url: str
    staged_folder: str
    """Below the root; the folder of a type is below it. Empty: files are staged in the folder of their day itself."""
    quarantine_url: str
    slices: Mapping[PartitionKey, RoutedSlice]
    storage_options: Mapping[str, str] = field(default_factory=dict)
    compression: str = "snappy"
    statistics: bool = False
    """Whether files carry Delta statistics in their reports."""
    open_writers_max: int = 32
    row_group_bytes_max: int = 32 * 1024 * 1024
    pending_bytes_max: int = 128 * 1024 * 1024
    failpoint: Failpoint | None = None
    replay_run: int | None = None
    """Set when the records come from quarantine: their files belong to no slice, and what is still bad stays there."""


@dataclass(frozen=True, slots=True)
class Share:
    """What became of the records of one type in one partition, or in a task's piece of it."""

    counts: Counts = field(default_factory=Counts)
    """`read` are all its records at or beyond the offset that it takes part from."""
    first: int | None = None
    """The offset of the first of them."""
    size_bytes: int = 0
    """Of their values, as they lie in the log."""
    event_ms_max: int | None = None
    days: Mapping[str, int] = field(default_factory=dict)
    """Written rows by day."""
    files: tuple[StagedFile, ...] = ()
    quarantine_files: tuple[StagedFile, ...] = ()
    failed: str = ""
    """Why the type could not be written; its files are then left to vacuum."""
    new_fields: str = ""
    """What fields show that its columns lack, as `flow.seen_types` writes it."""
    replayed: Ranges = ()
    """Of a replay: the offsets of the written rows."""

    def __add__(self, other: Share) -> Share:
        return Share(
            counts=self.counts + other.counts,
            first=_least(self.first, other.first),
            size_bytes=self.size_bytes + other.size_bytes,
            event_ms_max=_most(self.event_ms_max, other.event_ms_max),
            days={day: self.days.get(day, 0) + other.days.get(day, 0) for day in {**self.days, **other.days}},
            files=(*self.files, *other.files),
            quarantine_files=(*self.quarantine_files, *other.quarantine_files),
            failed=self.failed or other.failed,
            new_fields=to_json(merged([from_json(self.new_fields), from_json(other.new_fields)])),
            replayed=ranges_of([*offsets_of(self.replayed), *offsets_of(other.replayed)]),
        )


@dataclass(frozen=True, slots=True)
class FanoutReport:
    """The result of one task: shares by partition and type (`UNROUTED` for what belongs to none)."""

    shares: Mapping[PartitionKey, Mapping[str, Share]] = field(default_factory=dict)
    first_error: str = ""
    reasons: tuple[Reason, ...] = ()
    """Why records were quarantined; a bounded number of kinds."""
    marks: Marks = field(default_factory=dict)


_FANOUT_REPORT = msgspec.msgpack.Decoder(tuple[Literal[1], FanoutReport])


def decode_fanout(data: bytes) -> FanoutReport:
    return read_report(_FANOUT_REPORT, data)


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
