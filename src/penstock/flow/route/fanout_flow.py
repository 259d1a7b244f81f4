"""What the tasks of a job with types are given: the types, the route to them, and where their files go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.flow.stage import NamedSlice, TaskFlow
from penstock.flow.write.manifest import PartitionKey
from penstock.flow.write.pool import MEBIBYTE, PoolLimits
from penstock.flow.write.report import UNROUTED
from penstock.job.expressions import Expression
from penstock.job.spec import DaysSpec, MessageName, RouteSpec

DEFAULT_LIMITS = PoolLimits(open_writers_max=32, row_group_bytes_max=32 * MEBIBYTE)


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


@dataclass(frozen=True, slots=True)
class RoutedSlice(NamedSlice):
    """What a batch does with one partition: which types take part, each from its offset on."""

    tasks: int
    """How many tasks read a piece of the slice."""
    takes: Mapping[str, int]
    """The types that are written, with the offset from which on; others are only counted."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """From which offset on records of a type belong to this slice; those below `takes` are there already: skipped."""
    main: bool = True
    """False for a catch-up, which passes over records that no type takes."""
    left: Mapping[str, int] = field(default_factory=dict)
    """Of a replay, by type: from which offset on the log gives it the records; they are passed over and stay bad."""
    after: Mapping[str, int] = field(default_factory=dict)
    """By type: where the last slice ends that has files of it; footers name it, so that a missing file is noticed."""

    def writes(self, type_name: str) -> bool:
        return type_name == UNROUTED or type_name in self.takes


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutFlow(TaskFlow):
    """Everything that a task of a job with types needs to know."""

    slices: Mapping[PartitionKey, RoutedSlice]
    route: RouteSpec
    types: Mapping[str, TypeFlow]
    days: DaysSpec
    now_ms: int
    """When the batch was planned: event times may be ahead of it by `days.early_seconds_max`."""
    root_url: str
    staged_folder: str
    """Below the root; the folder of a type is below it. Empty: files are staged in the folder of their day itself."""
    quarantine_url: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    compression: str = "snappy"
    statistics: bool = False
    """Whether files carry Delta statistics in their reports."""
    limits: PoolLimits = DEFAULT_LIMITS
