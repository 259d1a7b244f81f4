"""The formats in which rows are published: each turns a table of rows into records, in the order of the rows.

JSON texts are made of whole columns at once. Avro is its single-object encoding: two marker bytes, the fingerprint of
the schema, the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from itertools import pairwise
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from fastavro.schema import fingerprint, to_parsing_canonical_form

from penstock.errors import InvariantError
from penstock.publish.output import OutputRecord
from penstock.publish.spec import PublishFormat

KEY_COLUMN = "series"
"""The key of a record: rows with the same text in it stay in one partition, in order."""
AGGREGATES = {"MIN": "min", "MAX": "max", "SUM": "sum", "COUNT": "count"}
"""Of OpenTSDB, in the order of its array, with the columns that hold them."""
AVRO_MARKER = b"\xc3\x01"
AVRO_NAME = "penstock.publish.Row"
_UNSAFE = r'["\\\x00-\x1f]'
"""What a JSON string cannot hold as it is."""


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


def avro_records(rows: pa.Table) -> list[OutputRecord]:
    """One record per row; instants are microseconds since 1970."""
    schema = avro_schema(rows.schema)
    head, parsed = AVRO_MARKER + avro_fingerprint(schema), parse_schema(schema)
    names, columns = rows.column_names, [_avro_values(column) for column in rows.columns]
    records, buffer = [], BytesIO()
    for key, *values in zip(_keys(rows), *columns, strict=True):
        buffer.seek(0)
        buffer.truncate()
        buffer.write(head)
        schemaless_writer(buffer, parsed, dict(zip(names, values, strict=True)))
        records.append(OutputRecord(key, buffer.getvalue()))
    return records


ENCODERS: Mapping[PublishFormat, Callable[[pa.Table], list[OutputRecord]]] = {
    "opentsdb": opentsdb_records,
    "json": json_records,
    "avro": avro_records,
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


def avro_schema(columns: pa.Schema) -> dict[str, Any]:
    """The schema of rows with these columns; one that may be null is a union with null, which is its default."""
    fields = []
    for column in columns:
        kind = _avro_type(column.type)
        nullable = {"type": ["null", kind], "default": None}
        fields.append({"name": column.name, **(nullable if column.nullable else {"type": kind})})
    return {"type": "record", "name": AVRO_NAME, "fields": fields}


def avro_fingerprint(schema: dict[str, Any]) -> bytes:
    """The eight bytes by which a reader finds the schema: CRC-64-AVRO of its canonical form, the lowest byte first."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def _avro_type(kind: pa.DataType) -> str | dict[str, str]:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_integer(kind):
        return "int" if kind.bit_width < 64 else "long"
    if pa.types.is_floating(kind):
        return "double"
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if pa.types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_map(kind):
        return {"type": "map", "values": "string"}
    raise InvariantError(f"a column of {kind} cannot be published as Avro")


def _avro_values(column: pa.ChunkedArray) -> list[Any]:
    """The values as fastavro writes them: days and instants as numbers, maps as dictionaries."""
    kind = column.type
    if pa.types.is_map(kind):
        return [value for chunk in column.chunks for value in _dictionaries(chunk)]
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    return pl.Series(column).to_list()


def _dictionaries(chunk: pa.MapArray) -> Iterator[dict[str, str] | None]:
    keys, items = pl.Series(chunk.keys).to_list(), pl.Series(chunk.items).to_list()
    for (start, end), valid in zip(pairwise(chunk.offsets.to_pylist()), chunk.is_valid().to_pylist(), strict=True):
        yield dict(zip(keys[start:end], items[start:end], strict=True)) if valid else None
