"""Records that are protobuf messages: every field a column, every bad record named."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UserError
from penstock.flow.decode.decoder import decoder_for
from penstock.flow.rows import Decoded
from penstock.job.messages import find_message, message_schema
from penstock.job.spec import DecodeSpec, MessageName, Payload, Policies, TombstonePolicy
from tests.support.garmadon_descriptors import add_field, add_message, descriptor_set
from tests.unit.flow.decode.test_decode_payload import gzipped
from tests.unit.flow.kafka_batches import bad_offsets, good_offsets, kafka_batch

ORDER = MessageName("shop.Order")
OLD = MessageName("shop.Old")
_KINDS = "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool string bytes"
SCALARS = _KINDS.split()


def _order_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    state = file.enum_type.add(name="State")
    state.options.allow_alias = True
    for name, number in (("NEW", 0), ("OPEN", 1), ("OPENED", 1), ("DONE", 2)):
        state.value.add(name=name, number=number)
    order = add_message(file, "Order", [f"{kind} f_{kind} {number}" for number, kind in enumerate(SCALARS, 1)])
    line = order.nested_type.add(name="Line")
    add_field(line, "string item 1")
    add_field(line, ".google.protobuf.Timestamp packed_at 2")
    entry = order.nested_type.add(name="PricesEntry")
    entry.options.map_entry = True
    add_field(entry, "string key 1")
    add_field(entry, ".shop.Order.Line value 2")
    for text in (
        ".shop.State state 20",
        "repeated .shop.State states 21",
        "repeated uint64 counts 22",
        ".shop.Order.Line first 23",
        "repeated .shop.Order.Line lines 24",
        "repeated .shop.Order.PricesEntry prices 25",
        ".google.protobuf.Timestamp at 26",
    ):
        add_field(order, text)
    note = add_field(order, "string note 27")
    note.proto3_optional = True
    note.oneof_index = 0
    order.oneof_decl.add(name="_note")
    return file


def _old_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="old.proto", package="shop", syntax="proto2")
    add_message(file, "Old", ["required int32 id 1", "string name 2"]).field[1].default_value = "unnamed"
    return file


DESCRIPTORS = descriptor_set(
    [FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb), _order_file(), _old_file()]
)
ORDERS: Any = GetMessageClass(find_message(DESCRIPTORS, ORDER))
OLDS: Any = GetMessageClass(find_message(DESCRIPTORS, OLD))


def decode(
    values: list[bytes | None],
    message: MessageName = ORDER,
    *,
    defaults: Literal["null", "value"] = "null",
    names: list[str] | None = None,
    payload: Payload = "plain",
    tombstone: TombstonePolicy = "filter",
) -> Decoded:
    schema = message_schema(DESCRIPTORS, message)
    if names is not None:
        schema = pa.schema([schema.field(name) for name in names])
    spec = DecodeSpec("protobuf", payload, DESCRIPTORS, message, defaults=defaults)
    decoder = pickle.loads(pickle.dumps(decoder_for(spec, schema, Policies(tombstone=tombstone))))
    decoded: Decoded = decoder.decode(kafka_batch(values))
    assert decoded.rows.columns.schema.equals(schema)
    decoded.rows.columns.validate(full=True)
    assert not set(good_offsets(decoded)) & set(bad_offsets(decoded))
    assert len(good_offsets(decoded)) + len(bad_offsets(decoded)) + decoded.filtered == len(values)
    return decoded


def row(value: bytes, message: MessageName = ORDER, *, defaults: Literal["null", "value"] = "null") -> dict[str, Any]:
    rows: list[dict[str, Any]] = decode([value], message, defaults=defaults).rows.columns.to_pylist()
    return rows[0]


def errors(decoded: Decoded) -> dict[int, str]:
    return dict(zip(bad_offsets(decoded), decoded.bad.errors.to_pylist(), strict=True))


def test_every_scalar_arrives_and_unsigned_64_bits_keep_their_pattern() -> None:
    values = {
        "double": -1.5,
        "float": 0.25,
        "int32": -(2**31),
        "int64": -(2**63),
        "uint32": 2**32 - 1,
        "uint64": 2**64 - 1,
        "sint32": -7,
        "sint64": 2**63 - 1,
        "fixed32": 2**31,
        "fixed64": 2**63,
        "sfixed32": -1,
        "sfixed64": -2,
        "bool": True,
        "string": "é",
        "bytes": b"\xff",
    }
    result = row(ORDERS(**{f"f_{kind}": value for kind, value in values.items()}).SerializeToString())
    signed = {**values, "uint64": -1, "fixed64": -(2**63)}
    assert {name[2:]: value for name, value in result.items() if name.startswith("f_")} == signed


def test_a_field_at_its_default_is_null_or_its_value_as_configured() -> None:
    absent = row(b"")
    assert {name for name, value in absent.items() if value is not None} == {"states", "counts", "lines", "prices"}
    kept = row(b"", defaults="value")
    assert [kept[f"f_{kind}"] for kind in SCALARS] == [0.0, 0.0, *[0] * 10, False, "", b""]
    assert kept["state"] == "NEW"
    # These have presence: the wire format distinguishes absent from default.
    assert [kept[name] for name in ("first", "at", "note")] == [None, None, None]
    assert row(ORDERS(note="", first={}).SerializeToString())["note"] == ""


def test_infinity_and_not_a_number_are_values() -> None:
    result = row(ORDERS(f_double=float("-inf"), f_float=float("nan")).SerializeToString())
    assert result["f_double"] == float("-inf")
    assert result["f_float"] != result["f_float"]


def test_enums_are_their_first_names_and_unknown_numbers_are_digits() -> None:
    result = row(ORDERS(state=1, states=[0, 2, 1, 77]).SerializeToString())
    assert (result["state"], result["states"]) == ("OPEN", ["NEW", "DONE", "OPEN", "77"])


def test_lists_structs_maps_and_times_arrive_at_every_depth() -> None:
    order = ORDERS(counts=[1, 2**64 - 2], lines=[{"item": "a"}, {}])
    order.at.seconds = -1
    order.at.nanos = 999_999_000
    order.first.packed_at.seconds = 1
    order.first.packed_at.nanos = 2_000_999
    order.prices["z"].item = "late"
    order.prices["a"].SetInParent()
    result = row(order.SerializeToString())
    assert result["counts"] == [1, -2]
    assert result["lines"] == [{"item": "a", "packed_at": None}, {"item": None, "packed_at": None}]
    assert result["first"] == {"item": None, "packed_at": datetime(1970, 1, 1, 0, 0, 1, 2000, tzinfo=UTC)}
    assert result["at"] == datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert result["prices"] == [("a", {"item": None, "packed_at": None}), ("z", {"item": "late", "packed_at": None})]


def test_bad_records_are_named_and_their_neighbours_are_rows() -> None:
    far = ORDERS()
    far.first.packed_at.seconds = 2**62
    good = ORDERS(f_int32=5).SerializeToString()
    values: list[bytes | None] = [good, b"\xff", far.SerializeToString(), good, b'{"json": 1}', None, good]
    decoded = decode(values)
    assert good_offsets(decoded) == [100, 103, 106]
    assert decoded.rows.columns.column("f_int32").to_pylist() == [5, 5, 5]
    assert errors(decoded) == {
        101: "value is not a message shop.Order",
        102: f"value: first.packed_at: {2**62} s 0 ns is not a time of the years 1 to 9999",
        104: "value is not a message shop.Order",
    }


def test_a_text_that_is_not_utf8_is_bad_in_both_syntaxes() -> None:
    new, old = b"\x72\x01\xff", b"\x08\x01\x12\x01\xff"
    assert errors(decode([new])) == {100: "value is not a message shop.Order"}
    decoded = decode([OLDS(id=1).SerializeToString(), old, OLDS(id=2).SerializeToString()], OLD)
    assert decoded.rows.columns.column("id").to_pylist() == [1, 2]
    assert errors(decoded) == {101: "value: name: the text is not UTF-8"}


def test_a_message_that_lacks_a_required_field_is_bad_and_an_absent_default_is_null() -> None:
    decoded = decode([OLDS(id=0).SerializeToString(), OLDS(name="x").SerializePartialToString()], OLD)
    assert decoded.rows.columns.to_pylist() == [{"id": 0, "name": None}]
    assert errors(decoded) == {101: "value is a message shop.Old that lacks id"}


def test_many_records_keep_their_order_across_pieces_with_bad_ones_between() -> None:
    count = 10_000
    values: list[bytes | None] = [
        b"\xff" if number % 999 == 0 else ORDERS(f_int64=number).SerializeToString() for number in range(count)
    ]
    decoded = decode(values, names=["f_int64"])
    expected = [number for number in range(count) if number % 999]
    assert decoded.rows.columns.column("f_int64").to_pylist() == expected
    assert good_offsets(decoded) == [100 + number for number in expected]


def test_a_tombstone_follows_its_policy() -> None:
    value = ORDERS(f_int32=1, counts=[1]).SerializeToString()
    kept = decode([value, None, b"\xff", value], names=["counts", "f_int32"], tombstone="row")
    assert kept.rows.columns.to_pylist() == [
        {"counts": [1], "f_int32": 1},
        {"counts": None, "f_int32": None},
        {"counts": [1], "f_int32": 1},
    ]
    assert bad_offsets(kept) == [102]
    assert decode([value, None]).filtered == 1
    assert bad_offsets(decode([value, None], tombstone="quarantine")) == [101]


def test_compressed_messages_are_unpacked_first() -> None:
    decoded = decode([gzipped(ORDERS(f_int32=3).SerializeToString()), b"\xff"], payload="gzip")
    assert decoded.rows.columns.column("f_int32").to_pylist() == [3]
    assert bad_offsets(decoded) == [101]


def test_an_empty_batch_has_no_rows() -> None:
    assert decode([]).rows.columns.num_rows == 0


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("f_nothing", pa.int32())]),
        pa.schema([("f_int32", pa.int64())]),
        pa.schema([]),
    ],
    ids=["unknown field", "other type", "no field"],
)
def test_a_schema_that_the_message_cannot_give_is_refused(schema: pa.Schema) -> None:
    with pytest.raises(UserError):
        decoder_for(DecodeSpec("protobuf", descriptors=DESCRIPTORS, message=ORDER), schema, Policies())


def test_a_job_without_a_message_is_refused() -> None:
    with pytest.raises(UserError, match=r"decode\.message is missing"):
        decoder_for(DecodeSpec("protobuf", descriptors=DESCRIPTORS), pa.schema([("f_int32", pa.int32())]), Policies())


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_are_decoded_safely_and_each_record_independently(values: list[bytes]) -> None:
    together = decode(list(values))
    alone = [decode([value]) for value in values]
    assert repr(together.rows.columns.to_pylist()) == repr([r for one in alone for r in one.rows.columns.to_pylist()])
    assert together.bad.errors.to_pylist() == [error for one in alone for error in one.bad.errors.to_pylist()]
