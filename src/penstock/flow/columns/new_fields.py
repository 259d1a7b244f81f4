"""Which of the fields that records have and the schema lacks become columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from penstock.flow.columns.fitting import folded
from penstock.flow.columns.seen_types import SeenTypes


def addable(fields: Mapping[str, pa.DataType], taken: Iterable[str], decoded: Iterable[str] = ()) -> pa.Schema:
    """Those that a table can take beside the columns that it has; a field that is decoded already brings new members.

    Delta compares names without case. A name that is taken by a computed column is no column of the records.
    """
    known, names = frozenset(decoded), {folded(name) for name in taken}
    return pa.schema(
        [pa.field(name, fields[name]) for name in sorted(fields) if name in known or folded(name) not in names]
    )


def left_out(fields: Mapping[str, SeenTypes], columns: Iterable[pa.Field]) -> list[str]:
    """Fields with values that find no place in the columns, as dotted paths."""
    chosen = {field.name: field.type for field in columns}
    found: list[str] = []
    for name, seen in fields.items():
        if name not in chosen:
            found += [name] if seen.shows_values else []
            continue
        kind, inner = chosen[name], seen
        while inner.items is not None and pa.types.is_list(kind):
            kind, inner = kind.value_type, inner.items
        if pa.types.is_struct(kind):
            found += [f"{name}.{below}" for below in left_out(inner.members, kind)]
    return sorted(found)
