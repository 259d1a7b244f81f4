"""Parsed protobuf messages into Arrow columns: one pass per field, each of them a loop inside C.

A field with presence is null where it is absent. One without has its default there, which `defaults` makes null
or keeps; a repeated field or a map is empty there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from penstock.flow.decode.misfit import MisfitError
from penstock.job.messages import SCALARS, TIMESTAMP_MESSAGE, map_entry
from penstock.job.spec import Defaults

ColumnReader = Callable[[Sequence[Message]], pa.Array]
"""From messages to the column of one field; raises `MisfitError` if a column cannot hold it."""

_ArrayOf = Callable[[Sequence[Any]], pa.Array]
_UTC_MICROS = pa.timestamp("us", "UTC")
_SECONDS_MIN, _SECONDS_END = -62_135_596_800, 253_402_300_800
"""The years 1 to 9999, as `google.protobuf.Timestamp` has them."""
_NANOS_END = 1_000_000_000
_UINT64 = (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64)


def column_readers(
    message: Descriptor, defaults: Defaults, names: Collection[str] | None = None
) -> dict[str, ColumnReader]:
    """A reader for each of the named fields in their order, or for all; the others cost nothing but their parsing."""
    fields = message.fields if names is None else [message.fields_by_name[name] for name in names]
    return {field.name: _column(field, defaults) for field in fields}


def read_columns(readers: Mapping[str, ColumnReader], messages: Sequence[Message]) -> list[pa.Array]:
    """One array per reader; raises `MisfitError`, which names the field but not the message."""
    arrays = []
    for name, reader in readers.items():
        try:
            arrays.append(reader(messages))
        except MisfitError as misfit:
            raise misfit.inside(name) from None
    return arrays


def _column(field: FieldDescriptor, defaults: Defaults) -> ColumnReader:
    entry = map_entry(field)
    if entry is not None:
        return _map_column(field, entry, defaults)
    if field.is_repeated:
        return _list_column(field, defaults)
    values = _values(field, defaults)
    value_of, has = attrgetter(field.name), methodcaller("HasField", field.name)

    def read(messages: Sequence[Message]) -> pa.Array:
        array = values(list(map(value_of, messages)))
        present = np.fromiter(map(has, messages), np.bool_, len(messages)) if field.has_presence else None
        return nulled(array, field, defaults, present)

    return read


def _list_column(field: FieldDescriptor, defaults: Defaults) -> ColumnReader:
    values = _values(field, defaults)
    value_of = attrgetter(field.name)

    def read(messages: Sequence[Message]) -> pa.Array:
        lists = list(map(value_of, messages))
        return pa.ListArray.from_arrays(_offsets(lists), values(list(chain.from_iterable(lists))))

    return read


def _map_column(field: FieldDescriptor, entry: Descriptor, defaults: Defaults) -> ColumnReader:
    # As text, since a string that is not UTF-8 comes as bytes, which have no order among strings.
    by_text = entry.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING
    keys, items = (_values(entry.fields_by_name[name], defaults) for name in ("key", "value"))
    value_of = attrgetter(field.name)

    def read(messages: Sequence[Message]) -> pa.Array:
        maps = list(map(value_of, messages))
        # The wire has no order of entries; the same record must give the same row every time it is read.
        sorted_keys = [sorted(item, key=str) for item in maps] if by_text else list(map(sorted, maps))
        values = [entries[key] for entries, some in zip(maps, sorted_keys, strict=True) for key in some]
        return pa.MapArray.from_arrays(
            _offsets(sorted_keys), keys(list(chain.from_iterable(sorted_keys))), items(values)
        )

    return read


def _values(field: FieldDescriptor, defaults: Defaults) -> _ArrayOf:
    """How a list of one field's values becomes an array without nulls."""
    if field.message_type is not None:
        if field.message_type.full_name == TIMESTAMP_MESSAGE:
            return _timestamps
        return _structs(field.message_type, defaults)
    if field.enum_type is not None:
        names = enum_names(field.enum_type)
        return lambda values: enums(names, values)
    if field.type in _UINT64:
        return lambda values: pa.array(np.array(values, np.uint64).view(np.int64))
    if field.type == FieldDescriptor.TYPE_STRING:
        return _texts
    return lambda values: pa.array(values, SCALARS[field.type])


def _texts(values: Sequence[Any]) -> pa.Array:
    """Strings, or `MisfitError`: proto2 lets any bytes pass for a string, and hands them out as bytes."""
    try:
        return pa.array(values, pa.string())
    except pa.ArrowInvalid:
        raise MisfitError("the text is not UTF-8") from None


def _structs(message: Descriptor, defaults: Defaults) -> _ArrayOf:
    readers = column_readers(message, defaults)

    def read(values: Sequence[Message]) -> pa.Array:
        return pa.StructArray.from_arrays(read_columns(readers, values), names=list(readers))

    return read


def _timestamps(values: Sequence[Any]) -> pa.Array:
    seconds = np.fromiter(map(attrgetter("seconds"), values), np.int64, len(values))
    nanos = np.fromiter(map(attrgetter("nanos"), values), np.int64, len(values))
    believed = (seconds >= _SECONDS_MIN) & (seconds < _SECONDS_END) & (nanos >= 0) & (nanos < _NANOS_END)
    if not believed.all():
        first = int(np.argmin(believed))
        raise MisfitError(f"{seconds[first]} s {nanos[first]} ns is not a time of the years 1 to 9999")
    return pa.array(seconds * 1_000_000 + nanos // 1000).view(_UTC_MICROS)


def enum_names(enum: EnumDescriptor) -> dict[int, str]:
    """By number; of two names for one number the first counts."""
    return {value.number: value.name for value in reversed(enum.values)}


def enums(names: dict[int, str], numbers: Sequence[int] | pa.Array) -> pa.Array:
    """Names as strings; a number that the descriptor set does not know yet as its digits."""
    coded = pa.array(numbers, pa.int32()).dictionary_encode()
    texts = [names.get(number, str(number)) for number in coded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(coded.indices, pa.array(texts, pa.string())).dictionary_decode()


def _offsets(parts: Sequence[Any]) -> pa.Array:
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, parts), np.int32, len(parts)), out=offsets[1:])
    return pa.array(offsets)


def nulled(
    array: pa.Array, field: FieldDescriptor, defaults: Defaults, present: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """The values of a field, null where it is absent or at a default that is to be null."""
    if field.has_presence and present is not None:
        return _where(array, present)
    return _defaults_as_null(array, field) if defaults == "null" else array


def _defaults_as_null(array: pa.Array, field: FieldDescriptor) -> pa.Array:
    if field.enum_type is not None:
        first = pa.scalar(enum_names(field.enum_type)[0], pa.string())
        return _where(array, np.asarray(pc.not_equal(array, first)))
    if array.type in (pa.string(), pa.binary()):
        return _where(array, np.diff(np.frombuffer(array.buffers()[1], np.int32, len(array) + 1)) != 0)
    values = array.to_numpy(zero_copy_only=False)
    return _where(array, values != values.dtype.type(0))


def _where(array: pa.Array, keep: npt.NDArray[np.bool_]) -> pa.Array:
    """The array, null where `keep` is false; takes an array that was just built and has no nulls of its own."""
    if keep.all():
        return array
    validity = pa.py_buffer(np.packbits(keep, bitorder="little"))
    if pa.types.is_struct(array.type):
        return pa.StructArray.from_arrays(array.flatten(), fields=list(array.type), mask=pa.array(~keep))
    return pa.Array.from_buffers(array.type, len(array), [validity, *array.buffers()[1:]])
