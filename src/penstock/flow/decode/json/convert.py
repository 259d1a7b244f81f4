"""What Arrow's JSON reader is asked to read for each type of a schema, and the kernels that make the type of it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UserError
from penstock.flow.columns.fitting import null_mask
from penstock.flow.decode.json.times import UTC_MICROS, timestamps
from penstock.job.schema import job_type_name

_PLAIN = (pa.string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
_AS_TEXT = (pa.date32(), UTC_MICROS, pa.binary())

_DECIMAL_DIGITS_MAX = 38
_DECIMAL_READ_DIGITS = 76
"""Decimals are first read this wide: Arrow's JSON reader does not look at the precision after scaling."""
_FLOAT_DIGITS = 18
"""Beyond the point: as many as programs write that have floating numbers where decimals are wanted."""
_DOUBLE_DIGITS = 14
"""A decimal of so many digits is the nearest to its double, also after a calculation or two."""
Mark = Callable[[npt.NDArray[np.int64]], None]
"""Takes the numbers of rows."""


def check_schema(schema: pa.Schema) -> None:
    """Raises `UserError` for a type that JSON records cannot be decoded to."""
    if not len(schema):
        raise UserError("the schema has no fields", hint="name at least one field of the records")
    for field in schema:
        _check_type(field.name, field.type)


def _check_type(path: str, kind: pa.DataType) -> None:
    if pa.types.is_struct(kind) and kind.num_fields:
        for child in kind:
            _check_type(f"{path}.{child.name}", child.type)
    elif pa.types.is_list(kind):
        _check_type(f"{path}[]", kind.value_type)
    elif pa.types.is_map(kind) and kind.key_type == pa.string():
        _check_type(f"{path}.*", kind.item_type)
    elif kind not in _PLAIN + _AS_TEXT and not pa.types.is_decimal128(kind):
        raise UserError(f"{path}: JSON records cannot be decoded to {job_type_name(kind)}")


def read_type(kind: pa.DataType) -> pa.DataType:
    """The type to ask the JSON reader for; `fit` makes `kind` of it."""
    return _with_leaves(kind, lambda leaf: leaf.scale)


def wide_type(kind: pa.DataType) -> pa.DataType:
    """Like `read_type`, but the reader takes decimals with more digits too: `fit` can mark them.

    Not with as many as there is room for: the reader does not see every overflow when it scales a number up. At this
    scale a number that it lets through in spite of one is still larger than any that fits.
    """
    return _with_leaves(kind, _wide_scale)


def _wide_scale(kind: pa.DataType) -> int:
    """Of short decimals no more than 128 bits can hold of those that fit: their division takes half the time."""
    before_point: int = kind.precision - kind.scale
    short = _DECIMAL_DIGITS_MAX - before_point
    return short if short - kind.scale >= _FLOAT_DIGITS else (_DECIMAL_READ_DIGITS - before_point) // 2


def _with_leaves(kind: pa.DataType, scale_of: Callable[[pa.DataType], int]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _with_leaves(each.type, scale_of)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_with_leaves(kind.value_type, scale_of))
    if pa.types.is_decimal(kind):
        return pa.decimal256(_DECIMAL_READ_DIGITS, scale_of(kind))
    return pa.string() if kind in _AS_TEXT else kind


