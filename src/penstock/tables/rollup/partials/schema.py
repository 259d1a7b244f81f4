"""The columns of partials, and the names of the numbers that the table keeps of a job."""

from __future__ import annotations

import pyarrow as pa

from penstock.tables.rollup.spec import Aggregates

INSTANT = pa.timestamp("us", tz="UTC")
SERIES_COLUMNS = ("metric", "tags")
SORTED_BY = ("bucket", *SERIES_COLUMNS, "window_start")
"""The order of rows in a file, so that a range of buckets is a range of row groups."""
ROW_GROUP_ROWS_MAX = 16_384
"""A close reads the row groups of its buckets: with larger ones its tasks read much of a file several times."""
EPOCH = "epoch"
"""A partition column that the commit fills in: the number of closes begun before it (RULES W2)."""

POINTS_SCHEMA = pa.schema([("window_start", INSTANT), ("count", pa.int64())])
"""What tells how many points of which time there are."""

_ENDS = (
    pa.field("first_ms", pa.int64()),
    pa.field("first", pa.float64()),
    pa.field("last_ms", pa.int64()),
    pa.field("last", pa.float64()),
)


def partials_schema(aggregates: Aggregates) -> pa.Schema:
    """Of the table, partition columns included."""
    return pa.schema([*written_schema(aggregates), pa.field(EPOCH, pa.int64())])


def written_schema(aggregates: Aggregates) -> pa.Schema:
    """Of the rows that tasks write: all columns but the one that the commit fills in."""
    return pa.schema(
        [
            pa.field("metric", pa.string()),
            pa.field("tags", pa.string()),
            pa.field("bucket", pa.int16()),
            pa.field("window_start", INSTANT),
            pa.field("count", pa.int64()),
            pa.field("sum", pa.float64()),
            pa.field("min", pa.float64()),
            pa.field("max", pa.float64()),
            *(_ENDS if aggregates.ends else ()),
            *([pa.field("sketch", pa.binary())] if aggregates.quantiles else []),
            pa.field("day", pa.date32()),
        ]
    )


def close_key(job: str) -> str:
    """The number of the last close that was begun (RULES W2)."""
    return f"{job}#close"


def until_key(job: str) -> str:
    """The windows that end at or before this instant are closed by that close, in milliseconds."""
    return f"{job}#until"


def watermark_key(job: str) -> str:
    return f"{job}#watermark"


def portions_key(job: str) -> str:
    """In how many commits the rows of that close land."""
    return f"{job}#portions"


def cleaned_key(job: str) -> str:
    """The windows that end at or before this instant may have lost partials, in milliseconds."""
    return f"{job}#cleaned"


def removed_key(job: str) -> str:
    """The points whose partials were removed."""
    return f"{job}#points_removed"


def finest_key(job: str) -> str:
    """The length of the finest window, which stays as long as the table, in milliseconds."""
    return f"{job}#finest_ms"
