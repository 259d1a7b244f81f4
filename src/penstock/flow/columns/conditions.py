"""Conditions over rows: checked against the types of columns, evaluated with Arrow kernels."""

from __future__ import annotations

from decimal import Decimal
from functools import reduce
from typing import assert_never

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UserError
from penstock.flow.columns.computed import evaluate, missing_field
from penstock.flow.columns.times import dates_or_null, timestamps_or_null
from penstock.flow.rows import DecodedRows
from penstock.job.conditions import AllOf, AnyField, AnyOf, Comparison, Condition, IsNull, Not, Operator
from penstock.job.expressions import Constant, Field, KafkaField, to_text
from penstock.job.kafka_types import KAFKA_TYPES
from penstock.job.schema import job_type_name, type_at

_KERNELS: dict[Operator, str] = {
    "=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip


def matches(condition: Condition, rows: DecodedRows) -> pa.Array:
    """Whether the condition is true for each row: not where it is unknown."""
    return pc.fill_null(_truth(condition, rows), False)


def _truth(condition: Condition, rows: DecodedRows) -> pa.Array:
    match condition:
        case Field() | KafkaField():
            return evaluate(condition, rows, {})
        case Comparison(left=left, operator=operator, right=right):
            values = evaluate(left, rows, {})
            other = _scalar(right, values.type) if isinstance(right, Constant) else evaluate(right, rows, {})
            return pc.call_function(_KERNELS[operator], [values, other])
        case IsNull(field=field):
            return pc.is_null(evaluate(field, rows, {}))
        case Not(condition=inner):
            return pc.invert(_truth(inner, rows))
        case AllOf(conditions=inners):
            return reduce(pc.and_kleene, (_truth(inner, rows) for inner in inners))
        case AnyOf(conditions=inners):
            return reduce(pc.or_kleene, (_truth(inner, rows) for inner in inners))
        case _:
            assert_never(condition)


def check_condition(condition: Condition, schema: pa.Schema) -> None:
    """Raise `UserError` if the condition does not fit rows of the schema; a null type is one that is not known yet."""
    match condition:
        case Field() | KafkaField():
            kind = _type(condition, schema)
            if not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
                name = to_text(condition)
                raise UserError(f"{name} is {job_type_name(kind)}, not true or false", hint=f"write {name} = ...")
        case Comparison(left=left, right=right):
            _check_comparison(left, right, schema)
        case IsNull(field=field):
            _type(field, schema)
        case Not(condition=inner):
            check_condition(inner, schema)
        case AllOf(conditions=inners) | AnyOf(conditions=inners):
            for inner in inners:
                check_condition(inner, schema)
        case _:
            assert_never(condition)


def _check_comparison(left: AnyField, right: AnyField | Constant, schema: pa.Schema) -> None:
    kind = _type(left, schema)
    if pa.types.is_nested(kind):
        raise UserError(f"{to_text(left)} is {job_type_name(kind)}, which cannot be compared")
    # Probably a text whose quotes are missing.
    in_quotes = f"put text in quotes: '{right.path[0]}'" if isinstance(right, Field) and len(right.path) == 1 else ""
    if isinstance(right, Constant):
        if not pa.types.is_null(kind) and _scalar(right, kind) is None:
            message = f"{to_text(left)} is {job_type_name(kind)}, and {to_text(right)} is not a value of this type"
            raise UserError(message, hint=f"write '{to_text(right)}'" if pa.types.is_string(kind) else "")
    elif in_quotes and type_at(schema, (to_text(right),)) is None:
        raise UserError(f"there is no field {to_text(right)}", hint=in_quotes)
    elif kind != (other := _type(right, schema)) and not pa.types.is_null(kind) and not pa.types.is_null(other):
        message = f"{to_text(left)} is {job_type_name(kind)}, and {to_text(right)} is {job_type_name(other)}"
        raise UserError(message, hint=in_quotes)


def _type(field: AnyField, schema: pa.Schema) -> pa.DataType:
    if isinstance(field, KafkaField):
        return KAFKA_TYPES[field.name]
    for depth in range(1, len(field.path) + 1):
        kind = type_at(schema, field.path[:depth])
        if kind is None:
            raise missing_field(field.path, schema)
        if pa.types.is_null(kind):
            return kind
    return type_at(schema, field.path)


def _scalar(constant: Constant, kind: pa.DataType) -> pa.Scalar | None:
    """The constant as a value of the type; None if it is not one. Text stands for times, dates and bytes too."""
    value, types = constant.value, pa.types
    if isinstance(value, bool):
        return pa.scalar(value) if types.is_boolean(kind) else None
    if isinstance(value, str) and (types.is_timestamp(kind) or types.is_date(kind)):
        read = timestamps_or_null if types.is_timestamp(kind) else dates_or_null
        times, unreadable = read(pa.array([value]))
        return None if unreadable else times[0].cast(kind)
    expected = (
        (types.is_string, types.is_binary)
        if isinstance(value, str)
        else (types.is_integer, types.is_floating, types.is_decimal)
    )
    if not any(test(kind) for test in expected):
        return None
    try:
        # Arrow rounds floats to decimals, and refuses to lose digits of decimals.
        return pa.scalar(Decimal(repr(value)) if types.is_decimal(kind) else value).cast(kind)
    except pa.ArrowInvalid:
        return None
