"""The columns of partials and of closed windows."""

from __future__ import annotations

import pyarrow as pa

from penstock.tables.rollup.spec import Aggregates

INSTANT = pa.timestamp("us", tz="UTC")
TAGS = pa.map_(pa.string(), pa.string())
SORTED_BY = ("bucket", "metric", "tags", "window_start")
"""The order of rows in a file of partials: a range of buckets is a range of row groups."""
PARTIALS_GROUP_ROWS_MAX = 16_384
"""A close reads the row groups of its buckets: with larger groups its tasks read much of a file several times."""
WINDOWS_GROUP_ROWS_MAX = 131_072
"""Small, so that a reader of one metric reads little."""
EPOCH = "epoch"
"""A partition column that the commit fills in: the number of closes begun before it (RULES W2)."""
POINTS_SCHEMA = pa.schema([("window_start", INSTANT), ("count", pa.int64())])
"""The columns that give the number of points by time."""

_SERIES = (
    pa.field("metric", pa.string()),
    pa.field("tags", pa.string()),
    pa.field("bucket", pa.int16()),
    pa.field("window_start", INSTANT),
)
_VALUES = (
    pa.field("count", pa.int64()),
    pa.field("sum", pa.float64()),
    pa.field("min", pa.float64()),
    pa.field("max", pa.float64()),
)
_ENDS = (
    pa.field("first_ms", pa.int64()),
    pa.field("first", pa.float64()),
    pa.field("last_ms", pa.int64()),
    pa.field("last", pa.float64()),
)


def partials_schema(aggregates: Aggregates) -> pa.Schema:
    """The columns of the table of partials, with partition columns."""
    return written_schema(aggregates).append(pa.field(EPOCH, pa.int64()))


def written_schema(aggregates: Aggregates) -> pa.Schema:
    """The columns of partials that tasks write: all but the one that the commit fills in."""
    return read_schema(aggregates).append(pa.field("day", pa.date32()))


def read_schema(aggregates: Aggregates) -> pa.Schema:
    """The columns in a file of partials, without partition columns."""
    return pa.schema([*_SERIES, *_VALUES, *(_ENDS if aggregates.ends else ())])


def windows_schema(aggregates: Aggregates) -> pa.Schema:
    """The columns of the table of closed windows, with partition columns."""
    computed = (*(("first", "last") if aggregates.ends else ()), *(("mean",) if aggregates.mean else ()))
    return pa.schema(
        [
            pa.field("series", pa.string()),
            pa.field("metric", pa.string()),
            pa.field("tags", TAGS),
            pa.field("interval", pa.string()),
            pa.field("window_start", INSTANT),
            pa.field("window_end", INSTANT),
            *_VALUES,
            *(pa.field(name, pa.float64()) for name in computed),
            pa.field("revision", pa.int32()),
            pa.field("close", pa.int64()),
            pa.field("bucket", pa.int16()),
            pa.field("day", pa.date32()),
        ]
    )
