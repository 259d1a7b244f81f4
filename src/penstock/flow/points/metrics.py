"""Formats of metrics: the fast path splits the lines of a whole batch, the exact path parses one record at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import add, sub
from typing import ClassVar, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import astuple

from penstock.flow.decode.misfit import MisfitError
from penstock.flow.points.names import name_part
from penstock.flow.spans import BufferSpans, Integers, Mask
from penstock.job.spec import NameStyle, PointTimes

FIELDS_MAX = 10_000
"""Fields of one metric."""
TEXTS_KEPT_MAX = 200_000
"""Labels and keys in the cache; a full cache is emptied."""
TEXT_CHARACTERS_KEPT_MAX = 512

MeaningT = TypeVar("MeaningT")


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


class SeriesLabel(NamedTuple):
    """The name and the tags of a metric as they are stored."""

    name: str
    tags: str


class MetricPoint(NamedTuple):
    """One measurement as it was written, with the label as it is stored."""

    label: SeriesLabel
    fields: list[tuple[str, float | None]]
    """By key as it was written; None: not a number."""
    at_ms: int
    place: str = ""
    """Its path in the record, if a record may have several."""


class Fields(NamedTuple):
    """The fields of metrics, one metric after the other."""

    counts: Integers
    """The number of fields of each metric."""
    keys: pa.Array
    values: npt.NDArray[np.float64]
    """Undefined for fields that are not numbers."""
    numeric: Mask
    """Which fields are numbers."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of records, each with one metric, split where fields and time seem to be."""

    rows: Integers
    """The record of each line."""
    labels: tuple[BufferSpans, ...]
    """The parts of the text that holds name and tags."""
    fields: BufferSpans
    times: BufferSpans

    def where(self, kept: Mask) -> Lines:
        labels = tuple(part.where(kept) for part in self.labels)
        return Lines(self.rows[kept], labels, self.fields.where(kept), self.times.where(kept))


class BoundedCache(dict[str, MeaningT | None]):
    """A bounded cache of parsed texts; None for those that only the exact path can read."""

    def __init__(self, read: Callable[[str], MeaningT | None]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, text: str) -> MeaningT | None:
        meaning = self._read(text)
        if len(self) >= TEXTS_KEPT_MAX:
            self.clear()
        if len(text) <= TEXT_CHARACTERS_KEPT_MAX:
            self[text] = meaning
        return meaning


class Format(ABC):
    """The syntax of metrics. Both paths give the same result: the exact path reads what the fast one does not cover.

    Kept as long as the process runs, so that tasks do not parse the same texts again.
    """

    fields_pattern: ClassVar[str]
    """Matches the texts that `fields` can split."""

    def __init__(self, names: NameStyle, unit: PointTimes) -> None:
        self.names: NameStyle = names
        self.unit: PointTimes = unit
        self.labels = BoundedCache(self.label)
        self.keys = BoundedCache(self.key)

    @abstractmethod
    def lines(self, values: pa.Array) -> tuple[Lines, Integers]:
        """The lines of records (binaries) that can be split, and the number of lines of each record; 0: not covered."""

    @abstractmethod
    def fields(self, texts: pa.Array) -> Fields:
        """The fields in texts that match the pattern."""

    @abstractmethod
    def label(self, text: str) -> SeriesLabel | None:
        """The parsed label; None if only the exact path can read it."""

    @abstractmethod
    def metrics(self, record: bytes, written_at_ms: int | None) -> Iterator[MetricPoint]:
        """All metrics of a record, exactly. Raises `MisfitError`."""

    def key(self, text: str) -> str | None:
        """The part of the metric's name that a key gives; None if only the exact path can read it."""
        try:
            return name_part(text, self.names)
        except MisfitError:
            return None
