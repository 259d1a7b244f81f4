"""Descriptor sets: which message a job means, and which columns it becomes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from penstock.errors import UserError
from penstock.job.messages import find_message, garmadon_schema, message_schema
from penstock.job.spec import MessageName
from tests.support.garmadon_descriptors import (
    BODIES,
    HEADER,
    PACKAGE,
    add_field,
    add_message,
    descriptor_set,
    garmadon_descriptors,
    named,
)


def shop(*fields: str, name: str = "Order", file: str = "shop.proto") -> FileDescriptorProto:
    made = FileDescriptorProto(name=file, package="shop", syntax="proto3")
    add_message(made, name, fields)
    return made


def schema_of(*fields: str) -> pa.Schema:
    return message_schema(descriptor_set([shop(*fields)]), MessageName("shop.Order"))


def test_two_descriptor_files_that_define_one_name_are_distinguished() -> None:
    descriptors = garmadon_descriptors()
    spark = message_schema(descriptors, named("TaskEvent", "spark_event.proto"))
    flink = message_schema(descriptors, named("TaskEvent", "flink_event.proto"))
    assert (len(spark), spark.names[0]) == (35, "start_time")
    assert (len(flink), flink.names[0]) == (28, "job_id")


def test_a_name_that_several_files_define_is_refused_with_the_files() -> None:
    with pytest.raises(UserError) as refused:
        find_message(garmadon_descriptors(), named("TaskEvent"))
    assert refused.value.primary == f"2 files of the descriptor set define {PACKAGE}.TaskEvent"
    assert refused.value.detail == "files: spark_event.proto, flink_event.proto"


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (named("FsEvents"), f"did you mean {PACKAGE}.FsEvent?"),
        (MessageName("FsEvent"), f"did you mean {PACKAGE}.FsEvent?"),
        (named("Header", "event_headers.proto"), "did you mean event_header.proto?"),
        (named("Header", "spark_event.proto"), f"did you mean {PACKAGE}.TaskEvent?"),
        (MessageName(""), ""),
    ],
)
def test_an_unknown_message_or_file_is_refused_with_the_nearest(message: MessageName, hint: str) -> None:
    with pytest.raises(UserError) as refused:
        find_message(garmadon_descriptors(), message)
    assert refused.value.hint == hint


def test_a_message_inside_a_message_is_found_by_its_full_name() -> None:
    schema = message_schema(garmadon_descriptors(), named("JVMStatisticsData.Property"))
    assert schema.names == ["name", "value"]


@pytest.mark.parametrize("descriptors", [b"", b"\xff\xff", b"\x08\x01"], ids=["empty", "garbage", "another message"])
def test_an_invalid_descriptor_set_is_refused(descriptors: bytes) -> None:
    with pytest.raises(UserError, match="not a descriptor set"):
        find_message(descriptors, MessageName("a.B"))


def test_a_set_made_without_its_imports_is_refused_with_the_missing_file() -> None:
    file = shop(".google.protobuf.Timestamp at 1")
    file.dependency.append("google/protobuf/timestamp.proto")
    with pytest.raises(UserError) as refused:
        message_schema(descriptor_set([file]), MessageName("shop.Order"))
    assert refused.value.primary == "the descriptor set lacks google/protobuf/timestamp.proto, which shop.proto imports"


def test_a_set_whose_parts_do_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match=r"shop\.proto of the descriptor set cannot be used"):
        message_schema(descriptor_set([shop(".shop.Nowhere at 1")]), MessageName("shop.Order"))


def test_scalars_keep_their_width_and_unsigned_ones_become_signed() -> None:
    kinds = "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool string bytes"
    schema = schema_of(*(f"{kind} f_{kind} {number}" for number, kind in enumerate(kinds.split(), 1)))
    assert [(field.name[2:], str(field.type)) for field in schema] == [
        ("double", "double"),
        ("float", "float"),
        ("int32", "int32"),
        ("int64", "int64"),
        ("uint32", "int64"),
        ("uint64", "int64"),
        ("sint32", "int32"),
        ("sint64", "int64"),
        ("fixed32", "int64"),
        ("fixed64", "int64"),
        ("sfixed32", "int32"),
        ("sfixed64", "int64"),
        ("bool", "bool"),
        ("string", "string"),
        ("bytes", "binary"),
    ]


def test_lists_maps_structs_enums_and_times_have_columns_of_their_kind() -> None:
    times = FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = shop("repeated int32 counts 1", ".google.protobuf.Timestamp at 2", ".shop.State state 3")
    file.dependency.append(times.name)
    file.enum_type.add(name="State").value.add(name="OPEN", number=0)
    order = file.message_type[0]
    line = order.nested_type.add(name="Line")
    add_field(line, "string item 1")
    add_field(order, "repeated .shop.Order.Line lines 4")
    add_field(order, ".shop.Order.Line first 5")
    entry = order.nested_type.add(name="PricesEntry")
    entry.options.map_entry = True
    add_field(entry, "string key 1")
    add_field(entry, "double value 2")
    add_field(order, "repeated .shop.Order.PricesEntry prices 6")
    schema = message_schema(descriptor_set([times, file]), MessageName("shop.Order"))
    line_type = pa.struct([("item", pa.string())])
    assert schema == pa.schema(
        [
            ("counts", pa.list_(pa.int32())),
            ("at", pa.timestamp("us", "UTC")),
            ("state", pa.string()),
            ("lines", pa.list_(line_type)),
            ("first", line_type),
            ("prices", pa.map_(pa.string(), pa.float64())),
        ]
    )


def test_a_message_that_contains_itself_is_refused() -> None:
    with pytest.raises(UserError) as refused:
        schema_of("string name 1", "repeated .shop.Order parts 2")
    assert refused.value.primary == "the message shop.Order contains itself: a table cannot hold it"
    assert refused.value.detail == "by way of shop.Order.parts"


def test_messages_without_fields_are_refused_outside_and_inside() -> None:
    with pytest.raises(UserError, match=r"shop\.Order has no fields"):
        schema_of()
    file = shop(".shop.Nothing nothing 1")
    add_message(file, "Nothing", [])
    with pytest.raises(UserError, match=r"shop\.Nothing has no fields"):
        message_schema(descriptor_set([file]), MessageName("shop.Order"))


def test_fields_that_cannot_be_columns_are_refused() -> None:
    with pytest.raises(UserError, match=r"shop\.Order\._penstock_id cannot be a column"):
        schema_of("string _penstock_id 1")
    with pytest.raises(UserError) as refused:
        schema_of("string id 1", "string ID 2")
    assert refused.value.primary == "the field shop.Order.ID cannot be a column"


def test_an_event_has_the_columns_of_header_body_and_envelope_in_this_order() -> None:
    schema = garmadon_schema(garmadon_descriptors(), HEADER, BODIES[2000])
    header = message_schema(garmadon_descriptors(), HEADER)
    assert schema.names == [*header.names, "type", "limit", "value", "timestamp"]
    assert schema.field("tags").type == pa.list_(pa.string())
    assert schema.field("timestamp").type == pa.int64()


def test_statistics_of_a_jvm_have_the_columns_of_the_heap() -> None:
    schema = garmadon_schema(garmadon_descriptors(), HEADER, BODIES[1001])
    assert [(field.name, field.type) for field in schema][-5:] == [
        (name, pa.int64()) for name in ("init", "committed", "used", "max", "timestamp")
    ]


@pytest.mark.parametrize("clash", ["hostname", "Timestamp"])
def test_header_body_and_envelope_that_share_a_name_are_refused_when_the_job_is_read(clash: str) -> None:
    header, body = shop("string hostname 1", name="Header"), shop(f"string {clash} 1", file="body.proto")
    descriptors = descriptor_set([header, body])
    with pytest.raises(UserError) as refused:
        garmadon_schema(descriptors, MessageName("shop.Header"), MessageName("shop.Order"))
    other = {"hostname": "shop.Order and shop.Header", "Timestamp": "the envelope and shop.Order"}[clash]
    assert refused.value.primary == f"{other} both have a field {clash.lower()}: a flat row can hold one"


def test_equal_field_numbers_of_header_and_body_do_not_clash() -> None:
    descriptors = descriptor_set([shop("string a 1", name="Header"), shop("int64 b 1", file="body.proto")])
    schema = garmadon_schema(descriptors, MessageName("shop.Header"), MessageName("shop.Order"))
    assert schema.names == ["a", "b", "timestamp"]
