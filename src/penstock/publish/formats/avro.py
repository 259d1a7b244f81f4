"""Rows in Avro's single-object encoding: two marker bytes, the fingerprint of the schema, the row."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from fastavro.schema import fingerprint, to_parsing_canonical_form

from penstock.errors import InvariantError
from penstock.publish.formats.row_keys import record_keys
from penstock.publish.output import OutputRecord

MARKER = b"\xc3\x01"
NAME = "penstock.publish.Row"


def avro_schema(columns: pa.Schema) -> dict[str, Any]:
    """The schema of rows with these columns; one that may be null is a union with null, which is its default."""
    return {"type": "record", "name": NAME, "fields": [_field(column) for column in columns]}


def avro_fingerprint(schema: dict[str, Any]) -> bytes:
    """The eight bytes by which a reader finds the schema: CRC-64-AVRO of its canonical form, the lowest byte first."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def avro_records(rows: pa.Table) -> list[OutputRecord]:
    """One record per row; instants are microseconds since 1970."""
    schema = avro_schema(rows.schema)
    head, parsed = MARKER + avro_fingerprint(schema), parse_schema(schema)
    names, columns = rows.column_names, [_values(column) for column in rows.columns]
    records, buffer = [], BytesIO()
    for key, *values in zip(record_keys(rows), *columns, strict=True):
        buffer.seek(0)
        buffer.truncate()
        buffer.write(head)
        schemaless_writer(buffer, parsed, dict(zip(names, values, strict=True)))
        records.append(OutputRecord(key, buffer.getvalue()))
    return records


def _field(column: pa.Field) -> dict[str, Any]:
    kind = _avro_type(column.type)
    if not column.nullable:
        return {"name": column.name, "type": kind}
    return {"name": column.name, "type": ["null", kind], "default": None}


def _avro_type(kind: pa.DataType) -> str | dict[str, str]:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_int64(kind):
        return "long"
    if pa.types.is_integer(kind) and kind.bit_width < 64:
        return "int"
    if pa.types.is_floating(kind):
        return "double"
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if pa.types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_map(kind):
        return {"type": "map", "values": "string"}
    raise InvariantError(f"a column of {kind} cannot be published as Avro")


def _values(column: pa.ChunkedArray) -> list[Any]:
    """The values as fastavro writes them: days and instants as numbers, maps as dictionaries."""
    kind = column.type
    if pa.types.is_map(kind):
        return [each for chunk in column.chunks for each in _dictionaries(chunk)]
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    return pl.Series(column).to_list()


def _dictionaries(chunk: pa.MapArray) -> Iterator[dict[str, str] | None]:
    keys, items = pl.Series(chunk.keys).to_list(), pl.Series(chunk.items).to_list()
    for (start, end), known in zip(pairwise(chunk.offsets.to_pylist()), chunk.is_valid().to_pylist(), strict=True):
        yield dict(zip(keys[start:end], items[start:end], strict=True)) if known else None
