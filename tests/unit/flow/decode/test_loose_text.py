"""`on.mixed_types: text`: a text column that the job file does not state takes every value as its JSON text."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from penstock.flow.rows import Decoded
from penstock.job.spec import MixedTypesPolicy, NewColumnPolicy, Policies
from tests.support.tries import tries
from tests.unit.flow.decode.test_decode_agreement import VALUES
from tests.unit.flow.kafka_batches import bad_offsets, decode_json, good_offsets
from tests.unit.flow.route.fanouts import fanout_flow, kafka_part, run, type_flow

ID = pa.field("id", pa.int64())
STATED = pa.schema([ID, ("name", pa.string()), ("meta", pa.struct([("x", pa.string())]))])
SCHEMA = pa.schema(
    [*STATED.remove(2), ("meta", pa.struct([("x", pa.string()), ("y", pa.string())])), ("battery", pa.string())]
)
WITH_MAP = pa.schema([*SCHEMA, ("labels", pa.map_(pa.string(), pa.string()))])


def decode_loosely(schema: pa.Schema, values: list[bytes], **policies: Any) -> Decoded:
    return decode_json(schema, values, mixed_types=MixedTypesPolicy.TEXT, stated=STATED, **policies)


@pytest.mark.parametrize("schema", [SCHEMA, WITH_MAP], ids=["fast path", "exact path"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('"full"', "full"),
        ("1.50", "1.50"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1E+2", "1E+2"),
        ("-0", "-0"),
        ("true", "true"),
        ("false", "false"),
        ("null", None),
        ('{"a": [1, 2.50, null], "b": "ü \\n"}', '{"a":[1,2.50,null],"b":"ü \\n"}'),
        ("[ ]", "[]"),
        ("[" * 450 + "]" * 450, "[" * 450 + "]" * 450),
    ],
)
def test_every_value_arrives_as_its_json_text(schema: pa.Schema, value: str, text: str | None) -> None:
    around = [b'{"id":%d,"battery":"ok"}' % number for number in range(40)]
    decoded = decode_loosely(schema, [*around, b'{"id":99,"battery":%b}' % value.encode(), *around])
    assert decoded.rows.columns.column("battery").to_pylist() == ["ok"] * 40 + [text] + ["ok"] * 40
    assert decoded.new_fields == {}


@pytest.mark.parametrize("schema", [SCHEMA, WITH_MAP], ids=["fast path", "exact path"])
def test_what_the_job_file_states_stays_strict_also_beside_a_member_that_was_added(schema: pa.Schema) -> None:
    values = [
        b'{"id":1,"name":2}',
        b'{"id":2,"meta":{"x":3}}',
        b'{"id":3,"meta":{"x":"t","y":4}}',
        b'{"id":"5","battery":1}',
        b'{"id":6,"battery":{"a":1,"a":2}}',
        b'{"id":7,"battery":"\\ud800"}',
        b'{"id":8,"battery":["\\ud800"]}',
    ]
    decoded = decode_loosely(schema, values)
    assert good_offsets(decoded) == [102, 104]
    assert decoded.rows.columns.column("meta").to_pylist() == [{"x": "t", "y": "4"}, None]
    assert decoded.rows.columns.column("battery").to_pylist() == [None, '{"a":1,"a":2}']
    assert decoded.bad.errors.to_pylist() == [
        "name: expected string, found number",
        "meta.x: expected string, found number",
        "id: expected long, found string",
        "not JSON: input data was truncated",
        "not JSON: input data was truncated",
    ]


def test_without_the_policy_a_number_is_no_text() -> None:
    values = [b'{"id":1,"battery":2}', b'{"id":2,"battery":"full"}']
    assert bad_offsets(decode_json(SCHEMA, values, stated=STATED)) == [100]
    assert bad_offsets(decode_loosely(SCHEMA, values)) == []


def test_texts_in_lists_that_were_added_take_every_value_too() -> None:
    schema = pa.schema([ID, ("tags", pa.list_(pa.string()))])
    decoded = decode_loosely(schema, [b'{"tags":["a",1,true,null,{"b":1.0}]}', b'{"tags":1}'])
    assert decoded.rows.columns.column("tags").to_pylist() == [["a", "1", "true", None, '{"b":1.0}']]
    assert bad_offsets(decoded) == [101]


def test_members_of_an_object_that_is_taken_as_text_are_no_new_fields() -> None:
    decoded = decode_loosely(SCHEMA, [b'{"battery":{"level":1}}'], new_column=NewColumnPolicy.QUARANTINE)
    assert decoded.rows.columns.column("battery").to_pylist() == ['{"level":1}']


def numbers_marked(text: str) -> Any:
    """The value, with numbers that no text equals."""
    return json.loads(text, parse_int=_number, parse_float=_number, parse_constant=lambda name: (name,))


def _number(text: str) -> Decimal | tuple[str]:
    try:
        return Decimal(text)
    except InvalidOperation:
        # No Decimal has such an exponent: the text itself must come back.
        return (text,)


@given(VALUES.filter(lambda value: "Inf" not in value and "NaN" not in value))
@settings(max_examples=tries(15), deadline=None)
def test_the_text_of_a_value_is_read_back_as_the_same_value(value: str) -> None:
    decoded = decode_loosely(SCHEMA, [f'{{"battery":{value}}}'.encode()])
    if bad_offsets(decoded):
        assert "too big" in decoded.bad.errors[0].as_py()
        return
    [text] = decoded.rows.columns.column("battery").to_pylist()
    source = numbers_marked(value)
    assert (text if source is None or isinstance(source, str) else numbers_marked(text)) == source


def test_a_text_that_takes_every_value_does_not_prove_the_type_of_a_record(tmp_path: Path) -> None:
    """Types are the values of texts and of whole numbers: `1.0` and `true` are none, whatever stands elsewhere."""
    kind = type_flow("v", pa.schema([("type", pa.string())]), values=("true", "1.0", "7"), stated=pa.schema([]))
    decoys = [b'{"x":{"type":"true"},"type":true}', b'{"x":{"type":"1.0"},"type":1.0}']
    good = [b'{"type":"true"}', b'{"type":"1.0"}', b'{"type":"7"}', b'{"type":7}']
    flow = fanout_flow(
        tmp_path, [kind], on=Policies(mixed_types=MixedTypesPolicy.TEXT, new_column=NewColumnPolicy.IGNORE)
    )
    outcome = run(flow, kafka_part([*good, *decoys]))
    assert [row["type"] for row in outcome.rows("v")] == ["true", "1.0", "7", "7"]
    assert set(outcome.bad()) == {104, 105}
