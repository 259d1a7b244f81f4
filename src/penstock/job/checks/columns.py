"""Which columns the table will have: computed columns against the schema, and what `sql` makes of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.job.checks.sql_text import SelectItem, SqlRefusedError, check_where, read_select
from penstock.job.expressions import Call, Constant, Expression, ExpressionError, Field, KafkaField, fields, parse
from penstock.job.faults import Finding, KeyPath, kind_of, nearest
from penstock.job.kafka_types import KAFKA_TYPES
from penstock.job.schema import name_fault, name_findings, type_at
from penstock.job.sections.models import SqlSection
from penstock.job.spec import Secret


@dataclass(frozen=True, slots=True)
class Output:
    """The table's columns by name; None for a type that only the run will know.

    `complete` is false where a name is not known either.
    """

    types: Mapping[str, pa.DataType | None]
    complete: bool = True


def parse_columns(raw: Mapping[str, object]) -> tuple[dict[str, Expression], list[Finding]]:
    """The computed columns as far as they can be read without knowing the decoded fields."""
    findings = list(name_findings({name: ("columns", name) for name in raw}))
    columns: dict[str, Expression] = {}
    for name, value in raw.items():
        expression = read_expression(value, ("columns", name), findings)
        if expression is not None:
            columns[name] = expression
    return columns, findings


def column_findings(
    raw: Mapping[str, object], columns: Mapping[str, Expression], schema: pa.Schema
) -> Iterator[Finding]:
    """What is wrong with the columns beside these decoded fields."""
    decoded = {name.casefold(): name for name in schema.names}
    for name, value in raw.items():
        at: KeyPath = ("columns", name)
        clash = decoded.get(name.casefold())
        if clash is not None:
            yield Finding(at, f"the schema has a field {clash} already", "choose another name", on_key=True)
        if name in columns:
            yield from field_findings(columns[name], schema, at, hidden=isinstance(value, Secret))


def read_expression(value: object, at: KeyPath, findings: list[Finding]) -> Expression | None:
    """Parse one expression; what is wrong with it is added to the findings."""
    expression: Expression | None = None
    if isinstance(value, bool | int | float):
        expression = Constant(value)
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            findings.append(Finding(at, "the number does not fit into 64 bits"))
    elif isinstance(value, str):
        try:
            expression = parse(value)
        except ExpressionError as error:
            findings.append(_expression_finding(value, error, at))
    else:
        findings.append(Finding(at, f"expected a column expression, found {kind_of(value)}"))
    if expression == Constant(None):
        findings.append(Finding(at, "a column that is always null has no type"))
    return _hiding(expression) if isinstance(value, Secret) and expression is not None else expression


def _expression_finding(text: str, error: ExpressionError, at: KeyPath) -> Finding:
    if isinstance(text, Secret):
        return Finding(at, "is no column expression once its references are filled in")
    return Finding(at, f"{error.message} (at character {error.position + 1})", error.hint)


def _hiding(expression: Expression) -> Expression:
    """The same expression with every text in it hidden from print."""
    match expression:
        case Constant(value=str() as value):
            return Constant(Secret(value))
        case Field(path=path):
            return Field(tuple(Secret(name) for name in path))
        case Call(function=function, args=args):
            return Call(function, tuple(_hiding(arg) for arg in args))
        case _:
            return expression


def field_findings(expression: Expression, schema: pa.Schema, at: KeyPath, *, hidden: bool) -> Iterator[Finding]:
    """What an expression reads that these decoded fields do not have."""
    for field in fields(expression):
        fault = _path_fault(field.path, schema)
        if fault is not None:
            yield (Finding(at, "reads a field that the schema does not have") if hidden else Finding(at, *fault))
    if isinstance(expression, Call):
        yield from _argument_findings(expression, schema, at)


def _argument_findings(call: Call, schema: pa.Schema, at: KeyPath) -> Iterator[Finding]:
    for arg in call.args:
        kind = type_of(arg, schema)
        if kind is not None and pa.types.is_nested(kind) and call.function != "coalesce":
            yield Finding(at, f"{call.function} takes no struct, list or map")
        if isinstance(arg, Call):
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


def columns_before_sql(schema: pa.Schema | None, columns: Mapping[str, Expression], names: Iterable[str]) -> Output:
    """Decoded and computed columns together; one whose expression failed has a name and no type."""
    types: dict[str, pa.DataType | None] = {field.name: field.type for field in schema} if schema is not None else {}
    for name in names:
        expression = columns.get(name)
        types.setdefault(name, type_of(expression, schema) if expression is not None and schema is not None else None)
    return Output(types, complete=schema is not None)


def read_sql(sql: SqlSection, before: Output) -> tuple[Output, list[Finding]]:
    """Refuse what is no projection or row filter, and find the columns that remain."""
    findings: list[Finding] = []
    if sql.where is not None:
        try:
            check_where(sql.where)
        except SqlRefusedError as refusal:
            findings.append(_refusal_finding(refusal, sql.where, ("sql", "where")))
    if sql.select is None:
        if sql.where is None:
            findings.append(Finding(("sql",), "needs select or where"))
        return before, findings
    if not sql.select:
        findings.append(Finding(("sql", "select"), "names no column"))
    return _read_selects(sql.select, before, findings), findings


def _read_selects(selects: list[str], before: Output, findings: list[Finding]) -> Output:
    types: dict[str, pa.DataType | None] = {}
    complete = True
    for index, text in enumerate(selects):
        at: KeyPath = ("sql", "select", index)
        if text.strip() == "*":
            types.update(before.types)
            complete = complete and before.complete
            continue
        try:
            item = read_select(text)
        except SqlRefusedError as refusal:
            findings.append(_refusal_finding(refusal, text, at))
            complete = False
            continue
        if not isinstance(text, Secret):
            findings.extend(_select_findings(item, before, types, at))
        if item.name is None:
            complete = False
        else:
            types[Secret(item.name) if isinstance(text, Secret) else item.name] = _selected_type(item, before)
    return Output(types, complete)


def _refusal_finding(refusal: SqlRefusedError, text: str, at: KeyPath) -> Finding:
    if isinstance(text, Secret):
        return Finding(at, "is no expression over one row once its references are filled in")
    return Finding(at, refusal.message, refusal.hint)


def _select_findings(item: SelectItem, before: Output, types: Mapping[str, object], at: KeyPath) -> Iterator[Finding]:
    if item.path is not None and before.complete:
        known = {name.casefold() for name in before.types}
        if item.path[0].casefold() not in known:
            yield Finding(at, f"there is no column {item.path[0]}", nearest(item.path[0], before.types))
    if item.name is not None:
        fault = name_fault(item.name)
        if fault:
            yield Finding(at, fault)
        if item.name.casefold() in {name.casefold() for name in types}:
            yield Finding(at, f"a second column named {item.name}", "end it with `as another_name`")


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
