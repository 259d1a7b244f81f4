"""A second JSON decoder, written for clarity and from Python's own parts only: what each record must become.

It knows nothing of Arrow's reader, of batches or of neighbours. A record is one strict JSON object, read by field;
numbers are exact until their column is known. `NaN` and the infinities may stand where no column asks for a value. Half
of a surrogate pair and an exponent that no double has make a record bad anywhere.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

DEPTH_MAX = 500
_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2})(?::(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?(Z|[+-]\d{2}(?::?\d{2})?)?)?", re.ASCII
)
_DECIMAL = re.compile(r"[+-]?0*(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?", re.ASCII)
_DECIMAL_DIGITS_MAX = 76
"""As written: a decimal with more digits, or with as many zeros before its point, is not read."""
_DECIMAL_EXPONENT_MIN = -39
_DECIMAL_CHARACTERS_MAX = 38
"""Before a negative exponent there are fewer."""
_FLOAT_LIMIT = Fraction(2**128) - Fraction(2**103)
"""Half a step beyond the largest number of 32 bits: from here on it would be rounded to infinity."""


class BadError(Exception):
    """The record cannot be a row."""


@dataclass(frozen=True)
class Number:
    text: str


@dataclass(frozen=True)
class Members:
    pairs: list[tuple[str, Any]]


def oracle(schema: pa.Schema, record: bytes, *, known_only: bool) -> list[Any] | None:
    """One value per field as `comparable` writes them, None if the record is bad."""
    try:
        return _row(list(schema), _parsed(record), known_only)
    except BadError:
        return None


def _parsed(record: bytes) -> Members:
    try:
        text = record.decode()
    except UnicodeDecodeError:
        raise BadError from None
    if _depth(text) > DEPTH_MAX:
        raise BadError
    # Arrow's reader has two more spellings; outside of strings nothing else can look like them.
    text = re.sub(r'("(?:[^"\\]|\\.)*")|-NaN|-Inf(?!inity)|Inf(?!inity)', _long_spelling, text)
    try:
        value = json.loads(text, object_pairs_hook=Members, parse_int=Number, parse_float=Number, parse_constant=Number)
    except ValueError:
        raise BadError from None
    if not isinstance(value, Members):
        raise BadError
    _check_readable(value)
    return value


def _check_readable(value: Any) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadError from None
    elif isinstance(value, Number):
        exponent = re.fullmatch(r"-?\d+(?:\.(\d+))?[eE]\+?(\d{2,})", value.text)
        if exponent and int(exponent[2]) > 308 + len(exponent[1] or ""):
            raise BadError
    elif isinstance(value, list | Members):
        for part in value if isinstance(value, list) else itertools.chain.from_iterable(value.pairs):
            _check_readable(part)


def _long_spelling(match: re.Match[str]) -> str:
    return match[1] or {"-NaN": "NaN", "-Inf": "-Infinity", "Inf": "Infinity"}[match[0]]


def _depth(text: str) -> int:
    depth = deepest = 0
    quoted = False
    at = 0
    while at < len(text):
        mark = text[at]
        if quoted:
            at += mark == "\\"
            quoted = mark != '"'
        elif mark == '"':
            quoted = True
        else:
            depth += (mark in "[{") - (mark in "]}")
            deepest = max(deepest, depth)
        at += 1
    return deepest


def _row(fields: Iterable[pa.Field], members: Any, known_only: bool) -> list[Any]:
    if not isinstance(members, Members):
        raise BadError
    fields = list(fields)
    names = [name for name, _ in members.pairs]
    if known_only and set(names) - {field.name for field in fields}:
        raise BadError
    row = []
    for field in fields:
        if names.count(field.name) > 1:
            raise BadError
        row.append(_value(field.type, dict(members.pairs).get(field.name), known_only))
    return row


def _value(kind: pa.DataType, value: Any, known_only: bool) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        children = [kind.field(index) for index in range(kind.num_fields)]
        return {
            child.name: candidate for child, candidate in zip(children, _row(children, value, known_only), strict=True)
        }
    if pa.types.is_list(kind):
        if type(value) is not list:
            raise BadError
        return [_value(kind.value_type, item, known_only) for item in value]
    if pa.types.is_boolean(kind):
        if type(value) is not bool:
            raise BadError
        return value
    if pa.types.is_integer(kind):
        return _integer(kind, value)
    if pa.types.is_floating(kind):
        return _floating(kind, value)
    if pa.types.is_decimal(kind):
        return _decimal(kind, value)
    return _from_text(kind, value)


def _integer(kind: pa.DataType, value: Any) -> int:
    if not isinstance(value, Number) or not re.fullmatch(r"-?[0-9]{1,4000}", value.text):
        raise BadError
    number = int(value.text)
    if not -(2 ** (kind.bit_width - 1)) <= number < 2 ** (kind.bit_width - 1):
        raise BadError
    return number


def _floating(kind: pa.DataType, value: Any) -> str:
    if not isinstance(value, Number):
        raise BadError
    number = float(value.text)
    if not math.isfinite(number):
        raise BadError
    if pa.types.is_float64(kind):
        return repr(number)
    with localcontext(prec=2_000, Emax=9_999_999, Emin=-9_999_999):
        exact = Fraction(Decimal(value.text)) if abs(number) > 0 else Fraction(0)
    if abs(exact) >= _FLOAT_LIMIT:
        raise BadError
    return repr(_nearest_float(exact, number))


def _nearest_float(exact: Fraction, rough: float) -> float:
    """The number of 32 bits that is nearest, of two the one with an even significand."""
    middle = np.float32(min(max(rough, -3.4028234663852886e38), 3.4028234663852886e38))
    with np.errstate(over="ignore"):
        near = [middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))]
    finite = [item for item in near if np.isfinite(item)]
    best = min(
        finite, key=lambda candidate: (abs(Fraction(float(candidate)) - exact), int(candidate.view(np.uint32)) & 1)
    )
    return math.copysign(float(best), rough)


def _decimal(kind: pa.DataType, value: Any) -> Decimal:
    text = value.text if isinstance(value, Number) else value
    if type(text) is not str or not re.search("[0-9]", text):
        raise BadError
    parts = _DECIMAL.fullmatch(text)
    if parts is None or len(parts[1]) + len(parts[2]) > _DECIMAL_DIGITS_MAX:
        raise BadError
    exponent = int(parts[3] or 0)
    if exponent - len(parts[2]) > _DECIMAL_DIGITS_MAX or exponent < _DECIMAL_EXPONENT_MIN:
        raise BadError
    if "e-" in text.lower() and len(text.lower().split("e")[0].lstrip("+-")) >= _DECIMAL_CHARACTERS_MAX:
        raise BadError
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise BadError from None
    if number == 0:
        return Decimal(0)
    with localcontext(prec=2_000):
        # A number far from any that fits is not worth its digits.
        if not -400 < number.adjusted() < 400:
            raise BadError
        scaled = number.scaleb(kind.scale)
        if scaled != scaled.to_integral_value() or abs(scaled) >= 10**kind.precision:
            raise BadError
    return number


def _from_text(kind: pa.DataType, value: Any) -> Any:
    if type(value) is not str:
        raise BadError
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadError from None
    if pa.types.is_string(kind):
        return value
    try:
        if pa.types.is_binary(kind):
            return base64.b64decode(value, validate=True)
        if pa.types.is_date32(kind):
            return _days(value) if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value) else _refuse()
        return _micros(value)
    except ValueError:
        raise BadError from None


def _refuse() -> Any:
    raise BadError


def _days(text: str) -> int:
    year, month, day = map(int, text.split("-"))
    if year == 0:
        return (date(400, month, day) - date(1970, 1, 1)).days - 146_097
    return (date(year, month, day) - date(1970, 1, 1)).days


def _micros(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise BadError
    day, hour, minute, second, fraction, zone = match.groups()
    clock = datetime(1970, 1, 1, int(hour or 0), int(minute or 0), int(second or 0), tzinfo=UTC)
    offset = timedelta(0)
    if zone and zone != "Z":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        if int(digits[:2]) > 23 or int(digits[2:]) > 59:
            raise BadError
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:])) * (-1 if zone[0] == "-" else 1)
    since_midnight = (clock - datetime(1970, 1, 1, tzinfo=UTC) - offset) // timedelta(microseconds=1)
    return _days(day) * 86_400_000_000 + since_midnight + int((fraction or "")[:6].ljust(6, "0"))


def comparable(kind: pa.DataType, value: pa.Scalar) -> Any:
    """A decoded value as the oracle writes it: days and microseconds as numbers, floats as text."""
    if not value.is_valid:
        return None
    if pa.types.is_struct(kind):
        children = [kind.field(index) for index in range(kind.num_fields)]
        return {child.name: comparable(child.type, value[child.name]) for child in children}
    if pa.types.is_list(kind):
        return [comparable(kind.value_type, item) for item in value.values]
    if pa.types.is_temporal(kind):
        return value.value
    if pa.types.is_floating(kind):
        return repr(value.as_py())
    return value.as_py()
