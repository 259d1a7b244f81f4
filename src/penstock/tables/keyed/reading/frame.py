"""A keyed table as Spark's data frame: the columns of its records, and of a lookup by key only the files it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from operator import and_, or_
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark.delta_spark import delta_frame
from penstock.tables.keyed.layout import BUCKET, HIDDEN, Layout
from penstock.tables.keyed.reading.lookup import Buckets, buckets_with, wanted_values

APART_MAX = 100
"""Values of a column that are compared one by one."""


def keyed_frame(spark: SparkSession, path: str, layout: Layout, keys: Mapping[str, object]) -> DataFrame:
    """The rows with these values of key columns, or all. The layout must be the table's own."""
    rows = delta_frame(spark, path)
    if keys:
        kinds = to_arrow_schema(rows.select([each for each in rows.columns if each not in HIDDEN]).schema)
        values = wanted_values(layout, kinds, keys)
        conditions = [_among(F.col(f"`{name}`"), each) for name, each in values.items()]
        buckets = buckets_with(layout, kinds, values)
        if buckets is not None:
            conditions.append(_in_buckets(buckets))
        rows = rows.where(reduce(and_, conditions))
    return rows.drop(*HIDDEN)


def _in_buckets(buckets: Buckets) -> Column:
    number = F.col(BUCKET)
    return (number if buckets.modulo is None else number % buckets.modulo).isin(list(buckets.numbers))


def _among(column: Column, values: Sequence[Any]) -> Column:
    known = [_literal(each) for each in values if each is not None]
    # Of a list Delta knows only the least and the greatest value when it skips files.
    each_apart = 0 < len(known) <= APART_MAX
    found = reduce(or_, (column == each for each in known)) if each_apart else column.isin(known)
    return found | column.isNull() if len(known) < len(values) else found


def _literal(value: Any) -> Any:
    """The value as Spark compares it: PySpark itself takes days and times through Java's calendar of 1582."""
    if isinstance(value, datetime):
        return F.timestamp_micros(F.lit((value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)))
    return F.lit(value.isoformat()).cast("date") if isinstance(value, date) else value
