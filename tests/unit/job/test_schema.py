from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.job.document import Document
from penstock.job.faults import Finding, InvalidValueError, KeyPath
from penstock.job.reader import SpecReader
from penstock.job.schema import parse_type, read_schema
from penstock.job.values import LOST


def parse_schema(raw: object, at: KeyPath) -> tuple[Any, list[Finding]]:
    reader = SpecReader(Document(), Path())
    return read_schema(raw, at, reader), reader.findings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("string", pa.string()),
        ("boolean", pa.bool_()),
        ("bool", pa.bool_()),
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("binary", pa.binary()),
        ("decimal(10, 2)", pa.decimal128(10, 2)),
        ("decimal(38,38)", pa.decimal128(38, 38)),
        ("list<long>", pa.list_(pa.int64())),
        ("list< list<decimal(5,0)> >", pa.list_(pa.list_(pa.decimal128(5, 0)))),
        ("map<string,double>", pa.map_(pa.string(), pa.float64())),
        ("map<string, map<string,list<int>>>", pa.map_(pa.string(), pa.map_(pa.string(), pa.list_(pa.int32())))),
    ],
)
def test_every_type_name_has_its_arrow_type(text: str, expected: pa.DataType) -> None:
    assert parse_type(text) == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("strng", "did you mean string?"),
        ("STRING", "did you mean string?"),
        ("integer", "did you mean int?"),
        ("map<int,string>", "write map<string,...>"),
        ("decimal(39,2)", "precision is 1 to 38, scale is 0 to precision"),
        ("decimal(3,4)", "precision is 1 to 38, scale is 0 to precision"),
        ("list<flot>", "did you mean float?"),
    ],
)
def test_an_unknown_type_is_reported_with_the_allowed_types(text: str, hint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_type(text)
    assert caught.value.hint == hint


@pytest.mark.parametrize("text", ["", "list<>", "list<int", "map<string>", "list<" * 100 + "int" + ">" * 100])
def test_a_broken_type_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_type(text)


def test_mappings_are_structs_and_lists_are_lists_in_the_order_of_the_file() -> None:
    schema, findings = parse_schema(
        {"z": {"b": "int", "a": ["string"]}, "m": [{"x": "long"}], "c": "date"}, ("schema",)
    )
    assert findings == []
    assert schema == pa.schema(
        [
            ("z", pa.struct([("b", pa.int32()), ("a", pa.list_(pa.string()))])),
            ("m", pa.list_(pa.struct([("x", pa.int64())]))),
            ("c", pa.date32()),
        ]
    )
    assert all(field.nullable for field in schema)


def test_every_fault_of_a_schema_is_found_at_its_own_path() -> None:
    raw = {"a": {"Id": "int", "id": "int"}, "": "int", "x y": "int", "_Penstock_z": "int", "s": {}, "l": [], "n": 5}
    _, findings = parse_schema(raw, ("schema",))
    assert [(finding.key[1:], finding.on_key) for finding in findings] == [
        (("",), True),
        (("x y",), True),
        (("_Penstock_z",), True),
        (("a", "id"), True),
        (("s",), False),
        (("l",), False),
        (("n",), False),
    ]


def test_a_schema_is_a_mapping_with_at_least_one_field() -> None:
    assert parse_schema({}, ("schema",)) == (LOST, [Finding(("schema",), "a schema needs at least one field")])
    schema, findings = parse_schema(["int"], ("schema",))
    assert schema is LOST
    assert len(findings) == 1
