"""Fitting the columns of two schemas: names are compared as Delta compares them, without case and at every depth.

The table's spelling and order apply. A column under another spelling is the same column, so it is never filled with
nulls; a column that the table lacks is an error and never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvariantError, UserError

_Join = Callable[[Iterable[pa.Field], Iterable[pa.Field]], pa.Schema]


class Conflict(NamedTuple):
    """A field that two schemas have with different types."""

    path: str
    one: pa.DataType
    other: pa.DataType


def folded(name: str) -> str:
    """The name in lower case: equal for names that are one column to Delta."""
    return name.lower()


def by_folded_name(fields: Iterable[pa.Field], where: str) -> dict[str, pa.Field]:
    """The fields by name without case. Raises `UserError` where that is ambiguous, at any depth."""
    result: dict[str, pa.Field] = {}
    for field in fields:
        clash = result.setdefault(folded(field.name), field)
        if clash is not field:
            if clash.name == field.name:
                raise UserError(f"{where} has two columns {field.name}", hint="rename one of them")
            raise UserError(
                f"{where} has the columns {clash.name} and {field.name}, whose names differ only in case",
                hint="readers such as Spark take both for one: rename one of them",
            )
        by_folded_name(_struct_fields(field.type), where)
    return result


def conflict(one: Iterable[pa.Field], other: Iterable[pa.Field]) -> Conflict | None:
    """The first field that both have and of which the types differ; a struct may have fields that the other lacks."""
    by_name = {folded(field.name): field for field in one}
    for field in other:
        match = by_name.get(folded(field.name))
        result = None if match is None else _type_conflict(match.name, match.type, field.type)
        if result is not None:
            return result
    return None


def grown(one: Iterable[pa.Field], other: Iterable[pa.Field]) -> pa.Schema:
    """The fields of `one`, and those of `other` that it lacks, at any depth; fields of `one` take precedence."""
    theirs = {folded(field.name): field for field in other}
    fields = []
    for field in one:
        more = theirs.pop(folded(field.name), None)
        fields.append(field if more is None else field.with_type(_joined_type(field.type, more.type, grown)))
    return pa.schema([*fields, *theirs.values()])


def respelled(fields: Iterable[pa.Field], others: Iterable[pa.Field]) -> pa.Schema:
    """The fields under the names that `others` have for them, at any depth."""
    theirs = {folded(field.name): field for field in others}
    result = [(field, theirs.get(folded(field.name), field)) for field in fields]
    return pa.schema(
        [field.with_name(like.name).with_type(_joined_type(field.type, like.type, respelled)) for field, like in result]
    )


def new_paths(before: Iterable[pa.Field], after: Iterable[pa.Field], above: str = "") -> list[str]:
    """The fields of `after` that `before` lacks, as dotted paths."""
    by_name = {folded(field.name): field for field in before}
    result: list[str] = []
    for field in after:
        old = by_name.get(folded(field.name))
        if old is None:
            result.append(above + field.name)
        else:
            result += new_paths(_struct_fields(old.type), _struct_fields(field.type), f"{above}{field.name}.")
    return result


def fit_columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Put the columns in the table's order, spelling and types.

    Every column of the rows finds its place, or this raises `InvariantError`; so one that is filled with nulls is one
    that the rows do not have under any spelling.
    """
    if rows.schema.equals(schema):
        return rows
    return pa.RecordBatch.from_arrays(_fitted(rows.schema.names, rows.columns, schema, rows.num_rows), schema=schema)


def _fitted(
    names: Sequence[str], columns: Sequence[pa.Array], fields: Iterable[pa.Field], count: int
) -> list[pa.Array]:
    by_name = dict(zip(map(folded, names), columns, strict=True))
    if len(by_name) < len(names):
        raise InvariantError(f"columns are the same but for the case of their names: {names}")
    arrays = []
    for field in fields:
        array = by_name.pop(folded(field.name), None)
        arrays.append(pa.nulls(count, field.type) if array is None else fit_array(array, field.type))
    if by_name:
        lost = [name for name in names if folded(name) in by_name]
        raise InvariantError(f"the table has no column for {', '.join(lost)}: its values would be lost")
    return arrays


def fit_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as `kind`, whose structs may have their fields in another order, spelling or number."""
    if array.type.equals(kind):
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        children = [array.field(index) for index in range(array.type.num_fields)]
        fitted = _fitted([field.name for field in array.type], children, kind, len(array))
        return pa.StructArray.from_arrays(fitted, fields=list(kind), mask=null_mask(array))
    if pa.types.is_list(kind) and pa.types.is_list(array.type) and pa.types.is_nested(kind.value_type):
        if array.offset:
            # Arrow accepts no mask for a list array with an offset.
            array = array.take(pa.array(range(len(array)), pa.int64()))
        items = fit_array(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=null_mask(array))
    return array.cast(kind)


def column_at(rows: pa.RecordBatch | pa.Table, path: tuple[str, ...]) -> Any:
    """The values of a column, or of a field inside of structs."""
    column = rows.column(path[0])
    return pc.struct_field(column, list(path[1:])) if path[1:] else column


def null_mask(array: pa.Array) -> pa.Array | None:
    """Where the values are null, as the builders of nested arrays want it."""
    return array.is_null() if array.null_count else None


def _struct_fields(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a struct, or of the structs in a list; a map's are not ours to change: not all readers bear it."""
    if pa.types.is_list(kind):
        return _struct_fields(kind.value_type)
    return list(kind) if pa.types.is_struct(kind) else []


def _type_conflict(path: str, one: pa.DataType, other: pa.DataType) -> Conflict | None:
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        inner = conflict(one, other)
        return None if inner is None else inner._replace(path=f"{path}.{inner.path}")
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _type_conflict(path, one.value_type, other.value_type)
    return None if one.equals(other) else Conflict(path, one, other)


def _joined_type(one: pa.DataType, other: pa.DataType, join: _Join) -> pa.DataType:
    """The first type; where both are structs, or lists of them, with what becomes of their fields."""
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(list(join(one, other)))
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_joined_type(one.value_type, other.value_type, join))
    return one
