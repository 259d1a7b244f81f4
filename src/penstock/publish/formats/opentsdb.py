"""Closed windows as OpenTSDB's Kafka plugin reads them: an array of four aggregates per window."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from penstock.publish.formats.json_text import json_texts
from penstock.publish.formats.row_keys import record_keys, text_bytes
from penstock.publish.output import OutputRecord

AGGREGATES = {"MIN": "min", "MAX": "max", "SUM": "sum", "COUNT": "count"}
"""In the order of the array, with the columns that hold them."""

_HEAD = [
    *(pl.lit('{"type":"Aggregate","timestamp":'), pl.col("seconds")),
    *(pl.lit(',"metric":'), pl.col("metric")),
    *(pl.lit(',"tags":'), pl.col("tags")),
    *(pl.lit(',"interval":'), pl.col("interval"), pl.lit(',"aggregator":"')),
]


def opentsdb_records(rows: pa.Table) -> list[OutputRecord]:
    """One record per row, under the name of its series; timestamps are in seconds."""
    texts = pl.DataFrame(
        {
            "seconds": pl.Series(rows["window_start"]).dt.epoch("s").cast(pl.String),
            **{name: json_texts(rows[name]) for name in ("metric", "tags", "interval", *AGGREGATES.values())},
        }
    )
    values = texts.select(*AGGREGATES.values(), head=pl.concat_str(_HEAD)).select(pl.concat_str(_array())).to_series()
    return list(map(OutputRecord, record_keys(rows), text_bytes(values)))


def _array() -> list[pl.Expr]:
    """The pieces of an array; what all its aggregates have in common is in the column `head`."""
    pieces: list[pl.Expr] = []
    for name, column in AGGREGATES.items():
        pieces += [
            pl.lit("," if pieces else "["),
            pl.col("head"),
            pl.lit(f'{name}","value":'),
            pl.col(column),
            pl.lit("}"),
        ]
    return [*pieces, pl.lit("]")]
