"""The language of conditions, `status >= 500 and method in ('PUT', 'POST')`, as frozen values. Nulls are as in SQL.

    condition := field | field operator value | field [not] in (constant, ...) | field is [not] null
               | not condition | condition and condition | condition or condition | (condition)
    operator  := = | == | != | <> | < | <= | > | >=
    value     := constant | field

Fields and constants are those of `job.expressions`. `job.sql_text` parses it, `flow.columns.conditions` evaluates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

from penstock.job.expressions import Constant, Field, KafkaField
from penstock.job.values import text

Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]
AnyField: TypeAlias = Field | KafkaField


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field compared with a constant or another field; unknown if one of them is null."""

    left: AnyField
    operator: Operator
    right: AnyField | Constant


@dataclass(frozen=True, slots=True)
class IsNull:
    field: AnyField


@dataclass(frozen=True, slots=True)
class Not:
    condition: Condition


@dataclass(frozen=True, slots=True)
class AllOf:
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    conditions: tuple[Condition, ...]


Condition: TypeAlias = Field | KafkaField | Comparison | IsNull | Not | AllOf | AnyOf
"""A field alone is a boolean that has to be true."""


def read_condition(value: object) -> Condition:
    """Read a condition of a job file or of a command line; raises `InvalidValueError`."""
    from penstock.job.sql_text import parse_condition  # noqa: PLC0415 - imports sqlglot

    return parse_condition(text(value))


def condition_fields(condition: Condition) -> Iterator[AnyField]:
    """Every field that the condition reads, left to right."""
    match condition:
        case Field() | KafkaField():
            yield condition
        case IsNull(field=field):
            yield field
        case Comparison(left=left, right=right):
            yield from (side for side in (left, right) if not isinstance(side, Constant))
        case Not(condition=inner):
            yield from condition_fields(inner)
        case AllOf(conditions=inners) | AnyOf(conditions=inners):
            for inner in inners:
                yield from condition_fields(inner)
        case _:
            assert_never(condition)
