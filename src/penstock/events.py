"""The events of a running job, as typed values for log lines, progress and metrics; kinds of tables add their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import ClassVar, Protocol, TypeAlias, dataclass_transform

UNLOGGED: Mapping[str, object] = {"logged": False}
"""Marks a field that is only for displays and metrics."""


class Level(StrEnum):
    DEBUG = "debug"
    """For displays and metrics: not logged."""
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True)
class Event:
    """An event of a job. Its text is constant, by default from the class name; its fields carry the facts.

    Every subclass is a frozen dataclass.
    """

    name: ClassVar[str] = ""
    level: ClassVar[Level] = Level.INFO

    def __init_subclass__(cls, level: Level = Level.INFO, name: str = "") -> None:
        cls.name = name or re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__).lower()
        cls.level = level
        dataclass(frozen=True)(cls)

    def facts(self) -> dict[str, object]:
        """The fields by name, without those that are None or only for metrics."""
        result = {item.name: getattr(self, item.name) for item in fields(self) if item.metadata != UNLOGGED}
        return {name: fact for name, fact in result.items() if fact is not None}


class Listener(Protocol):
    """Receives the events of a job."""

    def event(self, event: Event) -> None: ...


OnLanded: TypeAlias = Callable[[Mapping[str, int], int], None]
"""Receives the positions of what has landed, and the version of the table."""


class NullListener:
    """Ignores every event."""

    def event(self, event: Event) -> None:
        return


# the process


class JobStarted(Event):
    once: bool


class JobStopped(Event):
    pass


class JobFailed(Event, level=Level.ERROR):
    error: str
    reason: str
    detail: str


class JobCrashed(Event, level=Level.ERROR):
    error: str
    reason: str


class Retrying(Event, level=Level.WARNING):
    reason: str
    detail: str
    pause_seconds: float


class ExecutorsAwaited(Event, level=Level.WARNING):
    """A Spark job has waited long without an executor; a second one, with their number, when they came."""

    executors: int
    requested: str
    cluster: str


# the steps of a round


class NoTopicMatches(Event, level=Level.WARNING):
    pattern: str | None


class PartitionStarted(Event):
    partition: str
    offset: int


class PositionCorrected(Event, level=Level.WARNING):
    """The table's position was below the one in the claim."""

    partition: str
    position: int
    shown: int


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Where a partition is, and what the log has of it."""

    position: int
    first: int
    end: int
    age_seconds: float | None = None
    """Of the oldest unread record, read now and then; None while it is not known."""
    retention_seconds: float | None = None
    """Of the topic; None if it is unlimited or not known."""
    topic_id: str = ""

    @property
    def lag(self) -> int:
        """Unread offsets that the log has: what it has deleted is a gap."""
        return max(0, self.end - max(self.position, self.first))


class ProgressMeasured(Event, level=Level.DEBUG):
    """At the start of each round, by partition that the process holds."""

    partitions: Mapping[str, PartitionProgress]
    heartbeat_age_seconds: float | None = None
    """Since the group last saw this process; None without claims."""

    @property
    def lag(self) -> int:
        return sum(partition.lag for partition in self.partitions.values())


class RoundDone(Event, level=Level.DEBUG):
    """A round has succeeded, whether there was work or not."""


class BatchPlanned(Event):
    batch: str
    offsets: int
    slices: int


class RecordIsolated(Event, level=Level.WARNING):
    partition: str
    offset: int
    reason: str


class ColumnsAdded(Event):
    columns: Sequence[str]
    type: str | None = None


class SchemaInferred(Event):
    """Of a job with `schema: infer`, before its table is created."""

    records: int
    fields: Mapping[str, str]


class FieldsLeftOut(Event, level=Level.WARNING):
    fields: Sequence[str]
    reason: str
    type: str | None = None


class FilesCompacted(Event):
    files_before: int
    files_after: int
    size_bytes: int


class CheckpointFailed(Event, level=Level.WARNING):
    """The commit has landed; the next checkpoint is tried many commits later."""

    version: int
    reason: str
    detail: str


class CompactionFailed(Event, level=Level.WARNING):
    """The job continues, and compacts again after more commits."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Output:
    """What a batch added to one table."""

    columns: Mapping[str, str]
    """Names with types."""
    rows: int
    size_bytes: int
    files: int


class BatchCommitted(Event):
    batch: str
    version: int | None
    catch_up: bool = False
    read: int = 0
    written: int = 0
    quarantined: int = 0
    filtered: int = 0
    files: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    """From the start of the Spark job to the commit."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """The seconds of plan, read, decode, write and commit."""
    slices: Mapping[str, tuple[int, int]] = field(default_factory=dict, metadata=UNLOGGED)
    """Start and end by partition."""
    file_sizes: Sequence[int] = field(default=(), metadata=UNLOGGED)
    outputs: Mapping[str, Output] = field(default_factory=dict, metadata=UNLOGGED)
    """By type; of a table without types under an empty name."""


class Mirrored(Event, level=Level.DEBUG):
    """Positions were shown in the consumer group."""

    seconds: float


class OfPartition(Event):
    """An event of one partition, with its reason."""

    partition: str
    reason: str


class SliceDropped(OfPartition, level=Level.WARNING): ...


class SliceRefused(OfPartition, level=Level.WARNING): ...


class MirrorRefused(OfPartition, level=Level.WARNING): ...


class Interrupted(Event):
    """A failure that does not end the job by itself, with its reason."""

    reason: str
    detail: str = ""


class MirrorFailed(Interrupted, level=Level.WARNING): ...


# replays


class ReplayRestarted(Interrupted): ...


class ReplayFinished(Event):
    run: int
    rows: int


class ReplayCommitted(Event):
    run: int
    rows: int
    still_bad: int


# monitoring rules


class RulesMeasured(Event):
    """What a table's monitoring rules measure, reported every round; `alerts` has the violations by rule."""

    alerts: Mapping[str, Sequence[str]] = field(default_factory=dict)


class AlertRaised(Event, level=Level.WARNING):
    rule: str
    reason: str


class AlertEnded(Event):
    rule: str


# claims


class GroupJoined(Event):
    group: str
    client_id: str


class ClaimWon(Event):
    partition: str
    token: int


class ClaimLost(Event, level=Level.WARNING):
    partition: str
    token: int


class ClaimReleased(OfPartition): ...


class CoordinationInterrupted(Interrupted, level=Level.WARNING): ...


class WorkHangs(Interrupted, level=Level.ERROR): ...


class LeftSilently(Interrupted, level=Level.WARNING, name="left group without notice"): ...


class ConsumerReplaced(Interrupted): ...


class ReadingInterrupted(Interrupted): ...


class ReadingBegins(Event):
    partition: str
    token: int
    offset: int


class SnapshotTooLarge(Event, level=Level.ERROR):
    group: str
    size_bytes: int


class ForeignRecord(Event, level=Level.WARNING):
    place: int
    offset: int
    reason: str
