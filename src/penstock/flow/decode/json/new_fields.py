"""Fields of records that the schema lacks: what their values show, and names that no new column can have.

A name that differs from a column's only in case is the same name to a table, and a reserved one is a column of the
table's own. No column can be made of such a field: a record that has a value in it is bad, and nothing of it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.fitting import folded
from penstock.flow.columns.seen_types import NewFields, SeenTypes
from penstock.flow.decode.json.column_types import Known, MapOf, Mark, mark_lists
from penstock.flow.decode.json_text import JsonNumber, JsonObject
from penstock.flow.decode.misfit import MisfitError

DEPTH_MAX = 32
"""What nests deeper inside a new field counts as text: no column can have it, and the record will be bad."""

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INT64_DIGITS_MAX = 20
_NO_NAMES: frozenset[str] = frozenset()


def in_columns(
    columns: Iterable[tuple[str, pa.Array]], known: Known, reserved: frozenset[str], mark: Mark, path: str = ""
) -> NewFields:
    """The new fields among columns that Arrow's reader inferred. Marks the rows with a name that cannot be new."""
    new: NewFields = {}
    for name, values in columns:
        if name in known:
            inner = _in_array(values, known[name], mark, f"{path}{name}.")
            if inner is not None:
                new[name] = inner
            continue
        clash = _clash(name, known, reserved)
        if clash is not None:
            rows = pc.indices_nonzero(values.is_valid()).to_pylist()
            if rows:
                mark(rows, f"{path}{name}: {clash}")
        elif (seen := _seen_in_array(values, 1)).count:
            new[name] = seen
    return new


def _in_array(array: pa.Array, known: Known | MapOf | None, mark: Mark, path: str) -> SeenTypes | None:
    """The new members of a struct of the schema, or of the structs in its lists."""
    count = len(array) - array.null_count
    if known is None or isinstance(known, MapOf):
        return None
    if pa.types.is_list(array.type):
        items = _in_array(array.values, known, mark_lists(array, mark), path)
        return None if items is None else SeenTypes(lists=count, items=items)
    named = zip((child.name for child in array.type), array.flatten(), strict=True)
    members = in_columns(named, known, _NO_NAMES, mark, path)
    return SeenTypes(objects=count, members=members) if members else None


def _seen_in_array(array: pa.Array, depth: int) -> SeenTypes:
    """What an inferred array shows: the reader takes text that looks like a time for a time."""
    count, kind = len(array) - array.null_count, array.type
    if pa.types.is_null(kind):
        return SeenTypes()
    if pa.types.is_nested(kind) and depth > DEPTH_MAX:
        return SeenTypes(texts=count)
    if pa.types.is_struct(kind):
        children = zip((child.name for child in kind), array.flatten(), strict=True)
        return SeenTypes(objects=count, members={name: _seen_in_array(child, depth + 1) for name, child in children})
    if pa.types.is_list(kind):
        return SeenTypes(lists=count, items=_seen_in_array(array.flatten(), depth + 1))
    if pa.types.is_int64(kind):
        return SeenTypes(wholes=count)
    if pa.types.is_floating(kind):
        return SeenTypes(fractions=count)
    return SeenTypes(flags=count) if pa.types.is_boolean(kind) else SeenTypes(texts=count)


def in_record(members: Mapping[str, Any], known: Known, reserved: frozenset[str] = _NO_NAMES) -> NewFields:
    """The new fields of one record. Raises `MisfitError` for a name that cannot be new."""
    new: NewFields = {}
    for name, value in members.items():
        if name in known:
            try:
                inner = _in_value(value, known[name])
            except MisfitError as misfit:
                raise misfit.inside(name) from None
            if inner is not None:
                new[name] = inner
        elif value is not None:
            clash = _clash(name, known, reserved)
            if clash is not None:
                raise MisfitError(clash).inside(name)
            new[name] = _seen_in_value(value, 1)
    return new


def _in_value(value: Any, known: Known | MapOf | None) -> SeenTypes | None:
    if value is None or known is None or isinstance(known, MapOf):
        return None
    if isinstance(value, list):
        items = SeenTypes()
        for item in value:
            items.add(_in_value(item, known) or SeenTypes())
        return SeenTypes(lists=1, items=items) if items.count else None
    members = in_record(value, known)
    return SeenTypes(objects=1, members=members) if members else None


def _seen_in_value(value: Any, depth: int) -> SeenTypes:
    if value is None:
        return SeenTypes()
    if isinstance(value, bool):
        return SeenTypes(flags=1)
    if isinstance(value, JsonNumber):
        return SeenTypes(wholes=1) if _is_int64(value) else SeenTypes(fractions=1)
    if isinstance(value, str) or depth > DEPTH_MAX:
        return SeenTypes(texts=1)
    if isinstance(value, JsonObject):
        return SeenTypes(objects=1, members={name: _seen_in_value(value[name], depth + 1) for name in value})
    items = SeenTypes()
    for item in value:
        items.add(_seen_in_value(item, depth + 1))
    return SeenTypes(lists=1, items=items)


def _clash(name: str, known: Iterable[str], reserved: frozenset[str]) -> str | None:
    column = next((column for column in known if folded(column) == folded(name)), None)
    if column is not None:
        return f"differs only in case from the column {column}"
    if folded(name) in reserved:
        return "the name is reserved, the table keeps a column of its own under it"
    return None


def _is_int64(number: JsonNumber) -> bool:
    return number.whole and len(number) <= _INT64_DIGITS_MAX and _INT64_MIN <= int(number) <= _INT64_MAX
