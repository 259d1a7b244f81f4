"""Texts of `sql:` and `columns`, and conditions, parsed by sqlglot; each is an expression over one row (RULES P4).

Spark checks names and types of `sql:` when the job starts, and with `check --deep`. Import this module where a text is
parsed: sqlglot is slow to import, and tasks do not need it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import sqlglot
from sqlglot import Dialect, errors, exp, parser, tokens
from sqlglot.dialects.dialect import DialectType

from penstock.job.conditions import AllOf, AnyField, AnyOf, Comparison, Condition, IsNull, Not, Operator
from penstock.job.expressions import (
    FUNCTION_NAMES,
    KAFKA_NAMES,
    KEYWORDS,
    Call,
    Constant,
    Expression,
    Field,
    FunctionName,
    KafkaField,
    to_text,
)
from penstock.job.faults import InvalidValueError, Secret, nearest, shown

NESTING_MAX = 32
_ARITIES: dict[FunctionName, tuple[int, float]] = {"substr": (3, 3), "coalesce": (2, math.inf), "concat": (1, math.inf)}
"""The least and most arguments of functions that take other than one."""
_BACKTICKS = "write a name that is a keyword or has special characters in `backticks`"
_HINT = "sql gives at most one row per record: expressions in select, a condition in where"


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One entry of `select`: the name of its column, the path if it is plain, and the columns that it reads."""

    name: str
    path: tuple[str, ...] | None
    columns: tuple[str, ...] = ()


def read_where(text: str) -> tuple[str, ...]:
    """Refuse what is not a condition over one row; the columns that it reads."""
    expression = _parse(text)
    if isinstance(expression, exp.Alias):
        raise InvalidValueError("where is a condition and has no name", "remove the `as`")
    return _columns(expression)


def read_select(text: str) -> SelectItem:
    """Refuse what is not an expression over one row, and find the name of its column."""
    expression = _parse(text)
    inner = expression.this if isinstance(expression, exp.Alias) else expression
    path: tuple[str, ...] | None = None
    plain = all(isinstance(node, exp.Column | exp.Dot | exp.Identifier) for node in inner.walk())
    if plain and isinstance(inner, exp.Column | exp.Dot):
        path = tuple(part.name for part in inner.parts)
    elif inner is expression:
        raise InvalidValueError("the column has no name", "end it with `as name`")
    name = expression.output_name
    return SelectItem(Secret(name) if isinstance(text, Secret) else name, path, _columns(expression))


def _columns(expression: exp.Expr) -> tuple[str, ...]:
    """The columns that an expression reads; none if it has names of its own."""
    if expression.find(exp.Lambda):
        return ()
    return tuple(dict.fromkeys(column.parts[0].name for column in expression.find_all(exp.Column)))


def _parse(text: str) -> exp.Expr:
    """Parse an expression over one row."""
    expression = _parsed(text, "spark", "an SQL expression")
    if isinstance(expression, exp.Aliases):
        raise InvalidValueError("is more than one expression", "write one entry of select for each")
    for node in expression.walk():
        reason = _reason(node)
        if reason:
            raise InvalidValueError(reason, _HINT)
    return expression


def _parsed(text: str, dialect: DialectType, what: str, hint: str = _BACKTICKS) -> exp.Expr:
    try:
        expression = sqlglot.parse_one(text, dialect=dialect, into=exp.Expr)
    except errors.ParseError as error:
        where = error.errors[0].get("highlight") if error.errors else None
        message = f"is not {what}: unexpected {where!r}" if where else f"is not {what}"
        raise InvalidValueError(message, hint) from None
    except (errors.TokenError, RecursionError):
        raise InvalidValueError(f"is not {what}", "is a quote or a bracket not closed?") from None
    if isinstance(expression, exp.Block):
        raise InvalidValueError("is more than one expression", "remove the semicolon")
    return expression


