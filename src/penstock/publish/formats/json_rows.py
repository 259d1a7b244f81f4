"""Rows as flat JSON objects, one per record, with every column under its own name."""

from __future__ import annotations

import msgspec
import polars as pl
import pyarrow as pa

from penstock.publish.formats.json_text import json_texts
from penstock.publish.formats.row_keys import record_keys, text_bytes
from penstock.publish.output import OutputRecord


def json_records(rows: pa.Table) -> list[OutputRecord]:
    """One record per row: instants in ISO 8601 and UTC, maps as objects, null for numbers that JSON cannot hold."""
    if not rows.num_rows:
        return []
    texts = pl.DataFrame({name: json_texts(rows[name]) for name in rows.column_names})
    values = texts.select(pl.concat_str(_object(rows.column_names))).to_series()
    return list(map(OutputRecord, record_keys(rows), text_bytes(values)))


def _object(names: list[str]) -> list[pl.Expr]:
    pieces: list[pl.Expr] = []
    for name in names:
        start = f"{',' if pieces else '{'}{msgspec.json.encode(name).decode()}:"
        pieces += [pl.lit(start), pl.col(name)]
    return [*pieces, pl.lit("}")]
