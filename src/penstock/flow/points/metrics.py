"""Metrics between a format and their points: one by one on the exact path, in columns on the fast one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import add, sub
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import astuple

from penstock.flow.decode.misfit import MisfitError
from penstock.flow.points.names import name_part
from penstock.flow.spans import Integers
from penstock.job.spec import MetricNames, PointTimes

FIELDS_MAX = 10_000
"""Of one metric."""


class PointCounts(msgspec.Struct, frozen=True):
    """Fields of the records that are not bad: those that are points, and those left out, by reason."""

    points: int = 0
    blacklisted: int = 0
    non_numeric: int = 0
    non_finite: int = 0

    def __add__(self, other: PointCounts) -> PointCounts:
        return PointCounts(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: PointCounts) -> PointCounts:
        return PointCounts(*map(sub, astuple(self), astuple(other)))


class OtherValue(NamedTuple):
    """A field that is no number: a text, or a value of some other kind."""

    kind: str
    text: str | None


class Metric(NamedTuple):
    """One measurement as it was written, with the name and tags as they are stored."""

    name: str
    tags: str
    fields: list[tuple[str, float | OtherValue]]
    """By key as it was written; no key twice."""
    at_ms: int
    place: str = ""
    """Where in the record it stands, for one that may hold several."""


class Label(NamedTuple):
    """The name and the tags of a metric as they are stored."""

    name: str
    tags: str


@dataclass(frozen=True, slots=True)
class MetricColumns:
    """Metrics that a strict pattern covers; their fields stand one after the other."""

    rows: Integers
    """The record of each metric."""
    labels: pa.Array
    """The text that holds name and tags of each."""
    at_ms: Integers
    field_counts: Integers
    keys: pa.Array
    values: npt.NDArray[np.float64]
    """Of fields that are no numbers it means nothing."""
    numeric: npt.NDArray[np.bool_]
    """Which fields are numbers."""


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """What formats have in common: one style of names, one unit of time, and how keys of fields are stored."""

    names: MetricNames
    unit: PointTimes

    def key(self, text: str) -> str | None:
        try:
            return name_part(text, self.names)
        except MisfitError:
            return None


class Format(Protocol):
    """How metrics are written. Both paths give the same: what the fast one does not cover, the exact one reads."""

    def columns(self, values: pa.Array) -> tuple[MetricColumns, npt.NDArray[np.bool_]]:
        """The metrics of records (binaries) that the fast path covers, and which records it does not."""

    def label(self, text: str) -> Label | None:
        """What the text of a label says; None if only the exact path can tell."""

    def key(self, text: str) -> str | None:
        """The part of the metric's name that the text of a key gives; None if only the exact path can tell."""

    def metrics(self, record: bytes, written_at_ms: int | None) -> Iterator[Metric]:
        """All metrics of a record, exactly. Raises `MisfitError`."""
