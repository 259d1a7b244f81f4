"""A job whose records are all of one type: the fields, computed columns and `sql` of its one table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from penstock.job.checks.columns import Output, column_findings, columns_before_sql, parse_columns, read_sql, type_of
from penstock.job.checks.decode import read_schema
from penstock.job.checks.place import read_place
from penstock.job.checks.sql_text import SqlRefusedError, read_select
from penstock.job.expressions import Expression
from penstock.job.faults import Finding, KeyPath, nearest
from penstock.job.place import unselected_place
from penstock.job.sections.kind_section import FileT, Parts, Reading, SectionT
from penstock.job.sections.models import JobFile
from penstock.job.spec import Secret


def read_single_table(
    reading: Reading[FileT, SectionT], *, has_place: bool = False
) -> tuple[Parts, Output | None, list[Finding]]:
    """The table's parts, its columns where they can be told, and everything that is wrong.

    With `has_place` the columns are added in which each row carries its place.
    """
    file, document = reading.file, reading.document
    schema, findings = read_schema(file, document, reading.decode)
    columns, further = parse_columns(file.columns or {})
    findings += further
    if schema is not None:
        findings += column_findings(file.columns or {}, columns, schema)
    added: dict[str, Expression] = {}
    if has_place:
        added, further = read_place(file, document, columns, _names(reading, schema))
        findings += further
        columns = columns | added
    output: Output | None = columns_before_sql(schema, columns, [*(file.columns or ()), *added])
    if output is not None and file.drop is not None:
        output, further = _without_dropped(file, output, schema)
        findings += further
    if output is not None and file.sql is not None:
        output, further = read_sql(file.sql, output)
        findings += further
        left_out = unselected_place(columns, list(added), file.sql.select or ())
        added_types = {name: type_of(added[name], pa.schema([])) for name in left_out}
        output = replace(output, types={**output.types, **added_types})
    return Parts(schema, columns), None if _is_unreadable(reading) else output, findings


def _names(reading: Reading[FileT, SectionT], schema: pa.Schema | None) -> Iterator[tuple[KeyPath, str]]:
    """The names of fields and columns, each with the key that states it."""
    file = reading.file
    message: KeyPath | None = ("decode", "message") if reading.document.has("decode", "message") else None
    for name in schema.names if schema is not None else ():
        yield message or ("schema", name), name
    for name in file.columns or ():
        yield ("columns", name), name
    for index, text in enumerate((file.sql.select or ()) if file.sql is not None else ()):
        with suppress(SqlRefusedError):
            item = read_select(text)
            if item.name is not None and item.path != (item.name,):
                yield ("sql", "select", index), Secret(item.name) if isinstance(text, Secret) else item.name


def _without_dropped(file: JobFile, before: Output, schema: pa.Schema | None) -> tuple[Output, list[Finding]]:
    """What is left of the columns, and what is wrong with those that shall go."""
    findings = []
    if file.sql is not None:
        hint = "sql.select names the columns that the table has" if file.sql.select else "state them in sql.select"
        findings.append(Finding(("drop",), "contradicts sql", hint, on_key=True))
    dropped = set(file.drop or ())
    for index, name in enumerate(file.drop or ()):
        if schema is not None and name not in schema.names:
            findings.append(Finding(("drop", index), f"the schema has no field {name}", nearest(name, schema.names)))
    left = {name: kind for name, kind in before.types.items() if name not in dropped}
    if not left and before.complete:
        findings.append(Finding(("drop",), "leaves no column", on_key=True))
    return Output(left, before.complete), findings


def _is_unreadable(reading: Reading[FileT, SectionT]) -> bool:
    """Whether the output columns are unknown because a section that makes them could not be read."""
    file, document = reading.file, reading.document
    lost_columns = document.has("columns") and file.columns is None
    lost_select = document.has("sql", "select") and (file.sql is None or file.sql.select is None)
    return lost_columns or lost_select or (document.has("sql") and file.sql is None)
