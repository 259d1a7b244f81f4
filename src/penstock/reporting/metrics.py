"""Metrics as values, and how they change with the events of a job. A kind of table declares its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from penstock.events import Event

SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 900.0)


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ("job",)
    values: tuple[str, ...] = ()
    """Of the second label: those that are shown from the start."""
    buckets: tuple[float, ...] = SECONDS
    """Of a histogram."""


@dataclass(frozen=True, slots=True)
class Add:
    """A counter or a gauge changes by an amount; `label` is the second one, after the job."""

    metric: Metric
    amount: float = 1.0
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """A gauge has this value, or a histogram one observation more."""

    metric: Metric
    value: float
    label: str | None = None


@dataclass(frozen=True, slots=True)
class PutAll:
    """A gauge has these values by label, and none under any other."""

    metric: Metric
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove this value of the label from every gauge."""

    label: str
    value: str


Change = Add | Put | PutAll | Forget
Meter = Callable[[Event], Iterable[Change]]
"""Returns what an event changes; it may remember earlier events of its job."""
