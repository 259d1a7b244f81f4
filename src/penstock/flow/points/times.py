"""Timestamps of points in whole milliseconds, rounded down."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from fractions import Fraction

import numpy as np

from penstock.flow.decode.misfit import MisfitError, clipped
from penstock.flow.spans import Integers, Mask
from penstock.job.spec import PointTimes

AT_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the last time that tables can store."""
_DIGITS_MAX = 64
_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_AUTO = (("s", 10**11), ("ms", 10**14), ("us", 10**17))
"""The unit of a number below each bound, larger ones are nanoseconds: right from 1973 to 5138."""


def exact_ms(text: str, unit: PointTimes) -> int:
    """The instant of a number as it was written, which may have a fraction. Raises `MisfitError`."""
    try:
        number = int(text) if len(text) < _DIGITS_MAX and text.isdecimal() else _number(text)
    except (ValueError, InvalidOperation):
        raise MisfitError(f"{clipped(text, _DIGITS_MAX)} is not an instant from 1970 to 9999") from None
    if number < 0:
        raise MisfitError(f"{text} is before 1970")
    at_ms = number * 1000 // _UNITS_PER_SECOND[_unit(number, unit)]
    if at_ms > AT_MS_MAX:
        raise MisfitError(f"{text} is not an instant from 1970 to 9999")
    return int(at_ms)


def whole_ms(numbers: Integers, unit: PointTimes) -> tuple[Integers, Mask]:
    """The instants of whole numbers from 0 on, and which of them a table can store; the others are undefined."""
    if unit != "auto":
        return _scaled(numbers, unit)
    if not len(numbers):
        return numbers, np.ones(0, np.bool_)
    least, most = (_unit(int(number), unit) for number in (numbers.min(), numbers.max()))
    if least == most:
        return _scaled(numbers, most)
    at_ms, fits = _scaled(numbers, "ns")
    for name, bound in reversed(_AUTO):
        scaled, held = _scaled(numbers, name)
        at_ms, fits = np.where(numbers < bound, scaled, at_ms), np.where(numbers < bound, held, fits)
    return at_ms, fits


def _number(text: str) -> Fraction:
    if len(text) > _DIGITS_MAX or not -_DIGITS_MAX < Decimal(text).adjusted() < _DIGITS_MAX:
        raise ValueError
    return Fraction(text)


def _unit(number: int | Fraction, unit: PointTimes) -> str:
    if unit != "auto":
        return unit
    return next((name for name, bound in _AUTO if number < bound), "ns")


def _scaled(numbers: Integers, unit: str) -> tuple[Integers, Mask]:
    per_second = _UNITS_PER_SECOND[unit]
    fits = numbers <= AT_MS_MAX // 1000 if per_second == 1 else np.ones(len(numbers), np.bool_)
    at_ms = np.where(fits, numbers, 0) * 1000 if per_second == 1 else numbers // (per_second // 1000)
    return at_ms, fits & (at_ms <= AT_MS_MAX)
