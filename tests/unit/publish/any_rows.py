"""Closed windows as a table publishes them, with hostile names and numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

INSTANT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("series", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("tags", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("interval", pa.string(), nullable=False),
        pa.field("window_start", INSTANT, nullable=False),
        pa.field("window_end", INSTANT, nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("sum", pa.float64(), nullable=False),
        pa.field("min", pa.float64(), nullable=False),
        pa.field("max", pa.float64(), nullable=False),
        pa.field("mean", pa.float64()),
        pa.field("revision", pa.int32(), nullable=False),
        pa.field("close", pa.int64(), nullable=False),
        pa.field("bucket", pa.int16(), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
    ]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2023, 11, 14, 22, 20, tzinfo=UTC)
ROW: dict[str, Any] = {
    "series": 'cpuload.usage.user{"dc":"abc","host":"host01"}',
    "metric": "cpuload.usage.user",
    "tags": {"dc": "abc", "host": "host01"},
    "interval": "10m",
    "window_start": START,
    "window_end": START + timedelta(minutes=10),
    "count": 10,
    "sum": 50.0,
    "min": 0.5,
    "max": 9.5,
    "mean": None,
    "revision": 0,
    "close": 7,
    "bucket": 200,
    "day": START.date(),
}

ODD_TEXTS = st.sampled_from(
    ['"', "\\", '\\"', "a\nb", "\x00", "\x1f", "\x7f", "\u2028", "ü", "\U0001f600", "{}", "null"]
)
TEXTS = st.text(max_size=12) | ODD_TEXTS
NUMBERS = st.floats() | st.sampled_from([0.0, -0.0, 1e300, 5e-324, 1e16, 123456789012345680.0, 2.0**53, 0.1])
INSTANTS = st.integers(0, 4_000_000_000_000_000).map(lambda micros: EPOCH + timedelta(microseconds=micros))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "series": TEXTS,
            "metric": TEXTS,
            "tags": st.dictionaries(TEXTS, TEXTS, max_size=3),
            "interval": st.sampled_from(["1m", "10m", "24h"]) | TEXTS,
            "window_start": INSTANTS,
            "window_end": INSTANTS,
            "count": st.integers(0, 2**63 - 1),
            "sum": NUMBERS,
            "min": NUMBERS,
            "max": NUMBERS,
            "mean": st.none() | NUMBERS,
            "revision": st.integers(0, 2**31 - 1),
            "close": st.integers(0, 2**63 - 1),
            "bucket": st.integers(0, 255),
            "day": st.dates(),
        }
    ),
    max_size=8,
)


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    as_pairs = [{**row, "tags": list(row["tags"].items())} for row in rows]
    return pa.Table.from_pylist(as_pairs, SCHEMA)


def cut(rows: list[dict[str, Any]], at: int) -> pa.Table:
    """The same rows in two chunks, both of them slices of something longer."""
    longer = table_of([ROW, *rows, ROW])
    return pa.concat_tables([longer.slice(1, at), longer.slice(1 + at, len(rows) - at)])
