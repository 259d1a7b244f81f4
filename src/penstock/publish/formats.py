"""The formats of published rows: each encodes a table of rows as records, in the order of the rows.

Whole columns are encoded as JSON at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.publish.output import OutputRecord
from penstock.publish.spec import PublishFormat

KEY_COLUMN = "series"
"""The key of a record: rows with the same text in it stay in one partition, in order."""
AGGREGATES = {"MIN": "min", "MAX": "max", "SUM": "sum", "COUNT": "count"}
"""OpenTSDB's names in the order of its array, with our columns."""
_UNSAFE = r'["\\\x00-\x1f]'
"""Characters that JSON strings must escape."""


def opentsdb_records(rows: pa.Table) -> list[OutputRecord]:
    """Closed windows as OpenTSDB's Kafka plugin reads them: an array of four aggregates, timestamps in seconds."""
    texts = pl.DataFrame(
        {
            "seconds": pl.Series(rows["window_start"]).dt.epoch("s").cast(pl.String),
            **{name: json_texts(rows[name]) for name in ("metric", "tags", "interval", *AGGREGATES.values())},
        }
    )
    head = '{{"type":"Aggregate","timestamp":{},"metric":{},"tags":{},"interval":{},"aggregator":"'
    of_all = pl.format(head, "seconds", "metric", "tags", "interval").alias("of_all")
    array = "[" + ",".join("{}" + name + '","value":{}}}' for name in AGGREGATES) + "]"
    columns = [column for value in AGGREGATES.values() for column in ("of_all", value)]
    values = texts.with_columns(of_all).select(pl.format(array, *columns)).to_series()
    return list(map(OutputRecord, _keys(rows), _bytes(values)))


def json_records(rows: pa.Table) -> list[OutputRecord]:
    """A flat object per row: instants in ISO 8601 and UTC, maps as objects, null for numbers that JSON cannot hold."""
    if not rows.num_rows:
        return []
    texts = pl.DataFrame({name: json_texts(rows[name]) for name in rows.column_names})
    members = [msgspec.json.encode(name).decode() + ":{}" for name in rows.column_names]
    values = texts.select(pl.format("{{" + ",".join(members) + "}}", *rows.column_names)).to_series()
    return list(map(OutputRecord, _keys(rows), _bytes(values)))


ENCODERS: Mapping[PublishFormat, Callable[[pa.Table], list[OutputRecord]]] = {
    "opentsdb": opentsdb_records,
    "json": json_records,
}


def _keys(rows: pa.Table) -> list[bytes]:
    return _bytes(pl.Series(rows[KEY_COLUMN]))


def _bytes(texts: pl.Series) -> list[bytes]:
    return texts.cast(pl.Binary).to_list()


def json_texts(column: pa.ChunkedArray) -> pl.Series:
    """Each value of a column as JSON; null where it is null, or a number that JSON cannot hold."""
    kind = column.type
    if pa.types.is_map(kind):
        parts = [_json_objects(chunk) for chunk in column.chunks]
        return pl.concat(parts) if parts else pl.Series([], dtype=pl.String)
    values = pl.Series(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = _quoted(values)
    elif pa.types.is_integer(kind):
        texts = values.cast(pl.String)
    elif pa.types.is_floating(kind):
        texts = values.cast(pl.Float64).cast(pl.String).set(~values.is_finite(), None)
    elif pa.types.is_timestamp(kind):
        texts = '"' + values.dt.to_string("%Y-%m-%dT%H:%M:%S%.6fZ").str.replace(r"\.0+Z$", "Z") + '"'
    elif pa.types.is_date(kind):
        texts = '"' + values.dt.to_string("iso") + '"'
    else:
        raise InvariantError(f"a column of {kind} cannot be published as JSON")
    return texts.fill_null("null")


def _quoted(values: pl.Series) -> pl.Series:
    """Strings as JSON strings; null stays null."""
    unsafe = values.filter(values.str.contains(_UNSAFE)).unique().to_list()
    if unsafe:
        # Names with quotes or control characters are rare: each of them is escaped once.
        values = values.replace({text: msgspec.json.encode(text).decode()[1:-1] for text in unsafe})
    return '"' + values + '"'


def _json_objects(chunk: pa.MapArray) -> pl.Series:
    """Maps of strings as objects, their keys in the order of the map."""
    pairs = _quoted(pl.Series(chunk.keys)) + ":" + _quoted(pl.Series(chunk.items)).fill_null("null")
    joined = pl.Series(pa.ListArray.from_arrays(chunk.offsets, pairs.to_arrow())).list.join(",")
    return ("{" + joined + "}").set(pl.Series(chunk.is_null()), "null")
