"""The fast path: the points of lines that strict patterns match. Each distinct text is read once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.points.metrics import FIELDS_MAX, BoundedCache, Format, Lines, MeaningT, PointCounts, SeriesLabel
from penstock.flow.points.series import BLACKLISTED, PAIR_BITS, SeriesBook
from penstock.flow.points.spans import matches
from penstock.flow.points.times import whole_ms
from penstock.flow.spans import Integers, Mask

HOLE = "\0"
"""Separates the parts of a label; it occurs neither in JSON nor in line protocol without escapes."""
_TIME_PATTERN = r"^(?:0|[1-9][0-9]{0,17}|[1-8][0-9]{18})$"
_DENSE_MAX = 8 * 1024 * 1024
"""Up to this many possible codes are deduplicated by a lookup table, more by sorting."""
_NOT_COVERED = -1


class FastPoints(NamedTuple):
    """Points with the numbers of their records, and the records that only the exact path can read."""

    rows: Integers
    series: Integers
    at_ms: Integers
    values: npt.NDArray[np.float64]
    refused: Mask
    empty: int
    """Records that are not rejected and have no points."""
    counts: PointCounts


def points_of(texts: Format, values: pa.Array, book: SeriesBook) -> FastPoints:
    """The points of all records that are not rejected."""
    lines, lines_counts = texts.lines(values)
    lines, fields_texts, times = _matching(lines, texts)
    at_ms, held = whole_ms(times.cast(pa.int64()).to_numpy(), texts.unit)
    refused = (np.bincount(lines.rows[held], minlength=len(values)) < lines_counts) | (lines_counts == 0)
    fields = texts.fields(fields_texts)
    label_codes, labels = _encoded(_joined(lines), texts.labels)
    key_codes, key_parts = _encoded(fields.keys, texts.keys)
    parts, part_codes = _numbered(key_parts)
    owners, field_codes = np.repeat(np.arange(len(lines.rows)), fields.counts), part_codes[key_codes]
    uncovered = (field_codes == _NOT_COVERED) | ~np.isfinite(fields.values)
    unfit = np.array([label is None for label in labels], np.bool_)[label_codes]
    unfit |= _with_uncovered_fields(fields.counts, owners, uncovered)
    unfit |= _with_doubled_fields(owners, field_codes, len(lines.rows))
    refused[lines.rows[unfit]] = True
    numbers = fields.values
    chosen = ~refused[lines.rows][owners]
    non_numeric = int(np.count_nonzero(chosen & ~fields.numeric))
    chosen &= fields.numeric
    if not chosen.all():
        owners, field_codes, numbers = owners[chosen], field_codes[chosen], numbers[chosen]
    series = _series(label_codes[owners], labels, field_codes, parts, book)
    kept = series != BLACKLISTED
    blacklisted = len(kept) - int(np.count_nonzero(kept))
    if blacklisted:
        owners, series, numbers = owners[kept], series[kept], numbers[kept]
    rows = lines.rows[owners]
    counts = PointCounts(points=len(rows), blacklisted=blacklisted, non_numeric=non_numeric)
    return FastPoints(rows, series, at_ms[owners], numbers, refused, _empty_count(refused, rows), counts)


def _matching(lines: Lines, texts: Format) -> tuple[Lines, pa.Array, pa.Array]:
    """The lines whose fields and time match, with both."""
    fields, times = lines.fields.texts(), lines.times.texts()
    fits = matches(fields, texts.fields_pattern) & matches(times, _TIME_PATTERN)
    if fits.all():
        return lines, fields, times
    kept = pa.array(fits)
    return lines.where(fits), fields.filter(kept), times.filter(kept)


def _joined(lines: Lines) -> pa.Array:
    """The texts of the labels, with `HOLE` between their parts."""
    parts = [part.texts() for part in lines.labels]
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, HOLE)


def _with_uncovered_fields(counts: Integers, owners: Integers, uncovered: Mask) -> Mask:
    """Metrics with a field that is not covered, or with too many fields."""
    result = counts > FIELDS_MAX
    result[owners[uncovered]] = True
    return result


def _with_doubled_fields(owners: Integers, fields: Integers, metrics_count: int) -> Mask:
    """Metrics with two fields of the same name."""
    names_count = int(fields.max(initial=0)) + 2
    codes = owners * names_count + fields + 1
    distinct, places = _distinct(codes, metrics_count * names_count)
    result = np.zeros(metrics_count, np.bool_)
    if len(distinct) < len(codes):
        result[owners[np.bincount(places)[places] > 1]] = True
    return result


def _empty_count(refused: Mask, rows: Integers) -> int:
    """The number of records that are not rejected and have no points."""
    done = refused.copy()
    done[rows] = True
    return len(done) - int(np.count_nonzero(done))


def _series(
    label_codes: Integers, labels: list[SeriesLabel | None], fields: Integers, parts: list[str], book: SeriesBook
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


def _encoded(texts: pa.Array, meanings: BoundedCache[MeaningT]) -> tuple[Integers, list[MeaningT | None]]:
    """Texts encoded as numbers, and the meaning of each distinct text."""
    encoded = texts.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), [meanings[text] for text in encoded.dictionary.to_pylist()]


def _numbered(texts: list[str | None]) -> tuple[list[str], Integers]:
    """The distinct texts, and for each text its index among them."""
    numbers: dict[str, int] = {}
    codes = [_NOT_COVERED if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
    return list(numbers), np.array(codes, np.int64)


def _distinct(codes: Integers, bound: int) -> tuple[Integers, Integers]:
    """The distinct codes, all below `bound`, and the index of each code among them."""
    if bound > _DENSE_MAX:
        return np.unique(codes, return_inverse=True)
    present = np.zeros(bound, np.bool_)
    present[codes] = True
    distinct = np.flatnonzero(present).astype(np.int64, copy=False)
    places = np.empty(bound, np.int64)
    places[distinct] = np.arange(len(distinct))
    return distinct, places[codes]
