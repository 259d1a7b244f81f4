"""What a running export tells beside the events of every job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.events import Event, Interrupted, Level, RulesMeasured


@dataclass(frozen=True)
class CatchUpPlanned(Event, name="catch-up planned"):
    types: Sequence[str]
    offsets: int


@dataclass(frozen=True)
class TypeCannotBeWritten(Event, level=Level.ERROR):
    type: str
    reason: str


@dataclass(frozen=True)
class TypeWrittenAgain(Event):
    type: str


@dataclass(frozen=True)
class TypeStoppedByAGap(Event, level=Level.ERROR):
    type: str
    partition: str
    reason: str
    hint: str


@dataclass(frozen=True)
class DayComplete(Event):
    type: str
    day: str


@dataclass(frozen=True)
class DayOpenedAgain(Event):
    type: str
    day: str


class DayMarkerFailed(Interrupted, level=Level.WARNING): ...


class RetentionNotKnown(Interrupted, level=Level.WARNING): ...


@dataclass(frozen=True)
class RecordsVanished(Event, level=Level.WARNING):
    records: int


@dataclass(frozen=True)
class RecordsAreInQuarantineTwice(Event):
    records: int


@dataclass(frozen=True)
class ExportRules(RulesMeasured, name=RulesMeasured.name):
    """The monitoring rules of seed 000, by partition or by type."""

    failed_writes_percent: float | None = None
    failed_writes_percent_by_type: Mapping[str, float] = field(default_factory=dict)
    lag_records: Mapping[str, int] = field(default_factory=dict)
    discrepancy_records: Mapping[str, int] = field(default_factory=dict)
    position: Mapping[str, int] = field(default_factory=dict)
    global_position: Mapping[str, int] = field(default_factory=dict)
    type_lag_records: Mapping[str, int] = field(default_factory=dict)
    watermark: Mapping[str, float] = field(default_factory=dict)
    """In seconds since 1970."""
