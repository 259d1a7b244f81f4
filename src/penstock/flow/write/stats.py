"""Delta statistics of a file, taken from the footer that the Parquet writer has made anyway.

A bound that is not certain is left out: readers skip files by these numbers, and a wrong one loses rows. No other
bound is left out: deltalake's Arrow data set skips a file whose bound is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.flow.columns.fitting import column_at
from penstock.flow.columns.kafka_fields import MICROS_OF_DAY, MICROS_OF_YEAR_1, MICROS_OF_YEAR_10000

INDEXED_COLUMNS_MAX = 32
STRING_POINTS_MAX = 32
FOOTER_TEXT_BYTES_MAX = 4096
"""Parquet's writer gives no bounds of a longer text."""
_SCHEMAS_KEPT_MAX = 512
_LAST_CODE_POINT = "\U0010ffff"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Path = tuple[str, ...]
Bound = int | float | str | Decimal


@dataclass(frozen=True, slots=True)
class LeafColumn:
    """A column outside lists and maps: `number` is its place in the Parquet file."""

    path: Path
    number: int
    kind: pa.DataType


class FileStats:
    """The statistics of one file while it is written; its rows have the schema."""

    def __init__(self, schema: pa.Schema, indexed_columns_max: int = INDEXED_COLUMNS_MAX) -> None:
        self._leaves = _indexed_leaves(schema, indexed_columns_max)
        self._with_nan: set[Path] = set()
        """Float leaves that hold a NaN: the footer does not show, and Spark sorts NaN above all."""
        self._long_texts: dict[Path, tuple[str, str]] = {}
        """The least and the greatest text of leaves that hold one too long for the footer."""

    def note(self, rows: pa.Table) -> None:
        """Note what the footer will not show of these rows."""
        for leaf in self._leaves:
            if pa.types.is_floating(leaf.kind) and pc.any(pc.is_nan(column_at(rows, leaf.path))).as_py():
                self._with_nan.add(leaf.path)
            elif pa.types.is_string(leaf.kind):
                self._note_long_texts(leaf.path, column_at(rows, leaf.path))

    def _note_long_texts(self, path: Path, texts: pa.ChunkedArray) -> None:
        if (pc.max(pc.binary_length(texts)).as_py() or 0) > FOOTER_TEXT_BYTES_MAX:
            ends = pc.min_max(texts).as_py()
            previous = self._long_texts.get(path, ())
            self._long_texts[path] = min([ends["min"], *previous]), max([ends["max"], *previous])

    def as_json(self, footer: pq.FileMetaData) -> str:
        """The text of the file's add action."""
        minimums: dict[str, Any] = {}
        maximums: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        for leaf in self._leaves:
            columns = [group.column(leaf.number).statistics for group in groups if group.num_rows]
            if any(column is None or not column.has_null_count for column in columns):
                continue
            _place(nulls, leaf.path, sum(item.null_count for item in columns))
            low, high = _bounds(leaf, columns, self._long_texts.get(leaf.path))
            if low is not None:
                _place(minimums, leaf.path, low)
            if high is not None and leaf.path not in self._with_nan:
                _place(maximums, leaf.path, high)
        return _json({"numRecords": footer.num_rows, "minValues": minimums, "maxValues": maximums, "nullCount": nulls})


@lru_cache(maxsize=_SCHEMAS_KEPT_MAX)
def _indexed_leaves(schema: pa.Schema, indexed_columns_max: int) -> tuple[LeafColumn, ...]:
    """The first leaves of a file's schema, as many as get statistics; a list or a map counts as one and gets none."""
    result: list[LeafColumn] = []
    number = 0
    for path, kind in islice(_columns(schema, ()), indexed_columns_max):
        if not pa.types.is_nested(kind):
            result.append(LeafColumn(path, number, kind))
        number += _leaf_count(kind)
    return tuple(result)


def _columns(fields: Iterable[pa.Field], above: Path) -> Iterator[tuple[Path, pa.DataType]]:
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _columns(field.type, (*above, field.name))
        else:
            yield (*above, field.name), field.type


def _leaf_count(kind: pa.DataType) -> int:
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaf_count(kind.field(index).type) for index in range(kind.num_fields))


def _bounds(
    leaf: LeafColumn, columns: list[Any], long_texts: tuple[str, str] | None
) -> tuple[Bound | None, Bound | None]:
    """The least and the greatest value as Delta's JSON has them; `None` for one that JSON cannot hold."""
    text = _spelling(leaf.kind)
    with_values = [column for column in columns if column.num_values]
    bounded = [value for value in with_values if value.has_min_max]
    # Row groups without bounds hold the long texts, of which the bounds are known.
    if text is None or not with_values or (len(bounded) < len(with_values) and long_texts is None):
        return None, None
    # Times as numbers: Python's dates end at year 9999, Parquet's do not.
    ends_of = attrgetter("min_raw", "max_raw") if pa.types.is_temporal(leaf.kind) else attrgetter("min", "max")
    try:
        ends = [*map(ends_of, bounded), *([] if long_texts is None else [long_texts])]
    except UnicodeDecodeError:
        return None, None
    lows, highs = zip(*ends, strict=True)
    return text(min(lows), False), text(max(highs), True)


def _spelling(kind: pa.DataType) -> Callable[[Any, bool], Bound | None] | None:
    """How a bound of this type is written, given whether it is the upper one; `None` for types without bounds."""
    if pa.types.is_signed_integer(kind) or pa.types.is_decimal(kind):
        return lambda value, upper: value
    if pa.types.is_floating(kind):
        return lambda value, upper: value if math.isfinite(value) else None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _string_bound
    if pa.types.is_date32(kind):
        return _date_bound
    if pa.types.is_timestamp(kind):
        # The writer stores microseconds, whatever unit the rows had.
        zone = "Z" if kind.tz is not None else ""
        return lambda value, upper: _timestamp_bound(value, upper, zone)
    return None


def _string_bound(value: str, upper: bool) -> str:
    if len(value) <= STRING_POINTS_MAX:
        return value
    if not upper:
        return value[:STRING_POINTS_MAX]
    # Greater than every string with this beginning, unless the cut falls just before the last code point itself.
    tail = value[STRING_POINTS_MAX:].lstrip(_LAST_CODE_POINT)
    return value[: len(value) - len(tail)] + _LAST_CODE_POINT if tail else value


def _date_bound(value: int, upper: bool) -> str | None:
    if not MICROS_OF_YEAR_1 <= value * MICROS_OF_DAY < MICROS_OF_YEAR_10000:
        return None
    return (_EPOCH + timedelta(days=value)).date().isoformat()


def _timestamp_bound(value: int, upper: bool, zone: str) -> str | None:
    if not MICROS_OF_YEAR_1 <= value < MICROS_OF_YEAR_10000:
        return None
    rounded = 1_000 * (-(-value // 1_000) if upper else value // 1_000)
    # After the last millisecond of year 9999 there is none to round to.
    exact = rounded == MICROS_OF_YEAR_10000
    instant = _EPOCH + timedelta(microseconds=value if exact else rounded)
    return instant.replace(tzinfo=None).isoformat(timespec="microseconds" if exact else "milliseconds") + zone


def _place(tree: dict[str, Any], path: Path, value: Bound) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _json(value: Any) -> str:
    """JSON with decimals as exact numbers, which the standard encoder would round or quote.

    Text stays UTF-8: Polars and DataFusion misread the escapes of characters beyond the first plane.
    """
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(name)}:{_json(item)}" for name, item in value.items()) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
