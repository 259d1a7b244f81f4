"""The exact path: the points of one record after the other, and why a record is bad."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.flow.decode.misfit import MisfitError, quoted
from penstock.flow.points.metrics import FIELDS_MAX, Metric, OtherValue, PointCounts
from penstock.flow.points.names import name_part
from penstock.flow.points.series import BLACKLISTED, PAIR_BITS, SeriesBook
from penstock.job.spec import PointsSpec

_NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE | re.ASCII
)


@dataclass(slots=True)
class ExactPoints:
    """Gathers the points of single records: lists of equal length."""

    spec: PointsSpec
    book: SeriesBook
    rows: list[int] = field(default_factory=list)
    series: list[int] = field(default_factory=list)
    at_ms: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    counts: PointCounts = field(default_factory=PointCounts)

    def add(self, row: int, metrics: Iterable[Metric]) -> bool:
        """Take the points of a record, all or none; whether it has any. Raises `MisfitError`."""
        found: list[tuple[str, str, int, float]] = []
        left_out = PointCounts()
        for metric in metrics:
            try:
                left_out += self._read(metric, found)
            except MisfitError as misfit:
                raise (
                    misfit.inside("fields").inside(metric.place) if metric.place else misfit.inside("fields")
                ) from None
        book = self.book
        numbers = book.numbers([book.metric(name) << PAIR_BITS | book.tag_set(tags) for name, tags, _, _ in found])
        count_before = len(self.rows)
        for number, (_, _, at_ms, value) in zip(numbers, found, strict=True):
            if number != BLACKLISTED:
                self.rows.append(row)
                self.series.append(number)
                self.at_ms.append(at_ms)
                self.values.append(value)
        count = len(self.rows) - count_before
        self.counts += left_out + PointCounts(points=count, blacklisted=len(found) - count)
        return count > 0

    def _read(self, metric: Metric, found: list[tuple[str, str, int, float]]) -> PointCounts:
        """The points of one metric, and how many of its fields are left out."""
        if len(metric.fields) > FIELDS_MAX:
            raise MisfitError(f"{len(metric.fields)} fields: a metric has at most {FIELDS_MAX}")
        sources: dict[str, str] = {}
        non_numeric = non_finite = 0
        for key, value in metric.fields:
            part = self._part(key, sources)
            try:
                number = self._number(value)
                if number is None:
                    non_numeric += 1
                elif not self._is_usable(number):
                    non_finite += 1
                else:
                    found.append((f"{metric.name}.{part}", metric.tags, metric.at_ms, number))
            except MisfitError as misfit:
                raise misfit.inside(key) from None
        return PointCounts(non_numeric=non_numeric, non_finite=non_finite)

    def _part(self, key: str, sources: dict[str, str]) -> str:
        part = name_part(key, self.spec.names)
        if part in sources:
            if sources[part] == key:
                raise MisfitError("given twice").inside(key)
            raise MisfitError(f"{quoted(sources[part])} and {quoted(key)} both become {quoted(part)}")
        sources[part] = key
        return part

    def _number(self, value: float | OtherValue) -> float | None:
        """None for what is left out as no number."""
        if isinstance(value, float):
            return value
        match self.spec.non_numeric:
            case "quarantine":
                raise MisfitError(f"expected a number, found {value.kind}")
            case "parse" if value.text is not None and _NUMBER.fullmatch(value.text):
                return float(value.text)
        return None

    def _is_usable(self, number: float) -> bool:
        if math.isfinite(number):
            return True
        if self.spec.non_finite == "quarantine":
            raise MisfitError("is not a finite number")
        return False
