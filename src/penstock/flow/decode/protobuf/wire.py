"""Flat messages straight from their wire format into columns, field by field over a whole array of them.

The fast path of the protobuf reader. It takes messages as serialisers write them: known fields, each once, in the
order of their numbers, none of them repeated or a message. Any other array of messages is refused as a whole and read
by the library, which alone decides whether a record is bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from penstock.flow.decode.protobuf.columns import enum_names, enums, nulled
from penstock.flow.spans import BufferSpans, Integers, Mask, spans_of
from penstock.job.spec import Defaults

_Unsigned = npt.NDArray[np.uint64]
_PADDING_BYTES = 16
"""A read of eight bytes may begin after the last byte but one of a varint."""
_FIELD_NUMBER_END = 2048
"""Tags of more than two bytes are left to the library."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
    FieldDescriptor.TYPE_FIXED64: _FIXED64,
    FieldDescriptor.TYPE_SFIXED64: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_FIXED32: _FIXED32,
    FieldDescriptor.TYPE_SFIXED32: _FIXED32,
    FieldDescriptor.TYPE_STRING: _BYTES,
    FieldDescriptor.TYPE_BYTES: _BYTES,
}
_ZIGZAG = (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64)
_SIGNED_32 = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32)
_UNSIGNED_32 = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32)
_ENDS = np.uint64(0x8080808080808080)


class NotPlainError(Exception):
    """Some message of the array is not of the shape that this path knows."""


@dataclass(frozen=True, slots=True)
class _WireField:
    descriptor: FieldDescriptor
    wire: int
    tag: np.uint64
    tag_mask: np.uint64
    tag_bytes: int


class WireReader:
    """Reads the columns `names` of flat messages."""

    def __init__(self, message: Descriptor, names: Sequence[str], defaults: Defaults) -> None:
        self._names = names
        self._defaults = defaults
        self._fields = [_field(item) for item in sorted(message.fields, key=lambda field: field.number)]

    def read(self, values: pa.Array) -> list[pa.Array]:
        """Takes an array of type binary without nulls; raises `NotPlainError`."""
        cursor = _Cursor(values)
        arrays: dict[str, pa.Array] = {}
        for field in self._fields:
            rows = cursor.rows_at(field)
            requested = field.descriptor.name in self._names
            if field.wire == _BYTES:
                starts, lengths = cursor.texts(rows)
                if requested:
                    arrays[field.descriptor.name] = self._text(field.descriptor, cursor, rows, starts, lengths)
            else:
                numbers = cursor.numbers(rows, field)
                if requested:
                    arrays[field.descriptor.name] = self._number(field.descriptor, rows, numbers)
        cursor.check_end()
        return [arrays[name] for name in self._names]

    def _text(
        self, field: FieldDescriptor, cursor: _Cursor, rows: _RowsWithField, starts: Integers, lengths: Integers
    ) -> pa.Array:
        array = cursor.slices(rows, starts, lengths)
        if field.type == FieldDescriptor.TYPE_STRING:
            try:
                array = array.cast(pa.string())
            except pa.ArrowInvalid:
                raise NotPlainError from None
        return nulled(array, field, self._defaults, rows.present)

    def _number(self, field: FieldDescriptor, rows: _RowsWithField, numbers: _Unsigned) -> pa.Array:
        return nulled(_numbers(field, rows.spread(numbers)), field, self._defaults, rows.present)


def wire_reader(message: Descriptor, names: Sequence[str], defaults: Defaults) -> WireReader | None:
    """The fast reader of a message; None if the message is not flat."""
    return WireReader(message, names, defaults) if all(map(_is_plain, message.fields)) else None


def _is_plain(field: FieldDescriptor) -> bool:
    alone = field.containing_oneof is None or len(field.containing_oneof.fields) == 1
    open_enum = field.enum_type is None or (not field.enum_type.is_closed and 0 in enum_names(field.enum_type))
    flat = not field.is_repeated and not field.is_required and field.message_type is None
    return flat and alone and open_enum and field.number < _FIELD_NUMBER_END


def _field(field: FieldDescriptor) -> _WireField:
    wire = _WIRE.get(field.type, _VARINT)
    tag = field.number << 3 | wire
    if tag < 0x80:
        return _WireField(field, wire, np.uint64(tag), np.uint64(0xFF), 1)
    return _WireField(field, wire, np.uint64(tag & 0x7F | 0x80 | tag >> 7 << 8), np.uint64(0xFFFF), 2)


