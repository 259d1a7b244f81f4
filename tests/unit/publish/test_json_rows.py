"""Rows as flat JSON: every column under its name, and every value as it was."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvariantError
from penstock.publish.formats import json_records
from tests.unit.publish.any_rows import ROW, ROWS, SCHEMA, cut, table_of


def test_a_row_is_one_object() -> None:
    [record] = json_records(table_of([{**ROW, "mean": 4.25}]))
    assert record.key == ROW["series"].encode()
    assert record.value == (
        b'{"series":"cpuload.usage.user{\\"dc\\":\\"abc\\",\\"host\\":\\"host01\\"}","metric":"cpuload.usage.user",'
        b'"tags":{"dc":"abc","host":"host01"},"interval":"10m","window_start":"2023-11-14T22:20:00Z",'
        b'"window_end":"2023-11-14T22:30:00Z","count":10,"sum":50.0,"min":0.5,"max":9.5,"mean":4.25,"revision":0,'
        b'"close":7,"bucket":200,"day":"2023-11-14"}'
    )


def test_a_missing_value_is_null() -> None:
    [record] = json_records(table_of([ROW]))
    assert json.loads(record.value)["mean"] is None


def test_a_column_of_another_kind_is_refused() -> None:
    rows = table_of([ROW]).append_column("sketch", pa.array([b"x"]))
    with pytest.raises(InvariantError):
        json_records(rows)


@given(ROWS, st.integers(0, 8))
def test_every_row_can_be_read_back(rows: list[dict[str, Any]], at: int) -> None:
    records = json_records(cut(rows, min(at, len(rows))))
    assert [record.key.decode() for record in records] == [row["series"] for row in rows]
    for record, row in zip(records, rows, strict=True):
        read = json.loads(record.value)
        assert list(read) == SCHEMA.names
        assert {name: _as_row(name, value) for name, value in read.items()} == {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }


def _as_row(name: str, value: Any) -> Any:
    match name:
        case "window_start" | "window_end":
            assert value.endswith("Z")
            return datetime.fromisoformat(value).astimezone(UTC)
        case "day":
            return datetime.strptime(value, "%Y-%m-%d").replace(tzinfo=UTC).date()
        case _:
            return value
