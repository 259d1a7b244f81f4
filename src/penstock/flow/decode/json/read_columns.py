"""What Arrow's JSON reader is asked for, and what becomes of the columns that it read.

Arrow's reader knows no times, base64 or maps: it reads them as texts, and maps as their keys and values (`screen`
rewrites them). It reads decimals with more digits than the column has, so that one of too many digits is found.

Fields that the schema lacks are new: their values show a type. A name that differs from a column's only in case is the
same name to a table, and a reserved one is a column of the table's own. No column can be made of such a field: a record
that has a value in it is bad, and nothing of it is lost.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UserError
from penstock.flow.columns.fitting import folded, null_mask
from penstock.flow.columns.seen_types import NewFields, SeenTypes
from penstock.flow.columns.times import UTC_MICROS, dates_or_null, timestamps_or_null
from penstock.flow.decode.json_text import JsonNumber, JsonObject
from penstock.flow.decode.misfit import MisfitError
from penstock.job.schema import job_type_name

KEYS, VALUES = "key", "value"
OUT_OF_RANGE = "number out of range"

_PLAIN = (pa.string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
_AS_TEXT = (pa.date32(), UTC_MICROS, pa.binary())
_DECIMAL_DIGITS = 76
"""Decimals are read this wide: Arrow's JSON reader does not look at the precision after scaling."""
_NEW_DEPTH_MAX = 32
"""What nests deeper inside a new field counts as text: no column can have it, and the record will be bad."""
_INT64_DIGITS_MAX = 20
_SHOWN = {pa.int64(): "wholes", pa.float64(): "fractions", pa.bool_(): "flags"}
_NO_NAMES: frozenset[str] = frozenset()

Columns = Iterable[tuple[str, pa.Array]]
Rows = Sequence[int] | npt.NDArray[np.int64]
Mark = Callable[[Rows, str], None]
"""Takes the numbers of rows whose value does not fit its column, and the reason."""

Known = Mapping[str, "Known | MapOf | None"]
"""Names of fields, with those of structs and of lists of structs below them; None: there are none."""
_NOTHING: Known = {}
"""What the schema knows of a new field."""


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


def read_type(kind: pa.DataType, path: str, *, wide: bool) -> pa.DataType:
    """The type to ask the reader for; `wide` also reads decimals with too many digits, which `fit` then marks.

    Raises `UserError` for a type that JSON records cannot be decoded to.
    """
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct([(child.name, read_type(child.type, f"{path}.{child.name}", wide=wide)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(read_type(kind.value_type, f"{path}[]", wide=wide))
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        values = pa.list_(read_type(kind.item_type, f"{path}.*", wide=wide))
        return pa.struct([(KEYS, pa.list_(pa.string())), (VALUES, values)])
    if pa.types.is_decimal128(kind):
        # The reader does not see every overflow when it scales a number up. At this scale a number that it lets
        # through in spite of one is still larger than any that fits.
        before_point = kind.precision - kind.scale
        scale = (_DECIMAL_DIGITS - before_point) // 2 if wide else kind.scale
        return pa.decimal256(_DECIMAL_DIGITS, scale)
    if kind not in _PLAIN + _AS_TEXT:
        raise UserError(f"{path}: JSON records cannot be decoded to {job_type_name(kind)}")
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
    found = "string" if kind in _AS_TEXT else OUT_OF_RANGE
    if pa.types.is_timestamp(kind):
        array, misfits = timestamps_or_null(array)
    elif pa.types.is_date32(kind):
        array, misfits = dates_or_null(array)
    elif pa.types.is_binary(kind):
        array, misfits = _unbase64(array)
    elif pa.types.is_decimal(kind):
        array, misfits = _decimals(array, kind)
    elif pa.types.is_floating(kind) and not pc.all(pc.is_finite(array), min_count=0).as_py():
        # A number too large for the column, or NaN or an infinity, which are not JSON.
        misfits = pc.indices_nonzero(pc.invert(pc.is_finite(array))).to_pylist()
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


def in_columns(
    columns: Columns, known: Known, reserved: frozenset[str], mark: Mark, path: str = "", depth: int = 1
) -> NewFields:
    """The new fields among columns that Arrow's reader inferred. Marks the rows with a name that cannot be new."""
    new: NewFields = {}
    for name, values in columns:
        below = known.get(name, _NOTHING)
        if below is None or isinstance(below, MapOf):
            continue
        clash = None if name in known else _clash(name, known, reserved)
        if clash is not None:
            rows = pc.indices_nonzero(values.is_valid()).to_pylist()
            if rows:
                mark(rows, f"{path}{name}: {clash}")
            continue
        seen = _seen_in_array(values, below, mark, f"{path}{name}.", 0 if name in known else depth)
        if seen.shows_values or (seen.count and name not in known):
            new[name] = seen
    return new


def _seen_in_array(array: pa.Array, known: Known, mark: Mark, path: str, depth: int) -> SeenTypes:
    """What an inferred array shows: the reader takes text that looks like a time for a time."""
    count, kind = len(array) - array.null_count, array.type
    if pa.types.is_null(kind):
        return SeenTypes()
    if pa.types.is_nested(kind) and depth > _NEW_DEPTH_MAX:
        return SeenTypes(texts=count)
    if pa.types.is_struct(kind):
        children = zip((child.name for child in kind), array.flatten(), strict=True)
        return SeenTypes(objects=count, members=in_columns(children, known, _NO_NAMES, mark, path, depth + 1))
    if pa.types.is_list(kind):
        items = _seen_in_array(array.values, known, mark_lists(array, mark), path, depth + 1)
        return SeenTypes(lists=count, items=items)
    return SeenTypes(**{_SHOWN.get(kind, "texts"): count})


def in_record(
    members: Mapping[str, Any], known: Known, reserved: frozenset[str] = _NO_NAMES, depth: int = 1
) -> NewFields:
    """The new fields of one record. Raises `MisfitError` for a name that cannot be new."""
    new: NewFields = {}
    for name, value in members.items():
        below = known.get(name, _NOTHING)
        if below is None or value is None or isinstance(below, MapOf):
            continue
        clash = None if name in known else _clash(name, known, reserved)
        try:
            if clash is not None:
                raise MisfitError(clash)
            seen = _seen_in_value(value, below, 0 if name in known else depth)
        except MisfitError as misfit:
            raise misfit.inside(name) from None
        if seen.shows_values or name not in known:
            new[name] = seen
    return new


def _seen_in_value(value: Any, known: Known, depth: int) -> SeenTypes:
    if value is None:
        return SeenTypes()
    if isinstance(value, bool):
        return SeenTypes(flags=1)
    if isinstance(value, JsonNumber):
        is_int64 = value.whole and len(value) <= _INT64_DIGITS_MAX and -(2**63) <= int(value) < 2**63
        return SeenTypes(wholes=1) if is_int64 else SeenTypes(fractions=1)
    if isinstance(value, str) or depth > _NEW_DEPTH_MAX:
        return SeenTypes(texts=1)
    if isinstance(value, JsonObject):
        return SeenTypes(objects=1, members=in_record(value, known, depth=depth + 1))
    items = SeenTypes()
    for item in value:
        items.add(_seen_in_value(item, known, depth + 1))
    return SeenTypes(lists=1, items=items)


def _clash(name: str, known: Iterable[str], reserved: frozenset[str]) -> str | None:
    column = next((column for column in known if folded(column) == folded(name)), None)
    if column is not None:
        return f"differs only in case from the column {column}"
    if folded(name) in reserved:
        return "the name is reserved, the table keeps a column of its own under it"
    return None
