"""The texts of `sql:`, parsed by sqlglot: expressions over one row; anything else is refused (RULES P4).

Spark checks names and types when the job starts, and with `check --deep`. Import this module only for jobs with `sql`:
sqlglot is slow to import.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlglot
from sqlglot import errors, exp

from penstock.job.faults import RefusedError, Secret

_ALL_ROWS = frozenset({
    "count_min_sketch", "every", "histogram_numeric", "hll_sketch_agg", "hll_union_agg", "mean", "some", "std",
    "try_avg", "try_sum", "session_window", "window", "window_time", "inline_outer", "json_tuple", "variant_explode",
    "variant_explode_outer",
})  # fmt: skip
"""Functions of several rows that sqlglot has no class for."""
_HINT = "sql gives at most one row per record: expressions in select, a condition in where"


class SqlRefusedError(RefusedError):
    """The text is more than an expression over one row."""

    def __init__(self, message: str, hint: str = _HINT) -> None:
        super().__init__(message, hint)


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One entry of `select`: the name of its column, and the path if it is a plain column."""

    name: str
    path: tuple[str, ...] | None


def check_where(text: str) -> None:
    """Refuse what is not a condition over one row."""
    if isinstance(_parse(text), exp.Alias):
        raise SqlRefusedError("where is a condition and has no name", "remove the `as`")


def read_select(text: str) -> SelectItem:
    """Refuse what is not an expression over one row, and find the name of its column."""
    expression = _parse(text)
    inner = expression.this if isinstance(expression, exp.Alias) else expression
    path: tuple[str, ...] | None = None
    if all(isinstance(node, exp.Column | exp.Dot | exp.Identifier) for node in inner.walk()):
        path = tuple(part.name for part in inner.parts)
    elif inner is expression:
        raise SqlRefusedError("the column has no name", "end it with `as name`")
    name = expression.output_name
    return SelectItem(Secret(name) if isinstance(text, Secret) else name, path)


def _parse(text: str) -> exp.Expr:
    try:
        expression = sqlglot.parse_one(text, read="spark", into=exp.Expr)
    except errors.ParseError as error:
        where = error.errors[0].get("highlight") if error.errors else None
        message = f"is not an SQL expression: unexpected {where!r}" if where else "is not an SQL expression"
        raise SqlRefusedError(message, f"{_HINT}; a column named like a keyword is written in `backticks`") from None
    except (errors.TokenError, RecursionError):
        raise SqlRefusedError("is not an SQL expression", "is a quote or a bracket not closed?") from None
    if isinstance(expression, exp.Block | exp.Aliases):
        raise SqlRefusedError("is more than one expression", "write one entry of select for each")
    for node in expression.walk():
        reason = _reason(node)
        if reason:
            raise SqlRefusedError(reason)
    return expression


def _reason(node: exp.Expr) -> str:
    """Why an expression over one row cannot have this node; empty if it can."""
    match node:
        case exp.Query():
            return "a subquery reads other rows"
        case exp.Window() | exp.RowNumber():
            return "a window function reads other rows"
        case exp.UDTF():
            return f"{node.sql_name().lower()}() is a generator: it makes many rows of one"
        case exp.AggFunc():
            return f"{node.sql_name().lower()}() is an aggregate: it makes one row of many"
        case exp.Anonymous() if node.name.lower() in _ALL_ROWS:
            return f"{node.name}() makes one row of many, or many of one"
        case exp.Any() if not isinstance(node.parent, exp.Like | exp.ILike):
            return "any() is an aggregate: it makes one row of many"
        case exp.Star():
            return "* is only an entry of its own: write - '*', or name the columns"
        case exp.Identifier() if node.name.lower().startswith("_penstock"):
            return "columns that begin with _penstock are Penstock's own"
        case _:
            return ""
