"""Fields that the schema lacks: their values show a type.

A name that differs from a column's only in case is the same name to a table, and a reserved one is a column of the
table's own. No column can be made of such a field: a record that has a value in it is bad, and nothing of it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.fitting import folded
from penstock.flow.columns.seen_types import NewFields, SeenTypes
from penstock.flow.decode.json.reader import Mark, mark_lists
from penstock.flow.decode.json_text import JsonNumber, JsonObject
from penstock.flow.decode.misfit import MisfitError

_NEW_DEPTH_MAX = 32
"""What nests deeper inside a new field counts as text: no column can have it, and the record will be bad."""
_INT64_DIGITS_MAX = 20
_SHOWN = {pa.int64(): "wholes", pa.float64(): "fractions", pa.bool_(): "flags"}
_NO_NAMES: frozenset[str] = frozenset()

Columns = Iterable[tuple[str, pa.Array]]
FieldTree = dict[str, "FieldTree | MapOf | pa.Decimal128Type | None"]
"""Names of fields, with those of structs and of lists of structs below them, and the types of decimals."""
_NOTHING: FieldTree = {}
"""What the schema knows of a new field."""


class MapOf(NamedTuple):
    """Stands for a map, whose keys are not fields, with the names below its values."""

    values: FieldTree | MapOf | pa.Decimal128Type | None


def field_tree(fields: Iterable[pa.Field]) -> FieldTree:
    return {field.name: _subtree(field.type) for field in fields}


def _subtree(kind: pa.DataType) -> FieldTree | MapOf | pa.Decimal128Type | None:
    if pa.types.is_list(kind):
        return _subtree(kind.value_type)
    if pa.types.is_map(kind):
        return MapOf(_subtree(kind.item_type))
    if pa.types.is_struct(kind):
        return field_tree(kind)
    return kind if pa.types.is_decimal128(kind) else None


def in_columns(
    columns: Columns, fields: FieldTree, reserved: frozenset[str], mark: Mark, path: str = "", depth: int = 1
) -> NewFields:
    """The new fields among columns that Arrow's reader inferred. Marks the rows with a name that cannot be new."""
    new: NewFields = {}
    for name, values in columns:
        below = fields.get(name, _NOTHING)
        if not isinstance(below, dict):
            continue
        clash = None if name in fields else _clash(name, fields, reserved)
        if clash is not None:
            rows = pc.indices_nonzero(values.is_valid()).to_pylist()
            if rows:
                mark(rows, f"{path}{name}: {clash}")
            continue
        counts = _counts_in_array(values, below, mark, f"{path}{name}.", 0 if name in fields else depth)
        if counts.shows_values or (counts.count and name not in fields):
            new[name] = counts
    return new


def _counts_in_array(array: pa.Array, fields: FieldTree, mark: Mark, path: str, depth: int) -> SeenTypes:
    """What an inferred array shows: the reader takes text that looks like a time for a time."""
    count, kind = len(array) - array.null_count, array.type
    if pa.types.is_null(kind):
        return SeenTypes()
    if pa.types.is_nested(kind) and depth > _NEW_DEPTH_MAX:
        return SeenTypes(texts=count)
    if pa.types.is_struct(kind):
        children = zip((child.name for child in kind), array.flatten(), strict=True)
        return SeenTypes(objects=count, members=in_columns(children, fields, _NO_NAMES, mark, path, depth + 1))
    if pa.types.is_list(kind):
        items = _counts_in_array(array.values, fields, mark_lists(array, mark), path, depth + 1)
        return SeenTypes(lists=count, items=items)
    return SeenTypes(**{_SHOWN.get(kind, "texts"): count})


def in_record(
    members: Mapping[str, Any], fields: FieldTree, reserved: frozenset[str] = _NO_NAMES, depth: int = 1
) -> NewFields:
    """The new fields of one record. Raises `MisfitError` for a name that cannot be new."""
    new: NewFields = {}
    for name, value in members.items():
        below = fields.get(name, _NOTHING)
        if value is None or not isinstance(below, dict):
            continue
        clash = None if name in fields else _clash(name, fields, reserved)
        try:
            if clash is not None:
                raise MisfitError(clash)
            counts = _counts_in_value(value, below, 0 if name in fields else depth)
        except MisfitError as misfit:
            raise misfit.inside(name) from None
        if counts.shows_values or name not in fields:
            new[name] = counts
    return new


def _counts_in_value(value: Any, fields: FieldTree, depth: int) -> SeenTypes:
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
        return SeenTypes(objects=1, members=in_record(value, fields, depth=depth + 1))
    items = SeenTypes()
    for item in value:
        items.add(_counts_in_value(item, fields, depth + 1))
    return SeenTypes(lists=1, items=items)


def _clash(name: str, fields: Iterable[str], reserved: frozenset[str]) -> str | None:
    column = next((column for column in fields if folded(column) == folded(name)), None)
    if column is not None:
        return f"differs only in case from the column {column}"
    if folded(name) in reserved:
        return "the name is reserved, the table keeps a column of its own under it"
    return None
