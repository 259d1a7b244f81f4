"""The fast path: the points of columns of metrics. Each distinct text is read once, everything else is arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.flow.points.metrics import FIELDS_MAX, Label, MetricColumns, PointCounts
from penstock.flow.points.series import BLACKLISTED, PAIR_BITS, SeriesBook
from penstock.flow.spans import Integers, Mask

TEXTS_KEPT_MAX = 200_000
"""Of the labels and keys whose meaning is remembered; then all are forgotten."""
TEXT_CHARACTERS_KEPT_MAX = 512
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
    """Points, each with the number of its record, and the records that only the exact path can read."""

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
    odd = (fields == _NOT_COVERED) | ~np.isfinite(columns.values) | (not skip_others and ~columns.numeric)
    unfit = np.array([label is None for label in labels], np.bool_)[label_codes]
    unfit |= _with_odd_fields(columns.field_counts, owners, odd)
    unfit |= _with_doubled_fields(owners, fields, len(columns.rows))
    refused = refused.copy()
    refused[columns.rows[unfit]] = True
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
    counts = PointCounts(points=len(rows), blacklisted=blacklisted, non_numeric=non_numeric)
    return FastPoints(rows, series, columns.at_ms[owners], values, refused, _empty_count(refused, rows), counts)


def _with_odd_fields(counts: Integers, owners: Integers, odd: Mask) -> Mask:
    """Metrics with an odd field, or too many of them."""
    found = counts > FIELDS_MAX
    found[owners[odd]] = True
    return found


def _with_doubled_fields(owners: Integers, fields: Integers, metrics_count: int) -> Mask:
    """Metrics of which two fields have one name."""
    names_count = int(fields.max(initial=0)) + 2
    codes = owners * names_count + fields + 1
    distinct, places = _distinct(codes, metrics_count * names_count)
    found = np.zeros(metrics_count, np.bool_)
    if len(distinct) < len(codes):
        found[owners[np.bincount(places)[places] > 1]] = True
    return found


def _empty_count(refused: Mask, rows: Integers) -> int:
    """How many records are not refused and have no point."""
    settled = refused.copy()
    settled[rows] = True
    return len(settled) - int(np.count_nonzero(settled))


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
