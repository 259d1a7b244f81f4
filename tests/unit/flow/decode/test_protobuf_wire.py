"""The fast path of protobuf: whatever it reads, it reads as the library does."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.flow.decode.protobuf.columns import column_readers, read_columns
from penstock.flow.decode.protobuf.reader import MessageReader
from penstock.flow.decode.protobuf.wire import NotPlainError, wire_reader
from penstock.job.messages import find_message, message_schema
from penstock.job.spec import MessageName
from tests.support.garmadon_descriptors import add_field, add_message, descriptor_set

Defaults = Literal["null", "value"]


def _ints(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, end = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    # Around every length that a varint can have.
    edges = [edge for power in range(0, 65, 7) for edge in (2**power - 1, 2**power, -(2**power)) if low <= edge < end]
    return st.one_of(st.sampled_from([*edges, low, end - 1]), st.integers(low, end - 1))


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "double": st.floats(),
    "float": st.floats(width=32),
    "int32": _ints(32, signed=True),
    "int64": _ints(64, signed=True),
    "uint32": _ints(32, signed=False),
    "uint64": _ints(64, signed=False),
    "sint32": _ints(32, signed=True),
    "sint64": _ints(64, signed=True),
    "fixed32": _ints(32, signed=False),
    "fixed64": _ints(64, signed=False),
    "sfixed32": _ints(32, signed=True),
    "sfixed64": _ints(64, signed=True),
    "bool": st.booleans(),
    "string": st.text(max_size=200),
    "bytes": st.binary(max_size=200),
}


def _flat_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="flat.proto", package="flat", syntax="proto3")
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "OPEN", "DONE")):
        state.value.add(name=name, number=number)
    # From 10 on, so that some tags have one byte and some two.
    flat = add_message(file, "Flat", [f"{kind} f_{kind} {number}" for number, kind in enumerate(SCALARS, 10)])
    add_field(flat, ".flat.State state 3")
    note = add_field(flat, "string note 2047")
    note.proto3_optional = True
    note.oneof_index = 0
    flat.oneof_decl.add(name="_note")
    return file


DESCRIPTORS = descriptor_set([_flat_file()])
NAME = MessageName("flat.Flat")
MESSAGE = find_message(DESCRIPTORS, NAME)
FLAT: Any = GetMessageClass(MESSAGE)
SCHEMA = message_schema(DESCRIPTORS, NAME)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        **{f"f_{kind}": values for kind, values in SCALARS.items()},
        "state": st.integers(-1, 4),
        "note": st.text(max_size=3),
    },
).map(lambda fields: bytes(FLAT(**fields).SerializeToString()))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message with a few bytes changed, cut out or put in; or two behind each other, which is one again."""
    value = draw(MESSAGES) + (draw(MESSAGES) if draw(st.booleans()) else b"")
    start = draw(st.integers(0, len(value)))
    end = draw(st.integers(start, min(len(value), start + 3)))
    return value[:start] + draw(st.binary(max_size=11)) + value[end:]


def library(values: list[bytes], defaults: Defaults) -> tuple[list[Any], dict[int, str]]:
    readers = column_readers(MESSAGE, defaults)
    reader = MessageReader("value", MESSAGE, SCHEMA, lambda messages: read_columns(readers, messages))
    reading = reader.read(pa.array(values, pa.binary()))
    return reading.columns.to_pylist(), dict(reading.errors)


def fast(array: pa.Array, defaults: Defaults) -> list[Any]:
    reader = wire_reader(MESSAGE, SCHEMA.names, defaults)
    assert reader is not None
    batch = pa.RecordBatch.from_arrays(reader.read(array), schema=SCHEMA)
    batch.validate(full=True)
    return list(batch.to_pylist())


@given(values=st.lists(MESSAGES, min_size=1, max_size=6), defaults=st.sampled_from(["null", "value"]))
def test_messages_as_they_are_written_take_the_fast_path_and_are_read_alike(
    values: list[bytes], defaults: Defaults
) -> None:
    array = pa.array([b"before", *values, b"behind"], pa.binary()).slice(1, len(values))
    # As text, because a number that is not one is not equal to itself.
    assert repr((fast(array, defaults), {})) == repr(library(values, defaults))


@given(values=st.lists(st.one_of(MESSAGES, damaged(), st.binary(max_size=30)), min_size=1, max_size=3))
@example(values=[b"\x60" + b"\xff" * 9 + b"\x01"])
@example(values=[b"\x60" + b"\xff" * 9 + b"\x02"])
@example(values=[b"\x60" + b"\x80" * 10 + b"\x00"])
@example(values=[b"\x60" + b"\x80" * 8 + b"\x00"])
@example(values=[b"\x60\x81\x00"])
@example(values=[b"\x60\x01\x60\x02"])
@example(values=[b"\xe0\x00\x01"])
@example(values=[b"\x60"])
@example(values=[b"\xba\x01" + b"\xff" * 9 + b"\x01"])
@example(values=[b"\xba\x01\x05ab", b"abcdef"])
@example(values=[b"\xba\x01\x02\xed\xa0"])
@example(values=[b"\xba\x01\x03\xed\xa0\x80"])
@example(values=[b"\x51\x00", b""])
def test_the_fast_path_agrees_with_the_library_on_any_bytes(values: list[bytes]) -> None:
    try:
        result = fast(pa.array(values, pa.binary()), "value")
    except NotPlainError:
        return
    assert repr((result, {})) == repr(library(values, "value"))


@pytest.mark.parametrize(
    "field",
    ["repeated int32 other 1", ".flat.Flat other 1", "int32 other 2048"],
    ids=["repeated", "message", "large number"],
)
def test_nested_messages_are_decoded_by_the_library(field: str) -> None:
    file = _flat_file()
    add_message(file, "Other", [field])
    other = find_message(descriptor_set([file]), MessageName("flat.Other"))
    assert wire_reader(other, ["other"], "null") is None


def test_closed_enums_oneofs_and_required_fields_are_decoded_by_the_library() -> None:
    old = FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    old.enum_type.add(name="State").value.add(name="NEW", number=0)
    add_message(old, "Closed", [".old.State state 1"])
    add_message(old, "Needed", ["required int32 id 1"])
    either = add_message(old, "Either", ["int32 a 1", "int32 b 2"])
    either.oneof_decl.add(name="one")
    for field in either.field:
        field.oneof_index = 0
    add_message(old, "Plain", ["int32 id 1"])
    descriptors = descriptor_set([old])
    result = {
        name: wire_reader(find_message(descriptors, MessageName(f"old.{name}")), [], "null") is not None
        for name in ("Closed", "Needed", "Either", "Plain")
    }
    assert result == {"Closed": False, "Needed": False, "Either": False, "Plain": True}
