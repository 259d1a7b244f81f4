"""What OpenTSDB reads: an array of four aggregates per window, byte for byte as its plugin expects it."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.publish.formats import opentsdb_records
from tests.unit.publish.any_rows import EPOCH, ROW, ROWS, cut, table_of


def aggregate(row: dict[str, Any], name: str, value: float) -> dict[str, Any]:
    return {
        "type": "Aggregate",
        "timestamp": (row["window_start"] - EPOCH).days * 86_400 + (row["window_start"] - EPOCH).seconds,
        "metric": row["metric"],
        "tags": row["tags"],
        "interval": row["interval"],
        "aggregator": name,
        "value": value if math.isfinite(value) else None,
    }


def test_a_window_is_four_aggregates_in_their_order() -> None:
    [record] = opentsdb_records(table_of([ROW]))
    head = (
        b'{"type":"Aggregate","timestamp":1700000400,"metric":"cpuload.usage.user",'
        b'"tags":{"dc":"abc","host":"host01"},"interval":"10m","aggregator":'
    )
    assert record.key == b'cpuload.usage.user{"dc":"abc","host":"host01"}'
    assert record.value == (
        b"["
        + (head + b'"MIN","value":0.5},')
        + (head + b'"MAX","value":9.5},')
        + (head + b'"SUM","value":50.0},')
        + (head + b'"COUNT","value":10}]')
    )


def test_a_number_that_json_cannot_hold_is_null() -> None:
    row = {**ROW, "min": math.inf, "max": -math.inf, "sum": math.nan, "tags": {}}
    [record] = opentsdb_records(table_of([row]))
    assert [load["value"] for load in json.loads(record.value)] == [None, None, None, 10]
    assert b'"tags":{},' in record.value


def test_no_rows_give_no_records() -> None:
    assert opentsdb_records(table_of([])) == []


@given(ROWS, st.integers(0, 8))
def test_every_row_can_be_read_back(rows: list[dict[str, Any]], at: int) -> None:
    records = opentsdb_records(cut(rows, min(at, len(rows))))
    assert [record.key.decode() for record in records] == [row["series"] for row in rows]
    for record, row in zip(records, rows, strict=True):
        read = json.loads(record.value)
        expected = [aggregate(row, name, row[name.lower()]) for name in ("MIN", "MAX", "SUM", "COUNT")]
        assert read == expected
        assert [list(item) for item in read] == [list(item) for item in expected]
        assert [type(item["value"]) for item in read] == [type(item["value"]) for item in expected]