def holds(kind: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type is or holds such a one, at any depth but inside of maps."""
    if pa.types.is_struct(kind):
        return any(holds(each.type, is_one) for each in kind)
    return is_one(kind) or (pa.types.is_list(kind) and holds(kind.value_type, is_one))


def has_infinite(array: pa.Array) -> bool:
    """Whether a number is infinite, at any depth."""
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.is_inf(array), min_count=0).as_py())
    if pa.types.is_struct(array.type):
        return any(map(has_infinite, array.flatten()))
    return pa.types.is_list(array.type) and has_infinite(array.flatten())


def fit(array: pa.Array, kind: pa.DataType, mark: Mark | None = None) -> pa.Array:
    """The array as `kind`; a struct may hold children that `kind` lacks. Raises `pa.ArrowInvalid`.

    With `mark`, decimals of `wide_type` that have too many digits are no error but null, and their rows are marked.
    """
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        children = [fit(array.field(each.name), each.type, mark) for each in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=null_mask(array))
    if pa.types.is_list(kind):
        items = fit(array.values, kind.value_type, _mark_lists(array, mark))
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=null_mask(array))
    if pa.types.is_timestamp(kind):
        return timestamps(array)
    if pa.types.is_binary(kind):
        return _unbase64(array)
    if mark is not None and pa.types.is_decimal(kind):
        return _fit_decimals(array, kind, mark)
    return array.cast(kind)


def _mark_lists(array: pa.Array, mark: Mark | None) -> Mark | None:
    """Marks the lists that hold the items which are marked."""
    if mark is None:
        return None
    return lambda items: mark(np.searchsorted(array.offsets.to_numpy(), items, side="right") - 1)


def _fit_decimals(array: pa.Array, kind: pa.DataType, mark: Mark) -> pa.Array:
    # Either way cuts digits off at both ends; what it gets wrong by that differs when it is made wide again.
    if not len(array):
        return array.cast(kind)
    if kind.precision <= _DOUBLE_DIGITS:
        return _rounded(array, kind, mark)
    array = _narrowed(array)
    cut = array.cast(pa.decimal128(_DECIMAL_DIGITS_MAX, kind.scale), safe=False)
    largest = Decimal((0, (9,) * kind.precision, -kind.scale))
    in_range = pc.and_(
        pc.less_equal(cut, pa.scalar(largest, cut.type)), pc.greater_equal(cut, pa.scalar(-largest, cut.type))
    )
    fits = pc.and_(pc.equal(cut.cast(array.type, safe=False), array), in_range)
    mark(pc.indices_nonzero(pc.invert(fits)).to_numpy().astype(np.int64))
    return pc.if_else(fits, cut, pa.scalar(None, cut.type)).cast(kind)


def _rounded(array: pa.Array, kind: pa.DataType, mark: Mark) -> pa.Array:
    """The decimals by way of doubles, which can tell all of the type apart: a third of the time of their division."""
    read = _words(array, 4)
    beyond = 10.0**kind.precision
    doubles = (read[:, 1] * 2.0**64 + read[:, 0].view(np.uint64)) / 10.0 ** (array.type.scale - kind.scale)
    whole = np.rint(np.clip(doubles, -beyond, beyond)).astype(np.int64)
    found = np.empty((len(whole), 2), np.int64)
    found[:, 0], found[:, 1] = whole, whole >> 63
    cut = pa.Array.from_buffers(pa.decimal128(_DECIMAL_DIGITS_MAX, kind.scale), len(whole), [None, pa.py_buffer(found)])
    wide = _words(cut.cast(pa.decimal128(_DECIMAL_DIGITS_MAX, array.type.scale), safe=False), 2)
    fits = np.logical_and.reduce(
        [
            read[:, 0] == wide[:, 0],
            read[:, 1] == wide[:, 1],
            read[:, 2] == wide[:, 1] >> 63,
            read[:, 3] == read[:, 2],
            np.abs(whole) < beyond,
        ]
    )
    known = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else True
    mark(np.flatnonzero(~fits & known))
    valid = fits & known
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(whole), [bits, pa.py_buffer(found)])


def _words(array: pa.Array, each: int) -> npt.NDArray[np.int64]:
    """Decimals as the words of eight bytes that they are made of."""
    words = np.frombuffer(array.buffers()[1], np.int64)[: each * (array.offset + len(array))]
    return words.reshape(-1, each)[array.offset :]


def _narrowed(array: pa.Array) -> pa.Array:
    """The decimals in half as many bits, if none of them needs more."""
    scale = array.type.scale
    extremes = pc.min_max(array).as_py().values()
    if scale > _DECIMAL_DIGITS_MAX or any(
        abs(each) >= 10 ** (_DECIMAL_DIGITS_MAX - scale) for each in extremes if each
    ):
        return array
    return array.cast(pa.decimal128(_DECIMAL_DIGITS_MAX, scale), safe=False)


def _unbase64(array: pa.Array) -> pa.Array:
    try:
        values = [None if text is None else base64.b64decode(text, validate=True) for text in array.to_pylist()]
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from None
    return pa.array(values, pa.binary())
