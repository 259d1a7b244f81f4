"""The language of computed columns: `day(meta.timestamp)`, `kafka.offset`, `'constant'`, as frozen values.

    expression := constant | kafka.<name> | path | function(expression, ...)
    path       := name.name...            a name in `backticks` may hold any character
    constant   := 'text' | "text" | 12 | -1.5 | true | false | null

A quote inside its own text is doubled: 'it''s'. `job.sql_text` parses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never, get_args

KafkaName: TypeAlias = Literal["topic", "partition", "offset", "timestamp", "key", "headers"]
FunctionName: TypeAlias = Literal[
    "day", "hour", "timestamp_seconds", "timestamp_millis", "timestamp_micros",
    "substr", "lower", "upper", "coalesce", "concat",
]  # fmt: skip

KAFKA_NAMES: tuple[KafkaName, ...] = get_args(KafkaName)
FUNCTION_NAMES: tuple[FunctionName, ...] = get_args(FunctionName)
KEYWORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Field:
    """A decoded field by its path from the top of the schema."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KafkaField:
    """Metadata of a record in the log."""

    name: KafkaName


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value in every row."""

    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Call:
    """A function over other expressions."""

    function: FunctionName
    args: tuple[Expression, ...]


Expression: TypeAlias = Field | KafkaField | Constant | Call


def leaves(expression: Expression) -> Iterator[Field | KafkaField | Constant]:
    """The fields and constants of the expression, left to right."""
    if isinstance(expression, Call):
        for arg in expression.args:
            yield from leaves(arg)
    else:
        yield expression


def fields(expression: Expression) -> Iterator[Field]:
    """Every decoded field that the expression reads, left to right."""
    return (leaf for leaf in leaves(expression) if isinstance(leaf, Field))


def to_text(expression: Expression) -> str:
    """Write an expression so that the same one is read again."""
    match expression:
        case Field(path=path):
            return ".".join(_written_name(name, first=index == 0) for index, name in enumerate(path))
        case KafkaField(name=name):
            return f"kafka.{name}"
        case Constant(value=value):
            return _written_constant(value)
        case Call(function=function, args=args):
            return f"{function}({', '.join(to_text(arg) for arg in args)})"
        case _:
            assert_never(expression)


def _written_name(name: str, *, first: bool) -> str:
    plain = re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and name not in KEYWORDS and not (first and name == "kafka")
    return name if plain else "`" + name.replace("`", "``") + "`"


def _written_constant(value: str | float | bool | None) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    keyword = next((keyword for keyword, meaning in KEYWORDS.items() if value is meaning), None)
    return keyword or repr(value)
