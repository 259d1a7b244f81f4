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


def note_members(found: NewFields, members: Mapping[str, Any], known: Known, depth: int = 0) -> None:
    """Count the members of a record, or of an object in it, that are not known.

    A known struct is there with its new members, perhaps with none; `depth` counts the levels inside a new field.
    """
    for name, value in members.items():
        if name not in known:
            _note_value(found.setdefault(name, SeenTypes()), value, {}, depth + 1)
        elif (below := known[name]) is not None:
            _note_value(found.setdefault(name, SeenTypes()), value, below, depth)


def note_columns(found: NewFields, columns: Iterable[tuple[str, pa.Array]], known: Known, depth: int = 0) -> None:
    """The same of columns, or of the members of a struct, that Arrow's reader has read."""
    for name, values in columns:
        if name not in known:
            _note_array(found.setdefault(name, SeenTypes()), values, {}, depth + 1)
        elif (below := known[name]) is not None:
            _note_array(found.setdefault(name, SeenTypes()), values, below, depth)


def _note_value(into: SeenTypes, value: Any, known: Known, depth: int) -> None:
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
        note_members(into.members, value, known, depth)
    else:
        into.lists += 1
        for each in value:
            _note_value(into.of_items(), each, known, depth + (not known))


def _note_array(into: SeenTypes, array: pa.Array, known: Known, depth: int) -> None:
    """Count values whose type Arrow's reader inferred: it takes text that looks like a time for a time."""
    count, kind = len(array) - array.null_count, array.type
    if pa.types.is_null(kind):
        return
    if pa.types.is_nested(kind) and depth > DEPTH_MAX:
        into.texts += count
    elif pa.types.is_struct(kind):
        into.objects += count
        if not all(child.name in known and known[child.name] is None for child in kind):
            note_columns(into.members, zip((child.name for child in kind), array.flatten(), strict=True), known, depth)
    elif pa.types.is_list(kind):
        into.lists += count
        _note_array(into.of_items(), array.flatten(), known, depth + (not known))
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


def _known_below(kind: pa.DataType) -> Known | None:
    if pa.types.is_list(kind):
        return _known_below(kind.value_type)
    return known_fields(kind) if pa.types.is_struct(kind) else None


def _is_int64(number: JsonNumber) -> bool:
    return number.whole and len(number) <= _INT64_DIGITS_MAX and _INT64_MIN <= int(number) <= _INT64_MAX
