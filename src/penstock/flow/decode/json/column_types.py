"""What Arrow's JSON reader is asked for, for each type of a schema, and how the type is made of what it read.

Arrow's reader knows no times, base64 or maps: it reads them as texts, and maps as their keys and values
(`rewriting`). It reads decimals with more digits than the column has, so that one of too many digits is found.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UserError
from penstock.flow.columns.fitting import null_mask
from penstock.flow.columns.times import UTC_MICROS, dates_or_null, timestamps_or_null
from penstock.job.schema import job_type_name

ANY_TEXT = pa.large_string()
"""Stands for a text column that takes every JSON value; no schema of a table has this type."""
KEYS, VALUES = "key", "value"
OUT_OF_RANGE = "number out of range"

_PLAIN = (pa.string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
_AS_TEXT = (pa.date32(), UTC_MICROS, pa.binary(), ANY_TEXT)
_DECIMAL_DIGITS = 76
"""Decimals are read this wide: Arrow's JSON reader does not look at the precision after scaling."""

Rows = Sequence[int] | npt.NDArray[np.int64]
Mark = Callable[[Rows, str], None]
"""Takes the numbers of rows whose value does not fit its column, and the reason."""


Known = Mapping[str, "Known | MapOf | None"]
"""Names of fields, with those of structs and of lists of structs below them; None: there are none."""


class MapOf(NamedTuple):
    """Stands for a map, whose keys are no fields, with the names below its values."""

    values: Known | MapOf | None


def known_fields(fields: Iterable[pa.Field]) -> Known:
    return {field.name: _known_below(field.type) for field in fields}


def _known_below(kind: pa.DataType) -> Known | MapOf | None:
    if pa.types.is_list(kind):
        return _known_below(kind.value_type)
    if pa.types.is_map(kind):
        return MapOf(_known_below(kind.item_type))
    return known_fields(kind) if pa.types.is_struct(kind) else None


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


def read_type(kind: pa.DataType, *, wide: bool) -> pa.DataType:
    """The type to ask the reader for; `wide` also reads decimals with too many digits, which `fit` then marks."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, read_type(child.type, wide=wide)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(read_type(kind.value_type, wide=wide))
    if pa.types.is_map(kind):
        values = pa.list_(read_type(kind.item_type, wide=wide))
        return pa.struct([(KEYS, pa.list_(pa.string())), (VALUES, values)])
    if pa.types.is_decimal(kind):
        # The reader does not see every overflow when it scales a number up. At this scale a number that it lets
        # through in spite of one is still larger than any that fits.
        before_point = kind.precision - kind.scale
        scale = (_DECIMAL_DIGITS - before_point) // 2 if wide else kind.scale
        return pa.decimal256(_DECIMAL_DIGITS, scale)
    return pa.string() if kind in _AS_TEXT else kind


def fit(array: pa.Array, kind: pa.DataType, mark: Mark, path: str) -> pa.Array:
    """What the reader read as `kind`; a struct may hold children that `kind` lacks.

    The rows of values that do not fit are marked, and their values are of no use.
    """
    if pa.types.is_struct(kind):
        children = [fit(array.field(child.name), child.type, mark, f"{path}.{child.name}") for child in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=null_mask(array))
    if pa.types.is_list(kind):
        items = fit(array.values, kind.value_type, mark_lists(array, mark), f"{path}[]")
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=null_mask(array))
    if pa.types.is_map(kind):
        keys, values = array.field(KEYS), array.field(VALUES)
        items = fit(values.values, kind.item_type, mark_lists(keys, mark), f"{path}[...]")
        return pa.MapArray.from_arrays(keys.offsets, keys.values, items, type=kind, mask=null_mask(array))
    misfits: Rows = []
    found = "string"
    if pa.types.is_timestamp(kind):
        array, misfits = timestamps_or_null(array)
    elif pa.types.is_date32(kind):
        array, misfits = dates_or_null(array)
    elif pa.types.is_binary(kind):
        array, misfits = _unbase64(array)
    elif pa.types.is_decimal(kind):
        array, misfits = _decimals(array, kind)
        found = OUT_OF_RANGE
    elif pa.types.is_floating(kind) and not pc.all(pc.is_finite(array), min_count=0).as_py():
        # A number too large for the column, or NaN or an infinity, which are not JSON.
        misfits = pc.indices_nonzero(pc.invert(pc.is_finite(array))).to_pylist()
        found = OUT_OF_RANGE
    if len(misfits):
        mark(misfits, f"{path}: expected {job_type_name(kind)}, found {found}")
    return array


def mark_lists(lists: pa.Array, mark: Mark) -> Mark:
    """Marks the rows whose lists hold the items that are marked."""
    return lambda items, reason: mark(np.searchsorted(lists.offsets.to_numpy(), items, side="right") - 1, reason)


def _decimals(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Rows]:
    with suppress(pa.ArrowInvalid):
        return array.cast(kind), []
    cut = array.cast(pa.decimal256(_DECIMAL_DIGITS, kind.scale), safe=False)
    largest = pa.scalar(Decimal((0, (9,) * kind.precision, -kind.scale)), cut.type)
    fits = pc.and_(pc.equal(cut.cast(array.type, safe=False), array), pc.less_equal(pc.abs(cut), largest))
    misfits = pc.indices_nonzero(pc.invert(fits)).to_pylist()
    return pc.if_else(fits, cut, pa.scalar(None, cut.type)).cast(kind), misfits


def _unbase64(array: pa.Array) -> tuple[pa.Array, Rows]:
    values: list[bytes | None] = []
    misfits: list[int] = []
    for row, text in enumerate(array.to_pylist()):
        try:
            values.append(None if text is None else base64.b64decode(text, validate=True))
        except ValueError:
            values.append(None)
            misfits.append(row)
    return pa.array(values, pa.binary()), misfits
