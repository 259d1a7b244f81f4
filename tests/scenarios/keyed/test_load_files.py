"""Rows of loaded files: values in the types of the table, computed columns as for records."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import UserError
from penstock.tables.keyed.layout import HIDDEN
from tests.scenarios.keyed.test_load import load
from tests.support.keyed_tables import COLUMNS, Keyed

KEYED = "partition_keys: [device], row_keys: [number], buckets: 3"


def written(folder: Path, **columns: list[Any]) -> str:
    path = folder / "a.parquet"
    pl.DataFrame(columns).write_parquet(path)
    return str(path)


def test_column_names_match_case_insensitively(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    load(table, written(tmp_path, Device=["a"], NUMBER=[1], Value=[7]))
    assert table.values() == {("a", 1): 7}


def test_a_new_column_without_values_is_left_out(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    load(table, written(tmp_path, device=["a"], number=[1], value=[1], color=[None]))
    assert table.values() == {("a", 1): 1} and "color" not in table.table().schema.names


def test_columns_of_one_name_are_refused_by_name(tmp_path: Path) -> None:
    rows = pa.table({"device": ["a"], "number": [1], "value": [1], "VALUE": [2]})
    pq.write_table(rows, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="value and VALUE") as refused:
        load(Keyed(tmp_path, KEYED), str(tmp_path / "a.parquet"))
    assert "a.parquet" in str(refused.value)


COMPUTED: dict[str, Any] = {
    "keyed": "partition_keys: [day], row_keys: [id], delete: op = 'd', buckets: 3",
    "schema": "after: {id: long, at: timestamp}, before: {id: long}, op: string, note: string",
    "columns": f"{COLUMNS}, id: 'coalesce(after.id, before.id)', day: day(after.at), origin: \"'log'\"",
    "on": "new_column: quarantine",
}


def test_computed_columns_have_the_values_that_records_have(tmp_path: Path) -> None:
    """So that a row of a load and a record with the same fields have the same key."""
    table = Keyed(tmp_path, **COMPUTED)
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    load(table, written(tmp_path, after=[{"id": number, "at": noon} for number in (1, 2)], note=["loaded"] * 2))
    table.put({"after": {"id": 1, "at": "2026-03-01T12:00:00Z"}, "note": "logged"})
    table.run()
    rows = pl.read_delta(table.path).sort("id").select("day", "id", "note", "origin", "kafka_offset").rows()
    day = date(2026, 3, 1)
    assert rows == [(day, 1, "logged", "log", 0), (day, 2, "loaded", "log", None)]
    assert table.verified(values=False).ok


def test_a_computed_value_in_a_file_is_kept_if_its_fields_are_missing(tmp_path: Path) -> None:
    """A file may be a copy of the table."""
    table = Keyed(tmp_path, **COMPUTED)
    at = {"id": 5, "at": datetime(2026, 3, 2, tzinfo=UTC)}
    rows = pl.DataFrame(
        {
            "after": [None, at],
            "id": [4, 40],
            "day": [date(2026, 3, 1), date(1999, 1, 1)],
            "origin": ["file", None],
            "kafka_offset": [17, None],
        }
    )
    path = tmp_path / "a.parquet"
    rows.write_parquet(path)
    load(table, str(path))
    result = pl.read_delta(table.path).sort("id").select("day", "id", "origin", "kafka_offset").rows()
    assert result == [(date(2026, 3, 1), 4, "file", 17), (date(2026, 3, 2), 5, "log", None)]


def test_a_row_without_a_value_for_a_partition_column_is_refused(tmp_path: Path) -> None:
    schema = "device: string, number: long, value: long, at: string"
    table = Keyed(tmp_path, KEYED, schema, columns="day: day(at)")
    with pytest.raises(UserError, match="cannot be stored") as refused:
        load(table, written(tmp_path, device=["a", "a"], number=[1, 2], at=["2026-03-01", "soon"]))
    assert 'a.parquet row 2: day: "soon" is not a time' in refused.value.detail


def test_dropped_fields_are_not_new_columns(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [id]", "after: {id: long}", columns="id: after.id", more="drop: [after]")
    load(table, written(tmp_path, after=[{"id": 1, "more": 2}]))
    columns = set(pl.read_delta(table.path).columns) - set(HIDDEN)
    assert columns == {"id"} and pl.read_delta(table.path)["id"].to_list() == [1]
