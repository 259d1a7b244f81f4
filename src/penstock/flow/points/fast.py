"""The fast path: the points of columns of metrics. Each distinct text is read once, everything else is arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.flow.points.batch import PointCounts
from penstock.flow.points.metrics import FIELDS_MAX, Label, MetricColumns
from penstock.flow.points.series import BLACKLISTED, PAIR_BITS, SeriesBook
from penstock.flow.points.spans import Integers, Mask

TEXTS_KEPT_MAX = 200_000
"""Of the labels and keys whose meaning is remembered; then all are forgotten."""
TEXT_CHARACTERS_KEPT_MAX = 1024
_DENSE_MAX = 8 * 1024 * 1024
"""Up to so many possible numbers are told apart by a table, more by sorting."""
_NOT_COVERED = -1

MeaningT = TypeVar("MeaningT")


class Remembered(dict[str, MeaningT | None]):
    """What texts mean, within a bound; None for those that only the exact path can tell."""

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


@dataclass(frozen=True, slots=True)
class Meanings:
    """What labels and keys of a format mean; made once per process, so that tasks do not read the same again."""

    labels: Remembered[Label]
    keys: Remembered[str]


class FastPoints(NamedTuple):
    """Points, each with the number of its record, and the records that only the exact path can judge."""

    rows: Integers
    series: Integers
    at_ms: Integers
    values: npt.NDArray[np.float64]
    refused: Mask
    empty: int
    """Records that are not refused and have no point."""
    counts: PointCounts


def no_points(records_count: int) -> FastPoints:
    """The outcome of a fast path that refuses every record."""
    none = np.empty(0, np.int64)
    return FastPoints(none, none, none, none.astype(np.float64), np.ones(records_count, np.bool_), 0, PointCounts())


def points_of(
    columns: MetricColumns, refused: Mask, meanings: Meanings, book: SeriesBook, *, skip_others: bool
) -> FastPoints:
    """The points of all records that are not refused, here or before.

    Without `skip_others` a field that is no number makes its record one for the exact path.
    """
    label_codes, labels = _encoded(columns.labels, meanings.labels)
    key_codes, key_parts = _encoded(columns.keys, meanings.keys)
    parts, part_codes = _numbered(key_parts)
    owners = np.repeat(np.arange(len(columns.rows)), columns.field_counts)
    fields = part_codes[key_codes]
    unread = np.array([label is None for label in labels], np.bool_)[label_codes]
    odd = (fields == _NOT_COVERED) | ~np.isfinite(columns.values)
    if not skip_others:
        odd |= ~columns.numeric
    refused = _unfit(columns, refused, owners, unread, odd, fields, len(parts))
    values = columns.values
    chosen = ~refused[columns.rows][owners]
    non_numeric = int(np.count_nonzero(chosen & ~columns.numeric))
    chosen &= columns.numeric
    if not chosen.all():
        owners, fields, values = owners[chosen], fields[chosen], values[chosen]
    series = _series(label_codes[owners], labels, fields, parts, book)
    wanted = series != BLACKLISTED
    blacklisted = len(wanted) - int(np.count_nonzero(wanted))
    if blacklisted:
        owners, series, values = owners[wanted], series[wanted], values[wanted]
    rows = columns.rows[owners]
    has_points = np.zeros(len(refused), np.bool_)
    has_points[rows] = True
    empty = len(refused) - int(np.count_nonzero(refused | has_points))
    counts = PointCounts(points=len(rows), blacklisted=blacklisted, non_numeric=non_numeric)
    return FastPoints(rows, series, columns.at_ms[owners], values, refused, empty, counts)


def _unfit(
    columns: MetricColumns, refused: Mask, owners: Integers, unread: Mask, odd: Mask, fields: Integers, parts: int
) -> Mask:
    """Also refused: labels that cannot be read, odd fields, too many of them, and two of one name."""
    unfit = unread | (columns.field_counts > FIELDS_MAX)
    if odd.any():
        unfit[owners[odd]] = True
    codes = owners * (parts + 1) + fields + 1
    distinct, places = _distinct(codes, len(unfit) * (parts + 1))
    if len(distinct) < len(codes):
        unfit[owners[np.bincount(places)[places] > 1]] = True
    if unfit.any():
        refused = refused.copy()
        refused[columns.rows[unfit]] = True
    return refused


def _series(
    label_codes: Integers, labels: list[Label | None], fields: Integers, parts: list[str], book: SeriesBook
) -> Integers:
    """The series of each point; every pair of a label and a field is looked up once."""
    pairs, places = _distinct(label_codes * len(parts) + fields, len(labels) * len(parts))
    if not len(pairs):
        return np.empty(0, np.int64)
    pair_labels, pair_fields = pairs // len(parts), pairs % len(parts)
    names, name_codes = _numbered([label and label.name for label in labels])
    tag_sets = np.array([_NOT_COVERED if label is None else book.tag_set(label.tags) for label in labels], np.int64)
    metrics, metric_places = _distinct(name_codes[pair_labels] * len(parts) + pair_fields, len(names) * len(parts))
    numbers = [book.metric(f"{names[code // len(parts)]}.{parts[code % len(parts)]}") for code in metrics.tolist()]
    codes = (np.array(numbers, np.int64)[metric_places] << PAIR_BITS) | tag_sets[pair_labels]
    return np.array(book.numbers(codes.tolist()), np.int64)[places]


def _encoded(texts: pa.Array, meanings: Remembered[MeaningT]) -> tuple[Integers, list[MeaningT | None]]:
    """Texts as numbers of distinct ones, and what each of those means."""
    encoded = texts.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), [meanings[text] for text in encoded.dictionary.to_pylist()]


def _numbered(texts: list[str | None]) -> tuple[list[str], Integers]:
    """The distinct texts, and for each text its number among them."""
    numbers: dict[str, int] = {}
    codes = [_NOT_COVERED if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
    return list(numbers), np.array(codes, np.int64)


def _distinct(codes: Integers, bound: int) -> tuple[Integers, Integers]:
    """The distinct codes, all below `bound`, and the place of each code among them."""
    if bound > _DENSE_MAX:
        return np.unique(codes, return_inverse=True)
    seen = np.zeros(bound, np.bool_)
    seen[codes] = True
    distinct = np.flatnonzero(seen).astype(np.int64, copy=False)
    places = np.empty(bound, np.int64)
    places[distinct] = np.arange(len(distinct))
    return distinct, places[codes]
