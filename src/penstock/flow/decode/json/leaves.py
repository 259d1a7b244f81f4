"""Single JSON values into the types of leaf columns, by what they mean: whatever fits its column is taken.

Arrow's parsers in the fast path take less (a zero with a large exponent, say) but nothing else, nor any other value.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import pyarrow as pa

from penstock.flow.decode.json.loose_text import ANY_TEXT
from penstock.flow.decode.json.text import JsonNumber, JsonObject
from penstock.flow.decode.json.times import day_number, timestamp_micros
from penstock.flow.decode.misfit import MisfitError, expected, shown
from penstock.job.schema import job_type_name

Value = Any
"""What `pa.array` takes for the type of its column."""

Read = Callable[[Any], Value]
"""Takes a value that is not null. Raises `MisfitError`, or `ValueError` if the value simply is not of the type."""

HALF_PAIR = "holds half of a surrogate pair"

_INTEGER_CHARACTERS_MAX = 20
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INFINITE = frozenset(["Infinity", "-Infinity"])


def leaf_reader(kind: pa.DataType) -> Read:
    """The function that reads values of a leaf type; it raises `MisfitError` for every value that is not of it."""
    read = plain_reader(kind)
    wanted = job_type_name(kind)

    def read_or_name(value: Any) -> Value:
        try:
            return read(value)
        except ValueError:
            raise expected(wanted, value) from None

    return read_or_name


def plain_reader(kind: pa.DataType) -> Read:
    """Like `leaf_reader`, but a value that is not of the type is a `ValueError`."""
    read = next((reader(kind) for fits, reader in _READERS if fits(kind)), None)
    if read is None:
        raise ValueError(f"{kind} is not a leaf type")
    return read


def well_formed(text: str) -> str:
    """The text itself. Raises `MisfitError` if an escape left half of a surrogate pair in it."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MisfitError(HALF_PAIR) from None
    return text


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError
    return well_formed(value)


def _any_text(value: Any) -> str:
    """A text as it is, every other value as JSON spells it: no digit of a number is lost."""
    return well_formed(value if type(value) is str else _spelled(value))


def _spelled(value: Any) -> str:
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is JsonNumber:
        return str(value)
    if type(value) is str:
        return json.dumps(value, ensure_ascii=False)
    parts: list[str] = []
    if type(value) is JsonObject:
        for name, each in value.items():
            if name in value.doubled:
                raise MisfitError("given twice").inside(name)
            parts.append(f"{json.dumps(name, ensure_ascii=False)}:{_spelled(each)}")
        return f"{{{','.join(parts)}}}"
    # A loop, not a generator: values may nest half as deep as Python's stack allows.
    for each in value:
        parts.append(_spelled(each))
    return f"[{','.join(parts)}]"


def _boolean(value: Any) -> Value:
    if type(value) is not bool:
        raise ValueError
    return value


def _integer_reader(kind: pa.DataType) -> Read:
    bound = 1 << (kind.bit_width - 1)

    def read(value: Any) -> Value:
        if type(value) is not JsonNumber or len(value) > _INTEGER_CHARACTERS_MAX:
            raise ValueError
        # Python's `int` refuses `1.0`, `1e2` and `NaN`, as a JSON number can be spelled, but takes longer to say so.
        number = int(value) if value.whole else bound
        if not -bound <= number < bound:
            raise ValueError
        return number

    return read


def _double(value: Any) -> Value:
    if type(value) is not JsonNumber:
        raise ValueError
    return _finite(value, float(value))


def _float_reader(kind: pa.DataType) -> Read:
    def read(value: Any) -> Value:
        if type(value) is not JsonNumber:
            raise ValueError
        # Not by way of Python's float: it would be rounded twice.
        return _finite(value, pa.array([str(value)]).cast(kind)[0].as_py())

    return read


def _finite(written: JsonNumber, number: float) -> float:
    if math.isinf(number) and written not in _INFINITE:
        raise MisfitError(f"the {shown(written)} is too large")
    return number


def _decimal_reader(kind: pa.DataType) -> Read:
    step = Decimal((0, (1,), -kind.scale))
    exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])

    def read(value: Any) -> Value:
        text = str(value) if type(value) is JsonNumber else _text(value)
        if not _DECIMAL.fullmatch(text):
            raise ValueError
        try:
            # Not by Arrow's cast from text: of hundreds of digits it makes a wrong number without a word.
            return Decimal(text).quantize(step, context=exact)
        except ArithmeticError:
            raise ValueError from None

    return read


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Read]], ...] = (
    (pa.types.is_string, lambda _: _text),
    (ANY_TEXT.equals, lambda _: _any_text),
    (pa.types.is_boolean, lambda _: _boolean),
    (pa.types.is_integer, _integer_reader),
    (pa.types.is_float64, lambda _: _double),
    (pa.types.is_float32, _float_reader),
    (pa.types.is_decimal, _decimal_reader),
    (pa.types.is_timestamp, lambda _: lambda value: timestamp_micros(_text(value))),
    (pa.types.is_date32, lambda _: lambda value: day_number(_text(value))),
    (pa.types.is_binary, lambda _: lambda value: base64.b64decode(_text(value), validate=True)),
)
