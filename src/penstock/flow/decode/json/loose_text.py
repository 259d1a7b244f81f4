"""Text columns that take every JSON value as its text: those that no job file states, with `on.mixed_types: text`.

Nothing has to be remembered for it: the table says that a column is text, the job file which columns it states.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from penstock.flow.columns.fitting import folded

ANY_TEXT = pa.large_string()
"""Stands for such a column where records are read one by one; no schema of ours has this type otherwise."""


def loosened(schema: pa.Schema, stated: pa.Schema) -> pa.Schema:
    """The schema with `ANY_TEXT` for each text, at any depth, that `stated` lacks."""
    return pa.schema(_fields(schema, stated))


def _fields(fields: Iterable[pa.Field], stated: Iterable[pa.Field]) -> list[pa.Field]:
    strict = {folded(each.name): each.type for each in stated}
    return [each.with_type(_type(each.type, strict.get(folded(each.name)))) for each in fields]


def _type(kind: pa.DataType, stated: pa.DataType | None) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_fields(kind, stated if stated is not None and pa.types.is_struct(stated) else ()))
    if pa.types.is_list(kind):
        below = stated.value_type if stated is not None and pa.types.is_list(stated) else None
        return pa.list_(_type(kind.value_type, below))
    return ANY_TEXT if stated is None and pa.types.is_string(kind) else kind
