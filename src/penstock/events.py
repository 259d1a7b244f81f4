"""What a running job tells, as typed values that lines, progress and metrics read; a room has further ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import ClassVar, Protocol


class Level(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Event:
    """Something that happened. Its text is constant, the words of its class; its fields carry the facts."""

    name: ClassVar[str] = ""
    level: ClassVar[Level] = Level.INFO

    def __init_subclass__(cls, level: Level = Level.INFO, name: str = "") -> None:
        cls.name = name or re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__).lower()
        cls.level = level

    def facts(self) -> dict[str, object]:
        """The fields by name, without those that do not apply."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: fact for name, fact in found.items() if fact is not None}

    def in_short(self) -> str:
        """What live progress shows as the state of the job: the words, where a fact matters with it."""
        return self.name


class Listener(Protocol):
    """Hears what happens in a job."""

    def event(self, event: Event) -> None: ...


class NullListener:
    """Nobody listens."""

    def event(self, event: Event) -> None:
        return


# the process


@dataclass(frozen=True)
class JobStarted(Event):
    once: bool


@dataclass(frozen=True)
class JobStopped(Event):
    pass


@dataclass(frozen=True)
class JobFailed(Event, level=Level.ERROR):
    error: str
    reason: str
    detail: str


@dataclass(frozen=True)
class JobCrashed(Event, level=Level.ERROR):
    error: str
    reason: str


@dataclass(frozen=True)
class Retrying(Event, level=Level.WARNING):
    reason: str
    detail: str
    pause_seconds: float


# the steps of a round


@dataclass(frozen=True)
class NoTopicMatches(Event, level=Level.WARNING):
    pattern: str | None


@dataclass(frozen=True)
class PartitionStarted(Event):
    partition: str
    offset: int


@dataclass(frozen=True)
class MessagesGivenUp(Event, level=Level.WARNING):
    partition: str
    start: int
    end: int


@dataclass(frozen=True)
class PositionCorrected(Event, level=Level.WARNING):
    """The table's position was below the one that the claim showed."""

    partition: str
    position: int
    shown: int


@dataclass(frozen=True)
class BatchPlanned(Event):
    batch: str
    offsets: int
    slices: int


@dataclass(frozen=True)
class RecordIsolated(Event, level=Level.WARNING):
    partition: str
    offset: int
    reason: str


@dataclass(frozen=True)
class ColumnsAdded(Event):
    columns: Sequence[str]
    type: str | None = None


@dataclass(frozen=True)
class FieldsLeftOut(Event, level=Level.WARNING):
    fields: Sequence[str]
    reason: str
    type: str | None = None


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class OfPartition(Event):
    """Something about one partition, and why."""

    partition: str
    reason: str


class SliceDropped(OfPartition, level=Level.WARNING): ...


class SliceRefused(OfPartition, level=Level.WARNING): ...


class MirrorRefused(OfPartition, level=Level.WARNING): ...


class RangeNotReported(OfPartition, level=Level.WARNING): ...


class RangeNotReturned(OfPartition, level=Level.WARNING): ...


@dataclass(frozen=True)
class Interrupted(Event):
    """Something that failed for now, and why."""

    reason: str
    detail: str = ""


class MirrorFailed(Interrupted, level=Level.WARNING): ...


@dataclass(frozen=True)
class RangesOpened(Event):
    partition: str
    position: int
    lag: int


@dataclass(frozen=True)
class RangesClosed(Event):
    partition: str
    position: int


@dataclass(frozen=True)
class RangeClaimed(Event):
    partition: str
    start: int
    end: int


@dataclass(frozen=True)
class RangeFinished(Event):
    partition: str
    start: int
    ours: bool


# replays


class ReplayRestarted(Interrupted): ...


@dataclass(frozen=True)
class ReplayFinished(Event):
    run: int
    rows: int


@dataclass(frozen=True)
class ReplayCommitted(Event):
    run: int
    rows: int
    still_bad: int


# monitoring rules


@dataclass(frozen=True)
class RulesMeasured(Event):
    """What a table's monitoring rules measure, told every round; `alerts` has, by rule, what does not hold."""

    alerts: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class AlertRaised(Event, level=Level.WARNING):
    rule: str
    reason: str


@dataclass(frozen=True)
class AlertEnded(Event):
    rule: str


# claims


@dataclass(frozen=True)
class GroupJoined(Event):
    group: str
    client_id: str


@dataclass(frozen=True)
class ClaimWon(Event):
    partition: str
    token: int


@dataclass(frozen=True)
class ClaimLost(Event, level=Level.WARNING):
    partition: str
    token: int


class ClaimReleased(OfPartition): ...


class CannotKeepUp(OfPartition): ...


class CoordinationInterrupted(Interrupted, level=Level.WARNING): ...


class LeftSilently(Interrupted, level=Level.WARNING): ...


class ConsumerReplaced(Interrupted): ...


class ReadingInterrupted(Interrupted): ...


@dataclass(frozen=True)
class ReadingBegins(Event):
    partition: str
    token: int
    offset: int


@dataclass(frozen=True)
class ForeignRecord(Event, level=Level.WARNING):
    place: int
    offset: int
    reason: str
