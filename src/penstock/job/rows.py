"""The columns of rows: decoded fields, computed columns, the place of a row; less what `drop` and `sql` leave out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from penstock.job.decode import schema_of_rows
from penstock.job.expressions import Call, Expression, Field, KafkaField, fields
from penstock.job.faults import Finding, KeyPath, Secret, kind_of, nearest, shown
from penstock.job.kafka_types import KAFKA_TYPES
from penstock.job.place import DEFAULT_PLACE, place_columns, place_names, quoted_name, unselected_place
from penstock.job.reader import Reader
from penstock.job.schema import name_fault, name_findings, type_at
from penstock.job.spec import JobSpec, SqlSpec, TableT
from penstock.job.sql_text import SelectItem, SqlRefusedError, check_where, read_select
from penstock.job.texts import read_expression
from penstock.job.values import LOST, Parsed, Read

StatedColumns: TypeAlias = Mapping[str, Expression | None]
"""Computed columns by name; None for one whose expression could not be read."""


@dataclass(frozen=True, slots=True)
class Output:
    """The table's columns by name; None for a type that only the run will know.

    `complete` is false where a name is not known either.
    """

    types: Mapping[str, pa.DataType | None]
    complete: bool = True

    def has(self, name: str) -> bool:
        """Whether there is a column of this name, as far as one can tell."""
        return name in self.types or not self.complete


def complete_rows(job: JobSpec[TableT], reader: Reader, *, has_place: bool = False) -> tuple[JobSpec[TableT], Output]:
    """A job whose records are all of one type, with its fields and columns; and the columns of its table.

    With `has_place` the columns are added in which each row carries its place.
    """
    schema = schema_of_rows(job.decode, reader)
    stated = stated_columns(reader)
    if schema is not None:
        reader.findings += column_findings(stated, schema)
    added = add_place(job, reader, stated, _names(job, stated, schema, reader)) if has_place else {}
    columns = {**readable(stated), **added}
    types: dict[str, pa.DataType | None] = {field.name: field.type for field in schema or ()}
    for name in (*stated, *added):
        expression = columns.get(name)
        types.setdefault(name, type_of(expression, schema) if expression is not None and schema is not None else None)
    output = Output(types, complete=schema is not None and not reader.misstates("columns"))
    output = _without_dropped(job, schema, output, reader)
    sql = job.sql
    if sql is not None:
        output = _projected(sql, output, reader)
        left_out = unselected_place(columns, list(added), sql.select)
        more = {name: type_of(added[name], pa.schema([])) for name in left_out}
        output = replace(output, types={**output.types, **more})
        # A projection passes on the place of a row, whether it names it or not.
        sql = replace(sql, select=(*sql.select, *map(quoted_name, left_out)))
    complete = output.complete and not reader.misstates("sql") and not reader.misstates("sql", "select")
    return replace(job, schema=schema, columns=columns, sql=sql), replace(output, complete=complete)


def _names(
    job: JobSpec, stated: StatedColumns, schema: pa.Schema | None, reader: Reader
) -> Iterator[tuple[KeyPath, str]]:
    """The names of fields and columns, each with the key that states it."""
    message: KeyPath | None = ("decode", "message") if reader.has("decode", "message") else None
    for field in schema or ():
        yield message or ("schema", field.name), field.name
    for name in stated:
        yield ("columns", name), name
    for index, text in enumerate(job.sql.select if job.sql is not None else ()):
        with suppress(SqlRefusedError):
            item = read_select(text)
            if item.name is not None and item.path != (item.name,):
                yield ("sql", "select", index), Secret(item.name) if isinstance(text, Secret) else item.name


def _without_dropped(job: JobSpec, schema: pa.Schema | None, before: Output, reader: Reader) -> Output:
    """What `drop` leaves of the columns."""
    if not reader.states("drop"):
        return before
    if reader.has("sql"):
        select = job.sql is not None and job.sql.select
        hint = "sql.select names the columns that the table has" if select else "state them in sql.select"
        reader.note(("drop",), "contradicts sql", hint, on_key=True)
    for index, name in enumerate(reader.written("drop")):
        if schema is not None and name not in schema.names:
            reader.note(("drop", index), f"the schema has no field {name}", nearest(str(name), schema.names))
    left = {name: kind for name, kind in before.types.items() if name not in job.drop}
    if not left and before.complete:
        reader.note(("drop",), "leaves no column", on_key=True)
    return replace(before, types=left)


# computed columns


def stated_columns(reader: Reader) -> StatedColumns:
    """The computed columns of the file, read without knowing the decoded fields."""
    return reader.top(Read(_read_columns), "columns") or {}


def readable(stated: StatedColumns) -> dict[str, Expression]:
    """Those columns whose expressions could be read."""
    return {name: expression for name, expression in stated.items() if expression is not None}


def _read_columns(value: object, at: KeyPath, reader: Reader) -> object:
    if not isinstance(value, dict):
        return reader.lost(at, f"expected a mapping, found {kind_of(value)}")
    reader.findings += name_findings({name: (*at, name) for name in value})
    expressions = {name: read_expression(item, (*at, name), reader) for name, item in value.items()}
    return {name: None if expression is LOST else expression for name, expression in expressions.items()}


def column_findings(stated: StatedColumns, schema: pa.Schema) -> Iterator[Finding]:
    """What is wrong with the columns beside these decoded fields."""
    decoded = {name.casefold(): name for name in schema.names}
    for name, expression in stated.items():
        at: KeyPath = ("columns", name)
        clash = decoded.get(name.casefold())
        if clash is not None:
            yield Finding(at, f"the schema has a field {clash} already", "choose another name", on_key=True)
        if expression is not None:
            yield from expression_findings(expression, schema, at)


def expression_findings(expression: Expression, schema: pa.Schema, at: KeyPath) -> Iterator[Finding]:
    """What an expression reads that these decoded fields do not have, and functions of values that they do not take.

    This is the place for the types of arguments.
    """
    for field in fields(expression):
        fault = _path_fault(field.path, schema)
        if fault is not None and isinstance(field.path[0], Secret):
            yield Finding(at, "reads a field that the schema does not have")
        elif fault is not None:
            yield Finding(at, *fault)
    yield from _argument_findings(expression, schema, at)


def _argument_findings(expression: Expression, schema: pa.Schema, at: KeyPath) -> Iterator[Finding]:
    if not isinstance(expression, Call):
        return
    for arg in expression.args:
        kind = type_of(arg, schema)
        if kind is not None and pa.types.is_nested(kind) and expression.function != "coalesce":
            yield Finding(at, f"{expression.function} takes no struct, list or map")
        yield from _argument_findings(arg, schema, at)


def _path_fault(path: tuple[str, ...], schema: pa.Schema) -> tuple[str, str] | None:
    inside: pa.DataType = pa.struct(list(schema))
    for depth, name in enumerate(path):
        if pa.types.is_null(inside):
            return None
        before = ".".join(path[:depth])
        if not pa.types.is_struct(inside):
            return f"{before} is no struct: there is no {name} in it", ""
        known = [inside.field(index).name for index in range(inside.num_fields)]
        if name not in known:
            whole = [".".join((*path[:depth], other)) for other in known]
            text = ".".join(path[: depth + 1])
            return f"the schema has no field {text}", nearest(text, whole) or f"there are: {', '.join(whole[:20])}"
        inside = inside.field(known.index(name)).type
    return None


def type_of(expression: Expression, schema: pa.Schema) -> pa.DataType | None:
    """The type of an expression where the job file alone tells it."""
    match expression:
        case Field(path=path):
            return type_at(schema, path)
        case KafkaField(name=name):
            return KAFKA_TYPES[name]
        case Call(function="coalesce", args=args):
            return next((kind for kind in (type_of(arg, schema) for arg in args) if kind is not None), None)
        case _:
            return None


# the place of a row


def add_place(
    job: JobSpec, reader: Reader, stated: StatedColumns, taken: Iterable[tuple[KeyPath, str]]
) -> dict[str, Expression]:
    """Columns for those parts of the place that the job's own columns do not keep.

    `taken` are the names that fields and columns have, each with the key that states it.
    """
    names = reader.top(Parsed(place_names), "place")
    kept = dict(place_columns(readable(stated), job.sql.select if job.sql is not None else ()))
    added: dict[str, Expression] = {}
    others = list(taken)
    for part, name in (DEFAULT_PLACE if names is None else names).items():
        at: KeyPath = ("place", part)
        if part in kept:
            if reader.has(*at):
                hint = f"remove place.{part}, or rename the column"
                reader.note(at, f"column {shown(kept[part])} is kafka.{part} already", hint)
            continue
        if fault := name_fault(name):
            reader.note(at, fault)
        for key, other in others:
            if other.casefold() == name.casefold():
                _note_clash(at, name, key, other, reader)
        others.append((at, name))
        added[name] = KafkaField(part)
    return added


def _note_clash(at: KeyPath, name: str, key: KeyPath, other: str, reader: Reader) -> None:
    if reader.has(*at):
        reader.note(at, f"there is a column {shown(other)} already", "choose another name")
        return
    message = f"{name} is added to every row: it holds the {at[-1]} of its record"
    hint = f"choose another name, or rename the added column: place: {{{at[-1]}: another_name}}"
    reader.note(key, message, hint, on_key=key[0] != "sql" and key[-1] != "message")


# sql


def _projected(sql: SqlSpec, before: Output, reader: Reader) -> Output:
    """Refuse what is no projection or row filter, and find the columns that remain."""
    if sql.where is not None:
        try:
            check_where(sql.where)
        except SqlRefusedError as refusal:
            _note_refusal(refusal, sql.where, ("sql", "where"), reader)
    if not reader.has("sql", "select") and not reader.has("sql", "where"):
        reader.note(("sql",), "needs select or where")
    if not reader.states("sql", "select"):
        return before
    if not sql.select:
        reader.note(("sql", "select"), "names no column")
    types: dict[str, pa.DataType | None] = {}
    complete = True
    for index, text in enumerate(sql.select):
        if text.strip() == "*":
            types.update(before.types)
            complete = complete and before.complete
            continue
        at: KeyPath = ("sql", "select", index)
        try:
            item = read_select(text)
        except SqlRefusedError as refusal:
            _note_refusal(refusal, text, at, reader)
            complete = False
            continue
        if not isinstance(text, Secret):
            _check_selected(item, before, types, at, reader)
        complete = complete and item.name is not None
        if item.name is not None:
            types[Secret(item.name) if isinstance(text, Secret) else item.name] = _selected_type(item, before)
    return Output(types, complete)


def _note_refusal(refusal: SqlRefusedError, text: str, at: KeyPath, reader: Reader) -> None:
    if isinstance(text, Secret):
        reader.note(at, "is no expression over one row once its references are filled in")
    else:
        reader.note(at, refusal.message, refusal.hint)


def _check_selected(item: SelectItem, before: Output, types: Mapping[str, object], at: KeyPath, reader: Reader) -> None:
    known = {name.casefold() for name in before.types}
    if item.path is not None and before.complete and item.path[0].casefold() not in known:
        reader.note(at, f"there is no column {item.path[0]}", nearest(item.path[0], before.types))
    if item.name is not None:
        if fault := name_fault(item.name):
            reader.note(at, fault)
        if item.name.casefold() in {name.casefold() for name in types}:
            reader.note(at, f"a second column named {item.name}", "end it with `as another_name`")


def _selected_type(item: SelectItem, before: Output) -> pa.DataType | None:
    if item.path is None:
        return None
    kinds = {name.casefold(): kind for name, kind in before.types.items()}
    kind = kinds.get(item.path[0].casefold())
    for name in item.path[1:]:
        if kind is None or not pa.types.is_struct(kind):
            return None
        inner = {kind.field(i).name.casefold(): kind.field(i).type for i in range(kind.num_fields)}
        kind = inner.get(name.casefold())
    return kind
