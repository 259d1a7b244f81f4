"""What rows the files of a load give: texts, times and nulls of CSV and JSON, folders, computed columns."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import UserError
from penstock.tables.keyed.layout import HIDDEN
from penstock.tables.keyed.loading.load import LoadReport
from penstock.tables.kind import SaveMode
from tests.scenarios.keyed.test_load import load
from tests.support.keyed_tables import COLUMNS, Keyed, row

KEYED = "partition_keys: [device], row_keys: [number], buckets: 3"
TYPES = "device: string, number: long, text: string, real: double, flag: boolean, day: date, at: timestamp"


def written(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def shown(table: Keyed, *names: str) -> list[tuple[Any, ...]]:
    return pl.read_delta(table.path).sort("device", "number").select(names).rows()


def test_only_an_empty_field_without_quotes_is_null_in_csv(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED, TYPES)
    lines = ["device,number,text,real,flag,day,at"]
    lines += [f"a,{number},{text},,,," for number, text in enumerate(["NA", '"NA"', "NULL", "nan", '""', "", "null"])]
    lines += ["b,0,x,nan,true,2026-03-01,2026-03-01T12:00:00Z", "b,1,x,,,,"]
    load(table, written(tmp_path, "a.csv", "\n".join(lines)))
    assert [text for device, text in shown(table, "device", "text") if device == "a"] == [
        "NA", "NA", "NULL", "nan", "", None, "null"
    ]  # fmt: skip
    full, empty = shown(table, "real", "flag", "day", "at")[-2:]
    assert full[0] != full[0] and full[1:] == (True, date(2026, 3, 1), datetime(2026, 3, 1, 12, tzinfo=UTC))
    assert empty == (None, None, None, None)


@pytest.mark.parametrize("field", ["number", "flag", "day", "at"])
@pytest.mark.parametrize("text", ["NA", '""', "null"])
def test_a_text_that_is_no_value_of_its_type_is_refused_in_csv(tmp_path: Path, field: str, text: str) -> None:
    table = Keyed(tmp_path, "row_keys: [device]", TYPES)
    with pytest.raises(UserError, match=r"a\.csv"):
        load(table, written(tmp_path, "a.csv", f"device,{field}\na,{text}\n"))


def test_columns_of_csv_have_the_types_of_the_table_whatever_the_case_of_their_names(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED, TYPES)
    load(table, written(tmp_path, "a.csv", "Device,NUMBER,Text\n007,1,0010\n"))
    assert shown(table, "device", "text") == [("007", "0010")]


def test_lines_within_quotes_and_rows_beyond_a_mebibyte_are_read_from_csv(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED, TYPES)
    texts = ["first\nsecond," * 200_000, "x"]
    lines = ["device,number,text", *(f'a,{number},"{text}"' for number, text in enumerate(texts))]
    load(table, written(tmp_path, "a.csv", "\n".join(lines)))
    assert [text for (text,) in shown(table, "text")] == texts


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    load(table, written(tmp_path, "a.csv", "\ufeffdevice,number\na,1\n"))
    load(table, written(tmp_path, "b.json", "\ufeff" + json.dumps(row(2, 2))))
    assert table.values() == {("a", 1): None, ("a", 2): 2}
    assert "\ufeffdevice" not in table.table().schema.names


def test_a_column_that_is_ignored_may_change_its_type_within_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.tables.keyed.loading.reading.BLOCK_BYTES", 50)
    table = Keyed(tmp_path, KEYED, on="new_column: ignore")
    rows = [f"a,{number},{number},{number if number < 50 else 'text'}" for number in range(100)]
    load(table, written(tmp_path, "a.csv", "\n".join(["", "device,number,value,odd", *rows])))
    assert table.values() == {("a", number): number for number in range(100)}


@pytest.mark.parametrize("content", ["device,number\na,1\n".encode("utf-16"), b"device,n\xe9\na,1\n", b'"device'])
def test_a_header_that_is_no_csv_is_refused_with_its_file(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UserError, match=r"a\.csv"):
        load(Keyed(tmp_path, KEYED), written(tmp_path, "a.csv", content))


def test_a_new_column_without_values_is_left_out(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    load(table, written(tmp_path, "a.csv", "device,number,value,color\na,1,1,\n"))
    assert table.values() == {("a", 1): 1} and "color" not in table.table().schema.names


def test_columns_of_one_name_are_refused_by_name(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    rows = pa.table({"device": ["a"], "number": [1], "value": [1], "VALUE": [2]})
    pq.write_table(rows, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="value and VALUE") as refused:
        load(table, str(tmp_path / "a.parquet"))
    assert "a.parquet" in str(refused.value)
    with pytest.raises(UserError, match="two columns value"):
        load(table, written(tmp_path, "b.csv", "device,number,value,value\na,1,1,2\n"))


def test_empty_files_and_files_that_say_a_job_is_done(tmp_path: Path) -> None:
    """A CSV file without a header is damaged; JSON without a line has no rows; `_SUCCESS` is no file of rows."""
    table = Keyed(tmp_path, KEYED)
    folder = tmp_path / "in"
    written(folder, "_SUCCESS", "")
    written(folder, "a.json", "")
    written(folder, "b.csv", "device,number,value\n")
    assert load(table, str(folder)) == LoadReport(files=2, commits=1)
    with pytest.raises(UserError, match=r"c\.csv"):
        load(table, written(folder, "c.csv", ""))


def test_a_compressed_file_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    written(folder, "a.csv", "device,number,value\na,1,1\n")
    written(folder, "README.md", "no rows")
    written(folder, "b.csv.gz", gzip.compress(b"device,number,value\na,2,2\n"))
    for wanted in (None, "csv"):
        with pytest.raises(UserError, match=r"b\.csv\.gz"):
            load(Keyed(tmp_path, KEYED), str(folder), format=wanted)


def test_json_is_read_as_records_are(tmp_path: Path) -> None:
    """Dates and times, records of any size, lines that end as on Windows, and empty ones."""
    table = Keyed(tmp_path, KEYED, TYPES)
    long = "x" * 3_000_000
    rows = [
        {"device": "a", "number": 1, "day": "2026-03-01", "at": "2026-03-01 12:00:00"},
        {"device": "a", "number": 2, "text": long},
        {"device": "a", "number": 3, "text": "NA", "flag": True, "real": 1},
    ]
    load(table, written(tmp_path, "a.json", "\r\n\r\n".join(json.dumps(each) for each in rows) + "\r\n"))
    assert shown(table, "day", "at", "text", "flag", "real") == [
        (date(2026, 3, 1), datetime(2026, 3, 1, 12, tzinfo=UTC), None, None, None),
        (None, None, long, None, None),
        (None, None, "NA", True, 1.0),
    ]


def test_lines_of_json_beyond_a_block_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tables.keyed.loading.reading.BLOCK_BYTES", 7)
    table = Keyed(tmp_path, KEYED)
    load(table, written(tmp_path, "a.json", "\n".join(json.dumps(row(number, number)) for number in range(5))))
    assert table.values() == {("a", number): number for number in range(5)}


def test_a_bad_line_of_json_is_named(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    lines = [json.dumps(row(1, 1)), "", '{"device": "a", "number": 2, "value": "two"}', json.dumps(row(3, 3))]
    with pytest.raises(UserError, match="1 rows") as refused:
        load(table, written(tmp_path, "a.json", "\n".join(lines)))
    assert "a.json row 3: value" in refused.value.detail
    with pytest.raises(UserError) as refused:
        load(table, written(tmp_path, "b.json", "\n".join([*lines[:2], '{"device": "a"}'])))
    assert "b.json row 3: number is null" in refused.value.detail


def test_new_fields_of_json_follow_the_policy(tmp_path: Path) -> None:
    rows = [row(1, 1), row(2, 2, color="red", _sequence=5), row(3, 3, size={"width": 1.5})]
    path = written(tmp_path, "a.json", "\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match="color"):
        load(Keyed(tmp_path, KEYED, on="new_column: fail"), path)
    load(Keyed(tmp_path, KEYED, on="new_column: ignore"), path)
    table = Keyed(tmp_path, KEYED)
    assert "color" not in table.table().schema.names
    load(table, path, mode=SaveMode.OVERWRITE)
    assert shown(table, "number", "color", "size") == [(1, None, None), (2, "red", None), (3, None, {"width": 1.5})]


def test_folders_of_hive_are_columns(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED, TYPES)
    folder = tmp_path / "in"
    one = "device=a%2Fb/number=1/day=2026-03-01/real=1.5/flag=true/at=2026-03-01 12%3A00%3A00"
    written(folder, f"{one}/x.csv", "text\nx\n")
    written(folder, "Device=007/number=7/day=__HIVE_DEFAULT_PARTITION__/x.json", '{"text": "y"}')
    pl.DataFrame({"text": ["z"]}).write_parquet(written(folder, "device=c/number=1/x.parquet", ""))
    load(table, str(folder))
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert shown(table, "device", "number", "text", "day", "real", "flag", "at") == [
        ("007", 7, "y", None, None, None, None),
        ("a/b", 1, "x", date(2026, 3, 1), 1.5, True, at),
        ("c", 1, "z", None, None, None, None),
    ]


def test_folders_above_the_named_path_are_columns_if_the_table_has_them(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    folder = tmp_path / "run=5" / "device=a"
    path = written(folder, "_part=x/a.csv", "number,value\n1,1\n")
    load(table, path)
    assert table.values() == {("a", 1): 1} and "run" not in table.table().schema.names
    load(table, str(folder), mode=SaveMode.OVERWRITE)
    assert shown(table, "number", "_part") == [(1, "x")]
    assert "run" not in table.table().schema.names


def test_a_value_in_the_file_wins_over_its_folder(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    load(table, written(tmp_path, "value=5/a.csv", "device,number,value\na,1,1\na,2,\n"))
    assert table.values() == {("a", 1): 1, ("a", 2): 5}


@pytest.mark.parametrize("part", ["number=one", "number=99999999999999999999", "device=%FF"])
def test_a_folder_that_does_not_fit_its_column_is_refused_with_its_path(tmp_path: Path, part: str) -> None:
    path = written(tmp_path, f"in/{part}/a.csv", "value\n1\n")
    with pytest.raises(UserError, match=part) as refused:
        load(Keyed(tmp_path, KEYED), str(tmp_path / "in"))
    assert path in refused.value.primary


COMPUTED: dict[str, Any] = {
    "keyed": "partition_keys: [day], row_keys: [id], delete: op = d, buckets: 3",
    "schema": "after: {id: long, at: timestamp}, before: {id: long}, op: string, note: string",
    "columns": f"{COLUMNS}, id: 'coalesce(after.id, before.id)', day: day(after.at), origin: \"'log'\"",
    "on": "new_column: fail",
}


def test_computed_columns_have_the_values_that_records_have(tmp_path: Path) -> None:
    """So that a row of a load and a record with the same fields have the same key."""
    table = Keyed(tmp_path, **COMPUTED)
    rows = [{"after": {"id": number, "at": "2026-03-01T12:00:00Z"}, "note": "loaded"} for number in (1, 2)]
    load(table, written(tmp_path, "a.json", "\n".join(map(json.dumps, rows))))
    table.put({**rows[0], "note": "logged"})
    table.run()
    found = pl.read_delta(table.path).sort("id").select("day", "id", "note", "origin", "kafka_offset").rows()
    day = date(2026, 3, 1)
    assert found == [(day, 1, "logged", "log", 0), (day, 2, "loaded", "log", None)]
    assert table.verified(values=False).ok


def test_a_computed_value_that_a_file_brings_counts_where_its_fields_are_not_there(tmp_path: Path) -> None:
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
    found = pl.read_delta(table.path).sort("id").select("day", "id", "origin", "kafka_offset").rows()
    assert found == [(date(2026, 3, 1), 4, "file", 17), (date(2026, 3, 2), 5, "log", None)]


def test_a_row_without_an_answer_for_a_computed_column_is_refused(tmp_path: Path) -> None:
    schema = "device: string, number: long, value: long, at: string"
    table = Keyed(tmp_path, KEYED, schema, columns="day: day(at)")
    with pytest.raises(UserError, match="no place") as refused:
        load(table, written(tmp_path, "a.csv", "device,number,at\na,1,2026-03-01\na,2,soon\n"))
    assert 'a.csv row 2: day: "soon" is not a time' in refused.value.detail


def test_fields_that_are_dropped_are_no_new_columns(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [id]", "after: {id: long}", columns="id: after.id", more="drop: [after]")
    load(table, written(tmp_path, "a.json", '{"after": {"id": 1, "more": 2}}'))
    columns = set(pl.read_delta(table.path).columns) - set(HIDDEN)
    assert columns == {"id"} and pl.read_delta(table.path)["id"].to_list() == [1]
