"""What a running export reports beside the events of every job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from penstock.events import Event, Interrupted, Level, RulesMeasured


class CatchUpPlanned(Event, name="catch-up planned"):
    types: Sequence[str]
    offsets: int


class TypeCannotBeWritten(Event, level=Level.ERROR):
    type: str
    reason: str


class TypeWrittenAgain(Event):
    type: str


class TypeStoppedByAGap(Event, level=Level.ERROR):
    type: str
    partition: str
    reason: str
    hint: str


class DayComplete(Event):
    type: str
    day: str


class DayOpenedAgain(Event):
    type: str
    day: str


class DayMarkerFailed(Interrupted, level=Level.WARNING): ...


class RecordsVanished(Event, level=Level.WARNING):
    records: int


class ExportRules(RulesMeasured, name=RulesMeasured.name):
    """The monitoring rules of seed 000, by partition or by type."""

    failed_writes_percent: float | None = None
    """Of all types together, since the process started; None before the first write."""
    failed_writes_percent_by_type: Mapping[str, float] = field(default_factory=dict)
    lag_records: Mapping[str, int] = field(default_factory=dict)
    discrepancy_records: Mapping[str, int] = field(default_factory=dict)
    position: Mapping[str, int] = field(default_factory=dict)
    global_position: Mapping[str, int] = field(default_factory=dict)
    type_lag_records: Mapping[str, int] = field(default_factory=dict)
    watermark: Mapping[str, float] = field(default_factory=dict)
    """In seconds since 1970."""
