"""Rows as Avro: a reader that knows the schema by its fingerprint gets every value back."""

from __future__ import annotations

import json
import math
import struct
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvariantError
from penstock.publish.formats import avro_fingerprint, avro_records, avro_schema
from tests.unit.publish.any_rows import ROW, ROWS, SCHEMA, cut, table_of

SMALL = pa.schema([pa.field("series", pa.string(), nullable=False), pa.field("count", pa.int64())])
SMALL_CANONICAL = (
    b'{"name":"penstock.publish.Row","type":"record","fields":'
    b'[{"name":"series","type":"string"},{"name":"count","type":["null","long"]}]}'
)


def crc_64(content: bytes) -> int:
    """CRC-64-AVRO bit by bit, as the specification of Avro defines it."""
    found = empty = 0xC15D213AA4D7A795
    for byte in content:
        found ^= byte
        for _ in range(8):
            found = (found >> 1) ^ (empty if found & 1 else 0)
    return found


def test_the_fingerprint_is_that_of_the_canonical_form() -> None:
    # The specification's own example: the schema "int".
    assert crc_64(b'"int"') == 0x7275D51A3F395C8F
    assert avro_fingerprint(avro_schema(SMALL)) == struct.pack("<Q", crc_64(SMALL_CANONICAL))


def test_a_record_is_marker_fingerprint_and_body() -> None:
    rows = pa.table({"series": ["ab", "c"], "count": [-2, None]}, SMALL)
    head = b"\xc3\x01" + struct.pack("<Q", crc_64(SMALL_CANONICAL))
    # A string is its length, doubled, and its bytes; a union its branch, doubled; -2 is 3 as a zigzag number.
    assert [record.value for record in avro_records(rows)] == [head + b"\x04ab\x02\x03", head + b"\x02c\x00"]
    assert [record.key for record in avro_records(rows)] == [b"ab", b"c"]


def test_the_schema_is_plain_json_with_a_default_for_what_may_be_missing() -> None:
    schema = json.loads(json.dumps(avro_schema(SCHEMA)))
    fields = {field["name"]: field for field in schema["fields"]}
    assert list(fields) == SCHEMA.names
    assert fields["q50"] == {"name": "q50", "type": ["null", "double"], "default": None}
    assert fields["tags"]["type"] == {"type": "map", "values": "string"}
    assert fields["window_start"]["type"] == {"type": "long", "logicalType": "timestamp-micros"}


def test_a_column_of_another_kind_is_refused() -> None:
    with pytest.raises(InvariantError):
        avro_schema(pa.schema([("sketch", pa.binary())]))


@given(ROWS, st.integers(0, 8))
def test_every_row_can_be_read_back(rows: list[dict[str, Any]], at: int) -> None:
    schema = fastavro.parse_schema(avro_schema(SCHEMA))
    records = avro_records(cut(rows, min(at, len(rows))))
    assert [record.key.decode() for record in records] == [row["series"] for row in rows]
    for record, row in zip(records, rows, strict=True):
        assert record.value[:10] == b"\xc3\x01" + avro_fingerprint(avro_schema(SCHEMA))
        read = fastavro.schemaless_reader(BytesIO(record.value[10:]), schema, None)
        assert isinstance(read, dict)
        assert {name: _comparable(value) for name, value in read.items()} == {
            name: _comparable(value) for name, value in row.items()
        }


def _comparable(value: Any) -> Any:
    """Not-a-number is equal to itself here."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def test_infinities_are_kept() -> None:
    [record] = avro_records(table_of([{**ROW, "max": math.inf}]))
    read = fastavro.schemaless_reader(BytesIO(record.value[10:]), fastavro.parse_schema(avro_schema(SCHEMA)), None)
    assert isinstance(read, dict) and read["max"] == math.inf