def _reason(node: exp.Expr) -> str:
    """Why an expression over one row cannot have this node; empty if it can."""
    match node:
        case exp.Query():
            return "a subquery reads other rows"
        case exp.Window() | exp.RowNumber():
            return "a window function reads other rows"
        case exp.UDTF():
            return f"{node.key}() is a generator: it makes many rows of one"
        case exp.AggFunc():
            return f"{node.sql_name().lower()}() is an aggregate: it makes one row of many"
        case exp.Any() if not isinstance(node.parent, exp.Like | exp.ILike):
            return "any() is an aggregate: it makes one row of many"
        case exp.Star():
            return "* cannot be part of an expression: write - '*', or name the columns"
        case exp.Identifier() if node.name.lower().startswith("_penstock"):
            return "names that begin with _penstock are reserved"
        case _:
            return ""


# computed columns


class _Columns(Dialect):
    """Fields, constants and functions, without keywords: a field may be called `from` or `date`."""

    class Tokenizer(tokens.Tokenizer):
        QUOTES: ClassVar = ["'", '"']
        IDENTIFIERS: ClassVar = ["`"]
        STRING_ESCAPES: ClassVar = ["'", '"']
        KEYWORDS: ClassVar = {}
        COMMENTS: ClassVar = []

    class Parser(parser.Parser):
        FUNCTIONS: ClassVar = {}
        FUNCTION_PARSERS: ClassVar = {}
        NO_PAREN_FUNCTIONS: ClassVar = {}
        NO_PAREN_FUNCTION_PARSERS: ClassVar = {}


def parse_expression(text: str) -> Expression:
    """Read the expression of a computed column."""
    return _expression(_parsed(text, _Columns, "a column expression", f"{_BACKTICKS}; other SQL belongs in sql.select"))


def _expression(node: exp.Expr, depth: int = 1) -> Expression:
    if depth > NESTING_MAX:
        raise InvalidValueError(f"more than {NESTING_MAX} levels of nested functions")
    match node:
        case exp.Literal() if node.is_string:
            return Constant(node.name)
        case exp.Literal():
            return _number(node.name)
        case exp.Neg(this=exp.Literal()) if not node.this.is_string:
            return _number(f"-{node.this.name}")
        case exp.Anonymous():
            return _call(node.name, [_expression(argument, depth + 1) for argument in node.expressions])
        case exp.Column() | exp.Dot() if all(isinstance(part, exp.Identifier) for part in node.parts):
            return _field(node.parts)
        case exp.Alias():
            words = f"{node.this.sql(_Columns)} {node.alias}"
            raise InvalidValueError(
                f"{shown(words)} is not a field, a constant or a function", f"text is written \"'{words}'\""
            )
        case _:
            text = node.sql(_Columns, normalize_functions=False)
            hint = "write names with special characters in backticks, as in `user-agent`"
            if node.find(exp.Binary, exp.Bracket, exp.Neg):
                computed = f'Spark computes it: sql: {{select: ["*", "{text} as name"]}}'
                hint = f"{hint}; {computed}" if node.find(exp.Sub) else computed
            raise InvalidValueError(f"{shown(text)} is not a field, a constant or a function", hint)


def _number(text: str) -> Constant:
    number = float(text) if re.search(r"[.eE]", text) else int(text)
    if isinstance(number, float) and not math.isfinite(number):
        raise InvalidValueError("the number is too large")
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise InvalidValueError("the number does not fit into 64 bits")
    return Constant(number)


def _field(parts: Sequence[exp.Expr]) -> Expression:
    names = tuple(part.name for part in parts)
    first = None if parts[0].args.get("quoted") else names[0]
    if len(names) == 1 and first in KEYWORDS:
        return Constant(KEYWORDS[first])
    if first != "kafka" or len(names) == 1:
        return Field(names)
    for name in KAFKA_NAMES:
        if names[1:] == (name,):
            return KafkaField(name)
    whole = [f"kafka.{name}" for name in KAFKA_NAMES]
    text = ".".join(names)
    raise InvalidValueError(f"unknown column {text}", nearest(text, whole) or f"there are: {', '.join(whole)}")


def _call(name: str, args: Sequence[Expression]) -> Call:
    function = next((candidate for candidate in FUNCTION_NAMES if candidate == name), None)
    if function is None:
        hint = nearest(name, FUNCTION_NAMES) or f"known functions: {', '.join(FUNCTION_NAMES)}"
        raise InvalidValueError(f"unknown function {name}", hint)
    least, most = _ARITIES.get(function, (1, 1))
    if not least <= len(args) <= most:
        expected = f"{least}" if most == least else f"at least {least}"
        raise InvalidValueError(f"{function} takes {expected} argument(s), not {len(args)}")
    # Fixed bounds let one Arrow kernel cut the whole batch.
    for bound, least in zip(args[1:], (1, 0), strict=True) if function == "substr" else ():
        if not isinstance(bound, Constant) or type(bound.value) is not int or bound.value < least:
            raise InvalidValueError("substr takes whole numbers: a start from 1, a length from 0")
    return Call(function, tuple(args))


