"""The columns of files that become one: all of them, once each, with all fields of their structs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.flow.columns.fitting import grown
from penstock.lake.compaction import CompactionSource, OneFile, merge_files
from penstock.storage import open_storage


def test_files_with_other_fields_and_spellings_become_one_file_and_lose_no_value(tmp_path: Path) -> None:
    tables = [
        pa.table({"n": [1], "Tag": ["a"], "meta": pa.array([{"x": 1}])}),
        pa.table({"meta": pa.array([{"y": "t", "X": 2}, None]), "tag": ["b", None], "n": [2, 3]}),
    ]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    schema = grown(tables[0].schema, tables[1].schema)
    assert schema.names == ["n", "Tag", "meta"]
    storage = open_storage(str(tmp_path), {})
    sink = OneFile(storage, "whole.parquet", schema, "snappy", 1024, {})
    merge_files(storage, [CompactionSource("0.parquet"), CompactionSource("1.parquet")], schema, sink)
    assert pq.read_table(tmp_path / "whole.parquet").to_pylist() == [
        {"n": 1, "Tag": "a", "meta": {"x": 1, "y": None}},
        {"n": 2, "Tag": "b", "meta": {"x": 2, "y": "t"}},
        {"n": 3, "Tag": None, "meta": None},
    ]
