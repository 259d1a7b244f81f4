"""JSON records: which become rows, which are bad, and their reasons."""

from __future__ import annotations

import json
import pickle
from typing import get_args

import pyarrow as pa
import pytest

from penstock.errors import UserError
from penstock.flow.decode.decoder import decoder_for
from penstock.job.spec import DecodeSpec, NewColumnPolicy, Policies
from tests.unit.flow.kafka_batches import bad_offsets, decode_json, error_of, good_offsets, kafka_batch

SCHEMA = pa.schema(
    [
        ("status", pa.int32()),
        ("name", pa.string()),
        ("meta", pa.struct([("score", pa.float64()), ("tags", pa.list_(pa.int8()))])),
    ]
)


def test_good_records_become_rows_in_offset_order() -> None:
    values = [b'{"status":1,"name":"a","meta":{"score":0.5,"tags":[1,null]}}', b'{"name":null}', b"{}"]
    decoded = decode_json(SCHEMA, values)
    assert decoded.rows.columns.to_pylist() == [
        {"status": 1, "name": "a", "meta": {"score": 0.5, "tags": [1, None]}},
        {"status": None, "name": None, "meta": None},
        {"status": None, "name": None, "meta": None},
    ]


def test_a_batch_without_bad_records_keeps_its_kafka_rows_uncopied() -> None:
    batch = kafka_batch([b'{"status":1}', b'{"status":2}'])
    assert decoder_for(DecodeSpec("json"), SCHEMA, Policies()).decode(batch).rows.kafka is batch


def test_an_empty_batch_gives_no_rows() -> None:
    assert good_offsets(decode_json(SCHEMA, [])) == []


def test_a_decoder_can_be_pickled() -> None:
    decoder = pickle.loads(pickle.dumps(decoder_for(DecodeSpec("json"), SCHEMA, Policies())))
    assert decoder.decode(kafka_batch([b'{"status":7}'])).rows.columns.column("status").to_pylist() == [7]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", "value is empty"),
        (b"[1]", "expected an object, found array"),
        (b"null", "expected an object, found null"),
        (b'"x"', "expected an object, found string"),
        (b"7", "expected an object, found number"),
        (b'{"status":"abc"}', "status: expected int, found string"),
        (b'{"status":1.0}', "status: expected int, found number"),
        (b'{"status":1e2}', "status: expected int, found number"),
        (b'{"status":true}', "status: expected int, found boolean"),
        (b'{"status":2147483648}', "status: expected int, found number out of range"),
        (b'{"status":123456789012345678901}', "status: expected int, found number out of range"),
        (b'{"status":NaN}', "status: expected int, found number out of range"),
        (b'{"name":5}', "name: expected string, found number"),
        (b'{"name":{"a":1}}', "name: expected string, found object"),
        (b'{"meta":3}', "meta: expected object, found number"),
        (b'{"meta":{"score":"0.5"}}', "meta.score: expected double, found string"),
        (b'{"meta":{"score":1e400}}', "meta.score: expected double, found number out of range"),
        (b'{"meta":{"tags":{}}}', "meta.tags: expected array, found object"),
        (b'{"meta":{"tags":[1,128]}}', "meta.tags[1]: expected byte, found number out of range"),
        (b'{"status":1,"status":1}', "status: given twice"),
        (b'{"meta":{"score":1,"score":2}}', "meta.score: given twice"),
        (b'{"name":"\\ud800"}', "not JSON: input data was truncated"),
        (b'{"other":"\\udc00"}', "not JSON: invalid utf-16 surrogate pair (byte 16)"),
        (b'{"status":1}{"status":2}', "not JSON: trailing characters (byte 13)"),
        (b'{"status":1} x', "not JSON: trailing characters (byte 14)"),
        (b'{"status":1', "not JSON: input data was truncated"),
        (b'{"name":"a\nb"}', "not JSON: invalid character (byte 10)"),
        (b'{"status":1,}', "not JSON: trailing comma in object (byte 12)"),
        (b'{"name":"\xff"}', "value is not UTF-8"),
        (b'{"other":"\xff"}', "value is not UTF-8"),
        (b'{"meta":{"score":NaN}}', "meta.score: expected double, found number out of range"),
        (b'{"meta":{"score":-Inf}}', "meta.score: expected double, found number out of range"),
        (b'{"other":1e309}', "not readable: JSON parse error: Number too big to be stored in double. in row 0"),
        (b'\xef\xbb\xbf{"status":1}', "not JSON: invalid character (byte 0)"),
        (b'{"status":1}\x00', "not JSON: trailing characters (byte 13)"),
    ],
)
def test_a_bad_record_names_its_field_alone_and_among_good_ones(value: bytes, error: str) -> None:
    assert error_of(SCHEMA, value) == error


