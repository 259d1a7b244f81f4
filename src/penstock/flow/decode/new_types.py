"""Types for fields that the schema lacks: what their values show, and the type that holds two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from penstock.flow.decode.json_text import JsonNumber, JsonObject

DEPTH_MAX = 32
"""What nests deeper inside a new field counts as text: no column can have it, and the record will say so."""

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INT64_DIGITS_MAX = 20
_NUMBERS = (pa.int64(), pa.float64())


def type_of(value: Any, depth: int = 1) -> pa.DataType:
    """The type that a JSON value shows; `null` where it shows none."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, JsonNumber):
        return pa.int64() if _is_int64(value) else pa.float64()
    if isinstance(value, str) or depth > DEPTH_MAX:
        return pa.string()
    if isinstance(value, JsonObject):
        return pa.struct([(name, type_of(each, depth + 1)) for name, each in value.items()])
    item = pa.null()
    for each in value:
        item = wider(item, type_of(each, depth + 1))
    return pa.list_(item)


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type for values of both: structs and lists grow together, int64 and double are double, else string."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if one in _NUMBERS and other in _NUMBERS:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(wider(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(list(merged([_children(one), _children(other)]).items()))
    return pa.string()


def merged(reports: Iterable[Mapping[str, pa.DataType]]) -> dict[str, pa.DataType]:
    """All fields of the reports, in the order in which they first appear."""
    types: dict[str, pa.DataType] = {}
    for report in reports:
        for name, kind in report.items():
            types[name] = wider(types[name], kind) if name in types else kind
    return types


def arrow_inferred(kind: pa.DataType, depth: int = 1) -> pa.DataType:
    """A type that Arrow's reader inferred, in our terms: it takes text that looks like a time for a time."""
    if pa.types.is_timestamp(kind) or (pa.types.is_nested(kind) and depth > DEPTH_MAX):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(arrow_inferred(kind.value_type, depth + 1))
    if pa.types.is_struct(kind):
        return pa.struct([(name, arrow_inferred(child, depth + 1)) for name, child in _children(kind).items()])
    return kind


def shown(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Without what has shown no type yet: nulls, empty lists and objects, at any depth."""
    known = {name: _shown(kind) for name, kind in types.items()}
    return {name: kind for name, kind in known.items() if kind is not None}


def _shown(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_null(kind):
        return None
    if pa.types.is_list(kind):
        item = _shown(kind.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_struct(kind):
        children = shown(_children(kind))
        return pa.struct(list(children.items())) if children else None
    return kind


def _children(kind: pa.StructType) -> dict[str, pa.DataType]:
    return {kind.field(index).name: kind.field(index).type for index in range(kind.num_fields)}


def _is_int64(number: JsonNumber) -> bool:
    return number.whole and len(number) <= _INT64_DIGITS_MAX and _INT64_MIN <= int(number) <= _INT64_MAX
