"""Single JSON values into the types of leaf columns, with the outcome that Arrow's parsers have in the fast path."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import pyarrow as pa

from penstock.flow.decode.json_text import JsonNumber
from penstock.flow.decode.misfit import MisfitError, expected, shown
from penstock.flow.decode.times import timestamps

Value = Any
"""What `pa.array` takes for the type of its column."""

LeafReader = Callable[[pa.DataType, Any], Value]
"""Takes a value that is not null. Raises `MisfitError`, or `ValueError` if the value simply is not of the type."""

DECIMAL_READ_DIGITS = 76
"""Decimals are first read this wide: Arrow's JSON reader does not look at the precision after scaling."""

_EXPONENT_MAX = 308
_INTEGER_CHARACTERS_MAX = 20
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_EXACT = Context(prec=2 * DECIMAL_READ_DIGITS, traps=[Inexact, InvalidOperation])


def leaf_reader(kind: pa.DataType) -> LeafReader:
    """The function that reads values of a leaf type."""
    for fits, reader in _READERS:
        if fits(kind):
            return reader
    raise ValueError(f"{kind} is not a leaf type")


def read_leaf(reader: LeafReader, kind: pa.DataType, value: Any) -> Value:
    """Raises `MisfitError` for every value that is not of the type."""
    if type(value) is JsonNumber and _too_large(value):
        raise MisfitError(f"the {shown(value)} is too large")
    try:
        return reader(kind, value)
    except ValueError:
        raise expected(kind, value) from None


def well_formed(text: str) -> str:
    """The text itself. Raises `MisfitError` if an escape left half of a surrogate pair in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MisfitError("holds half of a surrogate pair") from None
    return text


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError
    return well_formed(value)


def _read_string(_: pa.DataType, value: Any) -> Value:
    return _text(value)


def _read_boolean(_: pa.DataType, value: Any) -> Value:
    if type(value) is not bool:
        raise ValueError
    return value


def _read_integer(kind: pa.DataType, value: Any) -> Value:
    if type(value) is not JsonNumber or not value.whole or len(value) > _INTEGER_CHARACTERS_MAX:
        raise ValueError
    number, bound = int(value), 1 << (kind.bit_width - 1)
    if not -bound <= number < bound:
        raise ValueError
    return number


def _read_double(_: pa.DataType, value: Any) -> Value:
    if type(value) is not JsonNumber:
        raise ValueError
    return float(value)


def _read_float(kind: pa.DataType, value: Any) -> Value:
    if type(value) is not JsonNumber:
        raise ValueError
    # Not by way of Python's float: it would be rounded twice.
    return pa.array([str(value)]).cast(kind)[0].as_py()


def _read_decimal(kind: pa.DataType, value: Any) -> Value:
    text = str(value) if type(value) is JsonNumber else _text(value)
    if not _DECIMAL.fullmatch(text):
        raise ValueError
    number = Decimal(text)
    # Not by Arrow's cast from text: of hundreds of digits it makes a wrong number without a word.
    written = number.as_tuple()
    if not isinstance(written.exponent, int) or max(len(written.digits), -written.exponent) > DECIMAL_READ_DIGITS:
        raise ValueError
    try:
        scaled = number.quantize(Decimal((0, (1,), -kind.scale)), context=_EXACT)
    except ArithmeticError:
        raise ValueError from None
    if len(scaled.as_tuple().digits) > kind.precision:
        raise ValueError
    return scaled


def _read_timestamp(_: pa.DataType, value: Any) -> Value:
    return timestamps(pa.array([_text(value)]))[0].value


def _read_date(kind: pa.DataType, value: Any) -> Value:
    return pa.array([_text(value)]).cast(kind)[0].value


def _read_binary(_: pa.DataType, value: Any) -> Value:
    return base64.b64decode(_text(value), validate=True)


_READERS: tuple[tuple[Callable[[pa.DataType], bool], LeafReader], ...] = (
    (pa.types.is_string, _read_string),
    (pa.types.is_boolean, _read_boolean),
    (pa.types.is_integer, _read_integer),
    (pa.types.is_float64, _read_double),
    (pa.types.is_float32, _read_float),
    (pa.types.is_decimal, _read_decimal),
    (pa.types.is_timestamp, _read_timestamp),
    (pa.types.is_date32, _read_date),
    (pa.types.is_binary, _read_binary),
)


def _too_large(number: JsonNumber) -> bool:
    """Arrow's reader judges by the exponent as written, whatever the digits before it."""
    significand, _, exponent = number.lower().partition("e")
    return bool(exponent) and float(exponent) > _EXPONENT_MAX + len(significand.partition(".")[2])
