"""A job whose names differ from the table's only in case writes to the table's columns, from Kafka to every reader."""

from __future__ import annotations

import json

import polars as pl
import pytest

from tests.support.exports import ExportPipe, type_of
from tests.support.kafka import Produce, Topics


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_the_types_of_an_export_keep_the_spelling_of_their_tables(
    export: ExportPipe, topic: Topics, produce: Produce, form: str
) -> None:
    name = topic()
    day = "2026-03-01T00:00:00Z"
    fields = {"type": "A", "at": day}
    produce(name, [json.dumps({**fields, "n": 1, "userid": 7, "meta": {"x": 1}})])
    schema = "{type: string, at: string, n: long, userid: long, meta: {x: long}}"
    export.describe(
        name, types=[type_of("A", schema=schema)], export=f"format: {form}", more="columns: {Tag: lower(type)}"
    )
    export.run_to_end()
    produce(name, [json.dumps({**fields, "n": 2, "userId": 8, "meta": {"X": 2}})])
    schema = "{type: string, at: string, n: long, userId: long, meta: {X: long}}"
    tag = "Tag" if form == "parquet" else "TAG"
    more = f"columns: {{{tag}: lower(type)}}"
    export.describe(name, types=[type_of("A", schema=schema)], export=f"format: {form}", more=more)
    export.run_to_end()
    files = f"{export.root}/A/day=*/*.parquet"
    frame = pl.read_parquet(files) if form == "parquet" else pl.read_delta(f"{export.root}/A")
    assert frame.sort("n").select("n", "userid", "meta", "Tag").rows() == [
        (1, 7, {"x": 1}, "a"),
        (2, 8, {"x": 2}, "a"),
    ]
