"""Fields that the schema lacks: their values show a type.

A name that differs from a column's only in case is the same name to a table, and a reserved one is a column of the
table's own. No column can be made of such a field: a record that has a value in it is bad, and nothing of it is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from penstock.flow.columns.fitting import folded
from penstock.flow.columns.seen_types import NewFields, SeenTypes
from penstock.flow.decode.json_text import without_constants
from penstock.flow.decode.misfit import MisfitError

_NEW_DEPTH_MAX = 32
"""What nests deeper inside a new field counts as text: no column can have it, and the record will be bad."""
_NO_NAMES: frozenset[str] = frozenset()
Paths = frozenset[tuple[str, ...]]
NO_PATHS: Paths = frozenset()
_DECODE = msgspec.json.Decoder().decode

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


def in_record(
    record: bytes, fields: FieldTree, reserved: frozenset[str] = _NO_NAMES, rare: Paths = NO_PATHS
) -> NewFields:
    """The new fields of a record that Arrow reads. Raises `MisfitError` for one that cannot be new."""
    try:
        members = _DECODE(record)
    except msgspec.MsgspecError:
        # Arrow takes NaN and infinities where no column asks for them.
        members = json.loads(without_constants(record))
    return _in_members(members, fields, reserved, rare, (), depth=1)


def _in_members(
    members: Mapping[str, Any],
    fields: FieldTree,
    reserved: frozenset[str],
    rare: Paths,
    path: tuple[str, ...],
    depth: int,
) -> NewFields:
    new: NewFields = {}
    for name, value in members.items():
        below = fields.get(name, _NOTHING)
        if value is None or not isinstance(below, dict):
            continue
        clash = None if name in fields else _clash(name, fields, reserved)
        if clash is None and name not in fields and (*path, name) in rare:
            clash = "is in too few records of the batch to become a column"
        try:
            if clash is not None:
                raise MisfitError(clash)
            counts = _counts(value, below, rare, (*path, name), 0 if name in fields else depth)
        except MisfitError as misfit:
            raise misfit.inside(name) from None
        if counts.shows_values or name not in fields:
            new[name] = counts
    return new


def _counts(value: Any, fields: FieldTree, rare: Paths, path: tuple[str, ...], depth: int) -> SeenTypes:
    if value is None:
        return SeenTypes()
    if isinstance(value, bool):
        return SeenTypes(flags=1)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return SeenTypes(wholes=1)
    if isinstance(value, int | float):
        return SeenTypes(fractions=1)
    if isinstance(value, str) or depth > _NEW_DEPTH_MAX:
        return SeenTypes(texts=1)
    if isinstance(value, dict):
        return SeenTypes(objects=1, members=_in_members(value, fields, _NO_NAMES, rare, path, depth + 1))
    items = SeenTypes()
    for item in value:
        items.add(_counts(item, fields, rare, path, depth + 1))
    return SeenTypes(lists=1, items=items)


def _clash(name: str, fields: Iterable[str], reserved: frozenset[str]) -> str | None:
    column = next((column for column in fields if folded(column) == folded(name)), None)
    if column is not None:
        return f"differs only in case from the column {column}"
    if folded(name) in reserved:
        return "the name is reserved, the table keeps a column of its own under it"
    return None
