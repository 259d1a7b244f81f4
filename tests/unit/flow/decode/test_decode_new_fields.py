"""Fields that records have and the schema lacks, under each policy of `on.new_column`."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.unit.flow.kafka_batches import bad_offsets, decode_json, error_of, good_offsets, types_of

SCHEMA = pa.schema([("id", pa.int64()), ("meta", pa.struct([("x", pa.int32())]))])
WITH_MAP = pa.schema([*SCHEMA, ("labels", pa.map_(pa.string(), pa.string()))])


@pytest.mark.parametrize("schema", [SCHEMA, WITH_MAP], ids=["fast path", "exact path"])
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "null"], pa.int64()),
        (["1", "2.5"], pa.float64()),
        (["12345678901234567890"], pa.float64()),
        (['"t"'], pa.string()),
        (['"2021-03-24T15:06:17Z"'], pa.string()),
        (["true"], pa.bool_()),
        (["[1]", "[2.5]"], pa.list_(pa.float64())),
        (["[]", '["2021-03-24"]'], pa.list_(pa.string())),
        (['{"a":1}', '{"b":[true]}'], pa.struct([("a", pa.int64()), ("b", pa.list_(pa.bool_()))])),
        (['{"a":1,"b":null}'], pa.struct([("a", pa.int64())])),
        (["1", '"t"', "2.5"], pa.float64()),
        (['"t"', "1"], pa.string()),
        (["1", '"t"'], pa.string()),
        (["true", "1"], pa.int64()),
        (["true", "true", "1"], pa.bool_()),
        (["[1]", "{}", "{}"], pa.list_(pa.int64())),
        (["[1]", '["t"]', "[2,3]"], pa.list_(pa.int64())),
        (['{"a":1}', '"t"', '{"a":"t"}', '{"a":2}'], pa.struct([("a", pa.int64())])),
        (['{"a":1}', '{"A":1}', '{"A":1}', '{"b c":1}'], pa.struct([("A", pa.int64())])),
    ],
)
def test_add_reports_the_type_that_most_values_show(schema: pa.Schema, values: list[str], kind: pa.DataType) -> None:
    decoded = decode_json(schema, [b'{"id":1,"new":%b}' % value.encode() for value in values])
    assert types_of(decoded.new_fields) == {"new": kind}
    assert decoded.rows.columns.column("id").to_pylist() == [1] * len(values)


@pytest.mark.parametrize("schema", [SCHEMA, WITH_MAP], ids=["fast path", "exact path"])
@pytest.mark.parametrize("value", [b"null", b"[]", b"{}", b"[null,{}]"])
def test_a_field_with_only_nulls_gets_no_column(schema: pa.Schema, value: bytes) -> None:
    assert decode_json(schema, [b'{"id":1,"new":%b}' % value]).new_fields.keys() <= {"new"}
    assert types_of(decode_json(schema, [b'{"id":1,"new":%b}' % value]).new_fields) == {}


def test_new_fields_of_bad_records_are_not_reported() -> None:
    decoded = decode_json(SCHEMA, [b'{"id":"x","ghost":1}', b'{"id":1,"new":1}'])
    assert types_of(decoded.new_fields) == {"new": pa.int64()}


def test_new_fields_widen_over_the_pieces_of_a_batch_that_was_split() -> None:
    values = [b'{"id":%d,"new":%b}' % (n, b"1" if n < 3000 else b"0.5") for n in range(4000)]
    values[10] = values[2000] = values[3500] = b'{"id":"bad"}'
    decoded = decode_json(SCHEMA, values)
    assert types_of(decoded.new_fields) == {"new": pa.float64()}
    assert bad_offsets(decoded) == [110, 2100, 3600]


def test_a_new_field_nested_very_deep_is_reported_with_a_bounded_depth() -> None:
    """Its record will be bad once the column is there, because no column holds it."""
    value = b'{"id":1,"new":' + b'{"a":' * 400 + b"1" + b"}" * 400 + b"}"
    fast, exact = decode_json(SCHEMA, [value]), decode_json(WITH_MAP, [value])
    assert fast.new_fields == exact.new_fields
    assert str(types_of(fast.new_fields)["new"]).count("struct<") == 32
    assert good_offsets(fast) == [100]


@pytest.mark.parametrize("schema", [SCHEMA, WITH_MAP], ids=["fast path", "exact path"])
def test_add_reports_new_fields_inside_known_structs_and_lists_of_them(schema: pa.Schema) -> None:
    wide = pa.schema([*schema, ("items", pa.list_(pa.struct([("n", pa.int64())])))])
    values = [
        b'{"meta":{"x":1,"y":1},"items":[{"n":1,"p":{"q":true}},{"n":2}]}',
        b'{"meta":{"x":2,"y":"t"},"items":[null]}',
        b'{"meta":{"y":2}}',
    ]
    decoded = decode_json(wide, values)
    assert types_of(decoded.new_fields) == {
        "meta": pa.struct([("y", pa.int64())]),
        "items": pa.list_(pa.struct([("p", pa.struct([("q", pa.bool_())]))])),
    }
    assert decoded.rows.columns.column("meta").to_pylist() == [{"x": 1}, {"x": 2}, {"x": None}]


def test_one_unusual_record_among_many_does_not_decide_a_type() -> None:
    values = [b'{"id":%d,"battery":%d}' % (n, n) for n in range(54)]
    values.insert(20, b'{"id":99,"battery":"full"}')
    fields = decode_json(SCHEMA, values).new_fields
    assert types_of(fields) == {"battery": pa.int64()}


@pytest.mark.parametrize("schema", [SCHEMA, WITH_MAP], ids=["fast path", "exact path"])
def test_a_field_that_differs_from_a_column_only_in_case_makes_its_record_bad(schema: pa.Schema) -> None:
    values = [
        b'{"id":1}',
        b'{"ID":2}',
        b'{"id":3,"Id":4}',
        b'{"\\u0049d":5}',
        b'{"id":6,"meta":{"X":1}}',
        b'{"id":7,"text":"the ID of \\"it\\""}',
        b'{"id":8,"ID":null}',
    ]
    decoded = decode_json(schema, values)
    assert decoded.rows.columns.column("id").to_pylist() == [1, 7, 8]
    assert types_of(decoded.new_fields) == {"text": pa.string()}
    assert decoded.bad.errors.to_pylist() == [
        "ID: differs only in case from the column id",
        "Id: differs only in case from the column id",
        "Id: differs only in case from the column id",
        "meta.X: differs only in case from the column x",
    ]


@pytest.mark.parametrize("schema", [SCHEMA, WITH_MAP], ids=["fast path", "exact path"])
def test_ignore_drops_new_fields_silently(schema: pa.Schema) -> None:
    values = [b'{"id":1,"new":1}', b'{"id":2,"new":"t","meta":{"x":1,"y":2}}']
    decoded = decode_json(schema, values, new_column="ignore")
    assert decoded.new_fields == {}
    assert decoded.rows.columns.column("id").to_pylist() == [1, 2]


@pytest.mark.parametrize("schema", [SCHEMA, WITH_MAP], ids=["fast path", "exact path"])
@pytest.mark.parametrize(
    ("value", "field"),
    [(b'{"id":1,"color":null}', "color"), (b'{"meta":{"y":1}}', "meta.y"), (b'{"":1}', "")],
)
def test_quarantine_makes_the_record_bad_at_every_level(schema: pa.Schema, value: bytes, field: str) -> None:
    prefix = f"{field}: " if field else ""
    assert error_of(schema, value, "quarantine") == f"{prefix}field is not in the schema"
