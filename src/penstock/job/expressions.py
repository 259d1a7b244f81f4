"""The language of computed columns: `day(meta.timestamp)`, `kafka.offset`, `'constant'`, as frozen values.

    expression := constant | kafka.<name> | path | function(expression, ...)
    path       := name.name...            a name in `backticks` may hold any character
    constant   := 'text' | "text" | 12 | -1.5 | true | false | null

A quote is doubled to stand inside its own text: 'it''s'.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never, get_args

from penstock.errors import did_you_mean, near_words

KafkaName: TypeAlias = Literal["topic", "partition", "offset", "timestamp", "key", "headers"]
FunctionName: TypeAlias = Literal[
    "day", "hour", "timestamp_seconds", "timestamp_millis", "timestamp_micros",
    "substr", "lower", "upper", "coalesce", "concat",
]  # fmt: skip

KAFKA_NAMES: tuple[KafkaName, ...] = get_args(KafkaName)
FUNCTION_NAMES: tuple[FunctionName, ...] = get_args(FunctionName)
NESTING_MAX = 32
INT_MIN, INT_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Field:
    """A decoded field by its path from the top of the schema."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KafkaField:
    """What the log itself knows of a record."""

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


class ExpressionError(ValueError):
    """The text is no expression; `position` is the index of the character where reading stopped."""

    def __init__(self, message: str, position: int, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.hint = hint


_ARITIES: dict[FunctionName, tuple[int, int | None]] = {"substr": (3, 3), "coalesce": (2, None), "concat": (1, None)}
"""The least and most arguments of functions that take other than one; None: any number."""

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<float>-?[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)(?![\w.]))
      | (?P<int>-?[0-9]+(?![\w.]))
      | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<name>[^\W\d][\w@$-]*|@[\w@$-]+)
      | (?P<mark>[().,])""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


def parse(text: str) -> Expression:
    """Read one expression; raises `ExpressionError` with the place and, where one is near, the name that was meant."""
    reader = _Reader(_tokens(text))
    expression = reader.expression(depth=1)
    reader.take("", "nothing more")
    return expression


def fields(expression: Expression) -> Iterator[Field]:
    """Every decoded field that the expression reads, left to right."""
    match expression:
        case Field():
            yield expression
        case Call(args=args):
            for arg in args:
                yield from fields(arg)
        case KafkaField() | Constant():
            return
        case _:
            assert_never(expression)


def to_text(expression: Expression) -> str:
    """Write an expression so that `parse` reads the same one again."""
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
    found = _TOKEN.fullmatch(name)
    plain = found is not None and found.lastgroup == "name" and name not in _WORDS and not (first and name == "kafka")
    return name if plain else "`" + name.replace("`", "``") + "`"


def _written_constant(value: str | float | bool | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ExpressionError(_unreadable(text[position]), position)
        kind = found.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, found.group(), position))
        position = found.end()
    tokens.append(_Token("end", "", len(text)))
    return tokens


def _unreadable(character: str) -> str:
    if character in "'\"`":
        return f"the quote {character} is never closed"
    return f"{character!r} does not belong into a column expression"


class _Reader:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._index = 0

    def expression(self, depth: int) -> Expression:
        token = self._next()
        if depth > NESTING_MAX:
            raise ExpressionError(f"more than {NESTING_MAX} functions inside each other", token.position)
        match token.kind:
            case "text":
                quote = token.text[0]
                return Constant(token.text[1:-1].replace(quote * 2, quote))
            case "int":
                if len(token.text) > len(str(INT_MIN)) or not INT_MIN <= int(token.text) <= INT_MAX:
                    raise ExpressionError("the number does not fit into 64 bits", token.position)
                return Constant(int(token.text))
            case "float":
                if math.isinf(float(token.text)):
                    raise ExpressionError("the number is too large", token.position)
                return Constant(float(token.text))
            case "name" if token.text in _WORDS and not self._at("."):
                return Constant(_WORDS[token.text])
            case "name" if self._at("("):
                return self._call(token, depth)
            case "name" | "quoted":
                return self._path(token)
            case _:
                raise ExpressionError(_wanted("a field, a constant or a function", token), token.position)

    def take(self, text: str, what: str) -> None:
        """Pass over the token of this text, which is empty at the end."""
        token = self._next()
        if token.text != text:
            raise ExpressionError(_wanted(what, token), token.position)

    def _call(self, name: _Token, depth: int) -> Expression:
        function = _function(name)
        self._next()
        args: list[Expression] = []
        while not self._at(")"):
            if args:
                self.take(",", "',' or ')'")
            args.append(self.expression(depth + 1))
        self._next()
        _check_arguments(function, args, name.position)
        return Call(function, tuple(args))

    def _path(self, first: _Token) -> Expression:
        names = [first]
        while self._at("."):
            self._next()
            token = self._next()
            if token.kind not in ("name", "quoted"):
                raise ExpressionError(_wanted("a field name after '.'", token), token.position)
            names.append(token)
        if first.kind == "name" and first.text == "kafka" and len(names) > 1:
            return _kafka_field(names)
        return Field(tuple(_unquoted(name) for name in names))

    def _at(self, mark: str) -> bool:
        token = self._tokens[self._index]
        return token.kind == "mark" and token.text == mark

    def _next(self) -> _Token:
        token = self._tokens[self._index]
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token


def _wanted(what: str, found: _Token) -> str:
    seen = "the text ends" if found.kind == "end" else f"there is {found.text!r}"
    return f"expected {what}, but {seen}"


def _unquoted(token: _Token) -> str:
    return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text


def _function(token: _Token) -> FunctionName:
    for name in FUNCTION_NAMES:
        if token.text == name:
            return name
    hint = did_you_mean(token.text, FUNCTION_NAMES) or f"known functions: {', '.join(FUNCTION_NAMES)}"
    raise ExpressionError(f"unknown function {token.text}", token.position, hint)


def _kafka_field(names: list[_Token]) -> KafkaField:
    if len(names) > 2:
        raise ExpressionError("kafka columns have no parts", names[2].position)
    for name in KAFKA_NAMES:
        if names[1].text == name:
            return KafkaField(name)
    near = near_words(names[1].text, KAFKA_NAMES)
    hint = f"did you mean kafka.{near[0]}?" if near else f"there are: {', '.join(f'kafka.{n}' for n in KAFKA_NAMES)}"
    raise ExpressionError(f"unknown column kafka.{names[1].text}", names[1].position, hint)


def _check_arguments(function: FunctionName, args: list[Expression], position: int) -> None:
    least, most = _ARITIES.get(function, (1, 1))
    if len(args) < least or (most is not None and len(args) > most):
        wanted = f"{least}" if most == least else f"at least {least}"
        raise ExpressionError(f"{function} takes {wanted} argument(s), not {len(args)}", position)
    # Fixed bounds let the whole batch be cut by one Arrow kernel.
    bounds = zip(args[1:], ("start", "length"), (1, 0), strict=True) if function == "substr" else ()
    for arg, what, least in bounds:
        if not isinstance(arg, Constant) or type(arg.value) is not int or arg.value < least:
            raise ExpressionError(f"the {what} of substr is a whole number from {least} on", position)
