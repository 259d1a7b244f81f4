"""Rows in Avro's single-object encoding: two marker bytes, the fingerprint of the schema, the row."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

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
    return [
        OutputRecord(key, head + _body(parsed, row))
        for key, row in zip(record_keys(rows), _plain(rows).to_pylist(maps_as_pydicts="strict"), strict=True)
    ]


def _body(schema: Any, row: Mapping[str, Any]) -> bytes:
    buffer = BytesIO()
    schemaless_writer(buffer, schema, row)
    return buffer.getvalue()


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
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_map(kind):
        return {"type": "map", "values": "string"}
    raise InvariantError(f"a column of {kind} cannot be published as Avro")


def _plain(rows: pa.Table) -> pa.Table:
    """Instants and days as the numbers that Avro writes: Python's own would be slower, and stop at the year 9999."""
    for index, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            micros = rows[column.name].cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            rows = rows.set_column(index, column.name, micros)
        elif pa.types.is_date32(column.type):
            rows = rows.set_column(index, column.name, rows[column.name].cast(pa.int32()))
    return rows