@pytest.mark.parametrize(
    "value",
    [
        b' \r\n{"status":5}\t\n',
        b'{\n  "status":\n 5\n}',
        b'{"\\u0073tatus":5}',
        b'{"status":5,"other":{"score":NaN}}',
        b'{"status":5,"other":{"a":1,"a":2}}',
        b'{"status":5,"other":-Inf}',
        b'{"status":5,"name":"}\\n{"}',
    ],
)
def test_unusual_spellings_of_a_good_record_are_rows(value: bytes) -> None:
    decoded = decode_json(SCHEMA, [b'{"status":1}', value, b'{"status":"bad"}', value])
    assert decoded.rows.columns.column("status").to_pylist() == [1, 5, 5]


def test_neighbouring_records_are_never_joined_or_split() -> None:
    """Together these texts are as many objects as there are messages, but not one each."""
    halves = [b'{"name":"}', b'{","status":1}', b'{"status":2}{"status":3}']
    decoded = decode_json(SCHEMA, [b'{"status":0}', *halves, b'{"meta":{}', b'{"status":4}'])
    assert decoded.rows.columns.column("status").to_pylist() == [0, 4]
    assert bad_offsets(decoded) == [101, 102, 103, 104]


def test_scattered_bad_records_do_not_affect_their_neighbours() -> None:
    poison = [b'{"status":"x"}', b'{"status":9999999999}', b'{"status":', b"", b'{"meta":{"tags":["1"]}}', b"\xff"]
    values = [poison[n % 6] if n % 97 == 0 else b'{"status":%d}' % n for n in range(5000)]
    decoded = decode_json(SCHEMA, values)
    assert bad_offsets(decoded) == [100 + n for n in range(0, 5000, 97)]
    assert decoded.rows.columns.column("status").to_pylist() == [n for n in range(5000) if n % 97]


def test_a_batch_of_only_bad_records_gives_no_rows() -> None:
    decoded = decode_json(SCHEMA, [b'{"status":"x"}'] * 3000)
    assert good_offsets(decoded) == []
    assert set(decoded.bad.errors.to_pylist()) == {"status: expected int, found string"}


@pytest.mark.parametrize("new_column", list(get_args(NewColumnPolicy)))
@pytest.mark.parametrize("value", [b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", b'{"a":' * 200_000])
def test_a_record_nested_too_deep_is_bad_and_does_not_crash_the_process(
    value: bytes, new_column: NewColumnPolicy
) -> None:
    assert error_of(SCHEMA, value, new_column) == "nested deeper than 500"


def test_depth_is_counted_outside_of_strings() -> None:
    deepest = b'{"status":1,"a":' + b"[" * 499 + b"]" * 499 + b"}"
    written = json.dumps({"status": 2, "name": '[{"\\' * 5000}).encode()
    wide = json.dumps({"status": 3, "b": [[]] * 5000}).encode()
    decoded = decode_json(SCHEMA, [deepest, written, wide, b'{"a":' + b"[" * 500 + b"]" * 500 + b"}"])
    assert decoded.rows.columns.column("status").to_pylist() == [1, 2, 3]
    assert decoded.bad.errors.to_pylist() == ["nested deeper than 500"]


def test_records_of_ten_megabytes_are_rows() -> None:
    values = [b'{"name":"' + b"x" * 10_000_000 + b'"}', b'{"name":"y"}']
    assert [len(name) for name in decode_json(SCHEMA, values).rows.columns.column("name").to_pylist()] == [10**7, 1]


def test_errors_hold_little_of_the_data() -> None:
    long = b"x" * 100_000
    schema = pa.schema([("status", pa.int32()), ("m", pa.map_(pa.string(), pa.int32()))])
    for value in (b'{"status":"%b"}' % long, b'{"status":%b}' % (b"9" * 5000), b'{"m":{"%b":"%b"}}' % (long, long)):
        decoded = decode_json(schema, [value])
        assert len(decoded.bad.errors[0].as_py()) < 250


def test_bad_rows_keep_their_bytes_and_headers_as_they_came() -> None:
    batch = kafka_batch([b"{", b"{}"], headers=[[{"key": "h", "value": b"1"}], None])
    bad = decoder_for(DecodeSpec("json"), SCHEMA, Policies()).decode(batch).bad
    assert bad.kafka.equals(batch.slice(0, 1))


def test_tombstones_follow_their_policy() -> None:
    values = [b'{"status":1}', None, b'{"status":2}']
    filtered = decode_json(SCHEMA, values, tombstone="filter")
    assert (good_offsets(filtered), filtered.filtered) == ([100, 102], 1)
    rows = decode_json(SCHEMA, values, tombstone="row")
    assert rows.rows.columns.column("status").to_pylist() == [1, None, 2]
    quarantined = decode_json(SCHEMA, values, tombstone="quarantine")
    assert (good_offsets(quarantined), bad_offsets(quarantined)) == ([100, 102], [101])
    assert quarantined.bad.errors.to_pylist() == ["value is null (a tombstone)"]


@pytest.mark.parametrize(
    "schema",
    [pa.schema([]), pa.schema([("a", pa.time32("s"))]), pa.schema([("a", pa.struct([("b", pa.uint8())]))])],
)
def test_a_schema_that_json_cannot_fill_is_refused_at_once(schema: pa.Schema) -> None:
    with pytest.raises(UserError):
        decoder_for(DecodeSpec("json"), schema, Policies())
