"""Fields of records that the schema lacks, found in JSON values and in what Arrow's reader inferred."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from penstock.flow.columns.seen_types import NewFields, SeenTypes
from penstock.flow.decode.json.text import JsonNumber, JsonObject

DEPTH_MAX = 32
"""What nests deeper inside a new field counts as text: no column can have it, and the record will say so."""

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INT64_DIGITS_MAX = 20

Known = Mapping[str, "Known | None"]
"""Fields that the schema has, with those of structs and of lists of structs below them; None: nothing to look into."""


def note_value(into: SeenTypes, value: Any, depth: int = 1) -> None:
    """Count one JSON value."""
    if value is None:
        return
    if isinstance(value, bool):
        into.flags += 1
    elif isinstance(value, JsonNumber):
        if _is_int64(value):
            into.wholes += 1
        else:
            into.fractions += 1
    elif isinstance(value, str) or depth > DEPTH_MAX:
        into.texts += 1
    elif isinstance(value, JsonObject):
        into.objects += 1
        for name, each in value.items():
            note_value(into.members.setdefault(name, SeenTypes()), each, depth + 1)
    else:
        into.lists += 1
        for each in value:
            note_value(into.of_items(), each, depth + 1)


def note_array(into: SeenTypes, array: pa.Array, depth: int = 1) -> None:
    """Count values whose type Arrow's reader inferred: it takes text that looks like a time for a time."""
    count, kind = len(array) - array.null_count, array.type
    if pa.types.is_null(kind):
        return
    if pa.types.is_nested(kind) and depth > DEPTH_MAX:
        into.texts += count
    elif pa.types.is_struct(kind):
        into.objects += count
        for child, values in zip(kind, array.flatten(), strict=True):
            note_array(into.members.setdefault(child.name, SeenTypes()), values, depth + 1)
    elif pa.types.is_list(kind):
        into.lists += count
        note_array(into.of_items(), array.flatten(), depth + 1)
    elif pa.types.is_int64(kind):
        into.wholes += count
    elif pa.types.is_floating(kind):
        into.fractions += count
    elif pa.types.is_boolean(kind):
        into.flags += count
    else:
        into.texts += count


def known_fields(fields: Iterable[pa.Field]) -> Known:
    return {each.name: _known_below(each.type) for each in fields}


def note_members(found: NewFields, members: JsonObject, known: Known) -> None:
    """Count the members of a record, or of an object in it, that are not known."""
    for name, value in members.items():
        if name not in known:
            note_value(found.setdefault(name, SeenTypes()), value)
            continue
        below = known[name]
        inner = None if below is None else _new_within(value, below)
        if inner is not None:
            found.setdefault(name, SeenTypes()).add(inner)


def new_in_columns(columns: Iterable[tuple[str, pa.Array]], known: Known) -> NewFields:
    """What the columns, or the members of a struct, that Arrow's reader has read show of new fields."""
    found: NewFields = {}
    for name, values in columns:
        if name not in known:
            found[name] = SeenTypes()
            note_array(found[name], values)
        elif (inside := _new_in_array(values, known[name])) is not None:
            found[name] = inside
    return found


def _new_in_array(array: pa.Array, known: Known | None) -> SeenTypes | None:
    if known is None:
        return None
    if pa.types.is_list(array.type):
        inner = _new_in_array(array.flatten(), known)
        return None if inner is None else SeenTypes(lists=len(array) - array.null_count, items=inner)
    if not pa.types.is_struct(array.type) or all(
        child.name in known and known[child.name] is None for child in array.type
    ):
        return None
    members = new_in_columns(zip((child.name for child in array.type), array.flatten(), strict=True), known)
    return SeenTypes(objects=len(array) - array.null_count, members=members) if members else None


def _known_below(kind: pa.DataType) -> Known | None:
    if pa.types.is_list(kind):
        return _known_below(kind.value_type)
    return known_fields(kind) if pa.types.is_struct(kind) else None


def _new_within(value: Any, known: Known) -> SeenTypes | None:
    if isinstance(value, JsonObject):
        members: NewFields = {}
        note_members(members, value, known)
        return SeenTypes(objects=1, members=members) if members else None
    if not isinstance(value, list):
        return None
    items = [each for each in (_new_within(item, known) for item in value) if each is not None]
    if not items:
        return None
    for each in items[1:]:
        items[0].add(each)
    return SeenTypes(lists=1, items=items[0])


def _is_int64(number: JsonNumber) -> bool:
    return number.whole and len(number) <= _INT64_DIGITS_MAX and _INT64_MIN <= int(number) <= _INT64_MAX
