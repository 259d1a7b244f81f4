"""A keyed table as a Spark data frame, without hidden columns; a lookup by key reads only the files it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from itertools import product
from math import prod
from operator import and_, or_
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.errors import UserError, did_you_mean
from penstock.spark.delta_spark import delta_frame
from penstock.tables.keyed.layout import BUCKET, HIDDEN, Layout, buckets_of, key_frame

KEYS_MAX = 10_000
"""Combinations of values for which buckets are computed."""
COMPARED_MAX = 100
"""Up to this many values of a column become a comparison each."""

ColumnValues = Mapping[str, Sequence[Any]]
"""By column, the requested values in the type of the table."""


def keyed_frame(spark: SparkSession, path: str, layout: Layout, keys: Mapping[str, object]) -> DataFrame:
    """The rows with these values of key columns, or all. The layout must be the table's own."""
    rows = delta_frame(spark, path)
    if keys:
        kinds = to_arrow_schema(rows.select([name for name in rows.columns if name not in HIDDEN]).schema)
        values = requested_values(layout, kinds, keys)
        conditions = [_among(F.col(f"`{name}`"), requested) for name, requested in values.items()]
        buckets = buckets_with(layout, kinds, values)
        if buckets is not None:
            conditions.append(F.col(BUCKET).isin(buckets))
        rows = rows.where(reduce(and_, conditions))
    return rows.drop(*HIDDEN)


def requested_values(layout: Layout, kinds: pa.Schema, keys: Mapping[str, object]) -> dict[str, list[Any]]:
    """The requested values of each key column. Raises `UserError` for other columns or types."""
    columns = list(layout.keys)
    values = {}
    for name, requested in keys.items():
        if name not in columns:
            raise UserError(
                f"{name} is not a column of the key",
                detail=f"the key: {', '.join(columns)}",
                hint=did_you_mean(name, columns) or "filter the data frame by other columns with where",
            )
        is_list = isinstance(requested, Iterable) and not isinstance(requested, str | bytes)
        items = cast("Iterable[object]", requested) if is_list else [requested]
        values[name] = [_typed(name, value, kinds.field(name).type) for value in items]
    return values


def buckets_with(layout: Layout, kinds: pa.Schema, values: ColumnValues) -> list[int] | None:
    """The buckets that may have rows with these values; None: the values do not determine the bucket."""
    if layout.partition_keys:
        layout = replace(layout, row_keys=())
    if any(name not in values for name in layout.keys) or prod(len(values[name]) for name in layout.keys) > KEYS_MAX:
        return None
    rows = list(product(*(values[name] for name in layout.keys)))
    columns = {name: pa.array([row[at] for row in rows], kinds.field(name).type) for at, name in enumerate(layout.keys)}
    keys = key_frame(layout, pa.table(columns)).drop_nulls()
    return sorted(set(buckets_of(layout, keys).to_list()))


def _typed(name: str, value: object, kind: pa.DataType) -> Any:
    """The value in the type of the column; a time without a zone is in UTC, as everywhere."""
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    if isinstance(value, bool) and not pa.types.is_boolean(kind):
        raise UserError(f"{value!r} is not a value of {name}, which is {kind}")
    try:
        scalar = pa.scalar(value)
        return (scalar if scalar.type.equals(kind) else scalar.cast(kind)).as_py()
    except pa.ArrowException as error:
        raise UserError(f"{value!r} is not a value of {name}, which is {kind}", detail=str(error)) from error


def _among(column: Column, values: Sequence[Any]) -> Column:
    literals = [_literal(value) for value in values if value is not None]
    # For a list Delta skips files by its minimum and maximum only.
    one_by_one = 0 < len(literals) <= COMPARED_MAX
    among = reduce(or_, (column == value for value in literals)) if one_by_one else column.isin(literals)
    return among | column.isNull() if len(literals) < len(values) else among


def _literal(value: Any) -> Any:
    """The value as a Spark literal: PySpark itself converts dates and times by Java's calendar of 1582."""
    if isinstance(value, datetime):
        return F.timestamp_micros(F.lit((value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)))
    return F.lit(value.isoformat()).cast("date") if isinstance(value, date) else value
