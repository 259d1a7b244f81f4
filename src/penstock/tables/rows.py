"""The columns of rows: decoded fields, computed columns and the place, without those that `drop` and `sql` remove."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.columns.computed import output_type
from penstock.job.decode import schema_of_rows
from penstock.job.expressions import Call, Constant, Expression, Field, KafkaField, fields, leaves, to_text
from penstock.job.faults import Finding, InvalidValueError, KeyPath, nearest, shown
from penstock.job.kafka_types import KAFKA_TYPES, PLACE, place_columns
from penstock.job.reader import SpecReader
from penstock.job.schema import name_fault, type_at
from penstock.job.spec import JobSpec, SqlSpec, TableT

if TYPE_CHECKING:
    from penstock.job.sql_text import SelectItem


@dataclass(frozen=True, slots=True)
class OutputColumns:
    """The table's columns by name; None for a type that only the run finds out.

    `complete` is false if there may be columns of other names.
    """

    types: Mapping[str, pa.DataType | None]
    complete: bool = True

    def has(self, name: str) -> bool:
        """Whether there is a column of this name, as far as is known."""
        return name in self.types or not self.complete


def complete_rows(
    job: JobSpec[TableT], reader: SpecReader, *, has_place: bool = False
) -> tuple[JobSpec[TableT], OutputColumns]:
    """A job whose records are all of one type, with its fields and columns; and the columns of its table.

    With `has_place` the columns are added in which each row carries its place.
    """
    schema = schema_of_rows(job, reader)
    stated = stated_columns(reader)
    selected, conditions = _read_sql(job.sql, reader) if job.sql is not None else ({}, ())
    if schema is not None:
        reader.findings += column_findings(job, schema, reader)
    message: KeyPath | None = ("decode", "message") if reader.has("decode", "message") else None
    names: list[tuple[KeyPath, str]] = [(message or ("schema", field.name), field.name) for field in schema or ()]
    names += [(("columns", name), name) for name in stated]
    names += [(("sql", "select", index), item.name) for index, item in selected.items() if item.path != (item.name,)]
    added = add_place(job, reader, names) if has_place else {}
    columns = {**job.columns, **added}
    types: dict[str, pa.DataType | None] = {field.name: field.type for field in schema or ()}
    for name in [name for name in (*stated, *added) if name not in types]:
        types[name] = None
        if name in columns and schema is not None:
            with suppress(UserError):
                types[name] = output_type(columns[name], schema)
    output = OutputColumns(types, complete=schema is not None and not reader.misstates("columns"))
    output = _without_dropped(job, schema, output, reader)
    sql = job.sql
    for name in conditions:
        _note_missing(name, output, ("sql", "where"), reader)
    if sql is not None and sql.select:
        output = _projected(sql, selected, output, reader)
        # A projection keeps the place of a row, whether it names it or not.
        passed = {part for part, _ in place_columns(columns, sql.select)}
        left_out = {name: field for name, field in added.items() if field.name not in passed}
        more = {name: KAFKA_TYPES[field.name] for name, field in left_out.items()}
        output = replace(output, types={**output.types, **more})
        sql = replace(sql, select=(*sql.select, *(f"`{name.replace('`', '``')}`" for name in left_out)))
    complete = output.complete and not reader.misstates("sql") and not reader.misstates("sql", "select")
    return replace(job, schema=schema, columns=columns, sql=sql), replace(output, complete=complete)


def _without_dropped(
    job: JobSpec, schema: pa.Schema | None, before: OutputColumns, reader: SpecReader
) -> OutputColumns:
    """The columns without those of `drop`."""
    if not reader.states("drop"):
        return before
    if reader.has("sql"):
        select = job.sql is not None and job.sql.select
        hint = "sql.select names the columns that the table has" if select else "state them in sql.select"
        reader.note(("drop",), "contradicts sql", hint, on_key=True)
    for index, name in enumerate(reader.written("drop")):
        if schema is not None and name not in schema.names:
            reader.note(("drop", index), f"the schema has no field {name}", nearest(str(name), schema.names))
    kept = {name: kind for name, kind in before.types.items() if name not in job.drop}
    if not kept and before.complete:
        reader.note(("drop",), "leaves no column", on_key=True)
    return replace(before, types=kept)


# computed columns


def stated_columns(reader: SpecReader) -> list[str]:
    """The names of the computed columns of the file, also of those whose expression could not be read."""
    return list(reader.written("columns")) if reader.states("columns") else []


def column_findings(job: JobSpec, schema: pa.Schema, reader: SpecReader) -> Iterator[Finding]:
    """What is wrong with the columns of the file next to these decoded fields."""
    decoded = {name.casefold(): name for name in schema.names}
    for name in stated_columns(reader):
        at: KeyPath = ("columns", name)
        clash = decoded.get(name.casefold())
        if clash is not None:
            yield Finding(at, f"the schema has a field {clash} already", "choose another name", on_key=True)
        if name in job.columns:
            yield from expression_findings(job.columns[name], schema, at)


def expression_findings(expression: Expression, schema: pa.Schema, at: KeyPath) -> Iterator[Finding]:
    """Why rows of the schema have no value of the expression: fields that do not exist, arguments of other types."""
    prefixes = (field.path[: depth + 1] for field in fields(expression) for depth in range(len(field.path)))
    if any(type_at(schema, prefix) == pa.null() for prefix in prefixes):
        # The type of the field could not be read, and has a finding.
        return
    try:
        output_type(expression, schema)
    except UserError as error:
        word = isinstance(expression, Field) and len(expression.path) == 1 and at[0] == "columns"
        yield Finding(
            at, error.primary, f"{error.hint}; text is written \"'{to_text(expression)}'\"" if word else error.hint
        )
    else:
        is_call = isinstance(expression, Call) and expression.function not in ("concat", "coalesce")
        if is_call and all(isinstance(leaf, Constant) for leaf in leaves(expression)):
            yield Finding(at, f"{to_text(expression)} reads no field", "a field is written without quotes")


# the place of a row


def add_place(job: JobSpec, reader: SpecReader, taken: Iterable[tuple[KeyPath, str]]) -> dict[str, KafkaField]:
    """Columns for those parts of the place that the job's own columns do not hold.

    `taken` are the names of fields and columns, each with the key that states it.
    """
    if job.place == "none":
        return {}
    held = dict(place_columns(job.columns, job.sql.select if job.sql is not None else ()))
    added = {name: KafkaField(part) for part, name in PLACE.items() if part not in held}
    for key, name in taken:
        field = added.get(name.casefold())
        if field is not None:
            message = f"{shown(name)} is also the column that holds the {field.name} of each record"
            hint = f"rename it, or name that column yourself: columns: {{another_name: kafka.{field.name}}}"
            reader.note(key, message, hint, on_key=key[0] != "sql" and key[-1] != "message")
    return added


# sql


def _read_sql(sql: SqlSpec, reader: SpecReader) -> tuple[dict[int, SelectItem], tuple[str, ...]]:
    """The entries of `select` other than `*`, by index, and the columns that `where` reads.

    Notes what is not an expression over one row.
    """
    from penstock.job.sql_text import read_select, read_where  # noqa: PLC0415 - imports sqlglot

    if not reader.has("sql", "select") and not reader.has("sql", "where"):
        reader.note(("sql",), "needs select or where")
    if reader.states("sql", "select") and not sql.select:
        reader.note(("sql", "select"), "names no column")
    texts: list[tuple[KeyPath, str]] = [(("sql", "select", index), text) for index, text in enumerate(sql.select)]
    texts += [(("sql", "where"), sql.where)] if sql.where is not None else []
    items: dict[int, SelectItem] = {}
    conditions: tuple[str, ...] = ()
    for at, text in texts:
        try:
            if at == ("sql", "where"):
                conditions = read_where(text)
            elif text.strip() != "*":
                items[int(at[-1])] = read_select(text)
        except InvalidValueError as refusal:
            reader.note(at, refusal.message, refusal.hint)
    return items, conditions


def _note_missing(name: str, columns: OutputColumns, at: KeyPath, reader: SpecReader) -> None:
    """Note that there is no such column, if that is certain; SQL ignores case."""
    if columns.complete and name.casefold() not in {column.casefold() for column in columns.types}:
        reader.note(at, f"there is no column {shown(name)}", nearest(name, columns.types))


def _projected(
    sql: SqlSpec, selected: Mapping[int, SelectItem], before: OutputColumns, reader: SpecReader
) -> OutputColumns:
    """The columns after `select`."""
    types: dict[str, pa.DataType | None] = {}
    names = {name.casefold(): name for name in before.types}
    complete = True
    for index, text in enumerate(sql.select):
        if text.strip() == "*":
            types.update(before.types)
            complete = complete and before.complete
            continue
        if index not in selected:
            complete = False
            continue
        item, at = selected[index], ("sql", "select", index)
        column = names.get(item.path[0].casefold()) if item.path is not None else None
        for name in item.columns:
            _note_missing(name, before, at, reader)
        if fault := name_fault(item.name):
            reader.note(at, fault)
        if item.name.casefold() in {name.casefold() for name in types}:
            reader.note(at, f"a second column named {shown(item.name)}", "end it with `as another_name`")
        plain = column is not None and item.path is not None and len(item.path) == 1
        types[item.name] = before.types[column] if plain and column is not None else None
    return OutputColumns(types, complete)