def _numbers(field: FieldDescriptor, numbers: _Unsigned) -> pa.Array:
    """The values of the bits on the wire."""
    if field.type in _ZIGZAG:
        if field.type == FieldDescriptor.TYPE_SINT32:
            numbers = numbers & np.uint64(0xFFFFFFFF)
        numbers = (numbers >> np.uint64(1)) ^ (~(numbers & np.uint64(1)) + np.uint64(1))
    if field.enum_type is not None:
        return enums(enum_names(field.enum_type), pa.array(numbers.astype(np.uint32).view(np.int32)))
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return pa.array(numbers.view(np.float64))
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return pa.array(numbers.astype(np.uint32).view(np.float32))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return pa.array(numbers != 0)
    if field.type in _SIGNED_32:
        return pa.array(numbers.astype(np.uint32).view(np.int32))
    if field.type in _UNSIGNED_32:
        return pa.array(numbers.astype(np.uint32).astype(np.int64))
    return pa.array(numbers.view(np.int64))


@dataclass(frozen=True, slots=True)
class _RowsWithField:
    """The messages that have a field."""

    present: Mask
    numbers: Integers | slice
    """A slice if they are all of them, which spares every selection."""

    def spread(self, values: _Unsigned) -> _Unsigned:
        if isinstance(self.numbers, slice):
            return values
        spread = np.zeros(len(self.present), np.uint64)
        spread[self.numbers] = values
        return spread


class _Cursor:
    """The read position in each message; it never leaves the message."""

    def __init__(self, values: pa.Array) -> None:
        spans = spans_of(values)
        first, end = int(spans.starts[0]), int(spans.ends[-1])
        size = end - first
        self._bytes = np.zeros(size + _PADDING_BYTES, np.uint8)
        self._bytes[:size] = spans.bytes[first:end]
        # Eight bytes from any byte on.
        self._words: _Unsigned = np.ndarray((size + _PADDING_BYTES - 7,), "<u8", buffer=self._bytes.data, strides=(1,))
        self._starts = spans.starts - first
        self._ends = spans.ends - first
        self._at = self._starts.copy()

    def rows_at(self, field: _WireField) -> _RowsWithField:
        """The messages whose next field is this one; they are moved past its tag."""
        present = ((self._words[self._at] & field.tag_mask) == field.tag) & (self._at < self._ends)
        rows = _RowsWithField(present, slice(None) if present.all() else np.flatnonzero(present))
        self._move(rows, self._at[rows.numbers] + field.tag_bytes)
        return rows

    def numbers(self, rows: _RowsWithField, field: _WireField) -> _Unsigned:
        at = self._at[rows.numbers]
        if field.wire == _VARINT:
            return self._varints(rows, at)
        words = self._words[at]
        if field.wire == _FIXED64:
            self._move(rows, at + 8)
            return words
        self._move(rows, at + 4)
        return words & np.uint64(0xFFFFFFFF)

    def texts(self, rows: _RowsWithField) -> tuple[Integers, Integers]:
        """Where the bytes of each message that has the field begin, and how many there are."""
        lengths = self._varints(rows, self._at[rows.numbers])
        if (lengths > np.uint64(len(self._bytes))).any():
            raise NotPlainError
        starts = self._at[rows.numbers].copy()
        self._move(rows, starts + lengths.view(np.int64))
        return starts, lengths.view(np.int64)

    def slices(self, rows: _RowsWithField, starts: Integers, lengths: Integers) -> pa.Array:
        """Those bytes as an array; empty where the field is absent."""
        begins, ends = self._starts.copy(), self._starts.copy()
        begins[rows.numbers] = starts
        ends[rows.numbers] = starts + lengths
        return BufferSpans(pa.py_buffer(self._bytes), begins, ends).binaries()

    def check_end(self) -> None:
        if not np.array_equal(self._at, self._ends):
            raise NotPlainError

    def _move(self, rows: _RowsWithField, to: Integers) -> None:
        if (to > self._ends[rows.numbers]).any():
            raise NotPlainError
        self._at[rows.numbers] = to

    def _varints(self, rows: _RowsWithField, at: Integers) -> _Unsigned:
        words = self._words[at]
        last = ~words & _ENDS
        # All bits up to the first byte without the continuation bit.
        inside = last ^ (last - np.uint64(1))
        sizes = np.bitwise_count(inside).astype(np.int64) >> 3
        numbers = _seven_bits(words & inside)
        long = last == 0
        if long.any():
            ninth, tenth = (self._bytes[at[long] + byte].astype(np.uint64) for byte in (8, 9))
            if ((ninth >= 0x80) & (tenth > 1)).any():
                raise NotPlainError
            tenth = np.where(ninth >= 0x80, tenth, np.uint64(0))
            numbers[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56) | tenth << np.uint64(63)
            sizes[long] = np.where(ninth >= 0x80, 10, 9)
        self._move(rows, at + sizes)
        return numbers


def _seven_bits(words: _Unsigned) -> _Unsigned:
    """The low seven bits of each of the eight bytes, closed up."""
    words = words & np.uint64(0x7F7F7F7F7F7F7F7F)
    for half, shift in ((0x007F007F007F007F, 1), (0x00003FFF00003FFF, 2), (0x000000000FFFFFFF, 4)):
        low = np.uint64(half)
        words = (words & low) | ((words & ~low) >> np.uint64(shift))
    return words