# conditions


class _Conditions(_Columns):
    """Fields, constants and comparisons."""

    class Tokenizer(_Columns.Tokenizer):
        KEYWORDS: ClassVar = {
            word: tokens.Tokenizer.KEYWORDS[word]
            for word in ("AND", "OR", "NOT", "IN", "IS", "NULL", "==", "!=", "<>", "<=", ">=")
        }


_OPERATORS: dict[type[exp.Expr], tuple[Operator, Operator]] = {
    exp.EQ: ("=", "="), exp.NEQ: ("!=", "!="), exp.LT: ("<", ">"),
    exp.LTE: ("<=", ">="), exp.GT: (">", "<"), exp.GTE: (">=", "<="),
}  # fmt: skip
"""Each with its mirror image, for a constant on the left."""
_COMPARISONS = "a condition has =, !=, <, <=, >, >=, in (...), is null, is not null, and, or, not and parentheses"


def parse_condition(text: str) -> Condition:
    """Read a condition over one row."""
    return _condition(_parsed(text, _Conditions, "a condition", _COMPARISONS))


def _condition(node: exp.Expr, depth: int = 1) -> Condition:
    if depth > NESTING_MAX:
        raise InvalidValueError(f"more than {NESTING_MAX} levels of nested conditions")
    match node:
        case exp.Paren():
            return _condition(node.this, depth + 1)
        case exp.And():
            return AllOf(tuple(_condition(part, depth + 1) for part in node.flatten(unnest=False)))
        case exp.Or():
            return AnyOf(tuple(_condition(part, depth + 1) for part in node.flatten(unnest=False)))
        case exp.Not():
            return Not(_condition(node.this, depth + 1))
        case exp.Is(expression=exp.Null()):
            return IsNull(_compared_field(node.this))
        case exp.In(expressions=[_, *_]):
            field = _compared_field(node.this)
            return AnyOf(tuple(Comparison(field, "=", _listed(item)) for item in node.expressions))
        case exp.Column() | exp.Dot():
            return _compared_field(node)
        case _ if type(node) in _OPERATORS:
            return _comparison(node)
        case _:
            text = node.sql(_Conditions, normalize_functions=False)
            raise InvalidValueError(f"{shown(text)} is not a condition", _COMPARISONS)


def _comparison(node: exp.Expr) -> Comparison:
    operator, mirrored = _OPERATORS[type(node)]
    left, right = _operand(node.this), _operand(node.expression)
    if not isinstance(left, Constant):
        return Comparison(left, operator, right)
    if not isinstance(right, Constant):
        return Comparison(right, mirrored, left)
    raise InvalidValueError(f"{to_text(left)} and {to_text(right)} are both constants", "compare a field with a value")


def _compared_field(node: exp.Expr) -> AnyField:
    operand = _operand(node)
    if isinstance(operand, Constant):
        raise InvalidValueError(f"{to_text(operand)} is not a field", _COMPARISONS)
    return operand


def _listed(node: exp.Expr) -> Constant:
    operand = _operand(node)
    if not isinstance(operand, Constant):
        raise InvalidValueError(f"{to_text(operand)} is not a constant", f"put text in quotes: '{to_text(operand)}'")
    return operand


def _operand(node: exp.Expr) -> AnyField | Constant:
    node = node.unnest()
    if isinstance(node, exp.Null):
        raise InvalidValueError("nothing is equal to null", "write `is null` or `is not null`")
    if not isinstance(node, exp.Column | exp.Dot | exp.Literal | exp.Neg):
        text = node.sql(_Conditions, normalize_functions=False)
        raise InvalidValueError(f"{shown(text)} is not a field or a value", _COMPARISONS)
    operand = _expression(node)
    assert not isinstance(operand, Call)
    return operand
