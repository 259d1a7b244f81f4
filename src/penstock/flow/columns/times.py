"""Times written as text (ISO 8601) into microseconds of UTC, a whole array at a time.

A date alone is its midnight, a time without a zone is UTC, up to nine fraction digits are cut to six.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

UTC_MICROS = pa.timestamp("us", "UTC")
_NAIVE_MICROS = pa.timestamp("us")

_DATE = r"\d{4}-\d{2}-\d{2}"
_HOUR, _SIXTY = r"(?:[01]\d|2[0-3])", r"[0-5]\d"
_ONE_TIME = re.compile(
    rf"{_DATE}(?:[T ]{_HOUR}(?::{_SIXTY}(?::{_SIXTY}(?:\.\d{{1,9}})?)?)?(?:Z|[+-]{_HOUR}(?::?{_SIXTY})?)?)?", re.ASCII
)
_ONE_DAY = re.compile(_DATE, re.ASCII)
_MONTH_AND_DAY = r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_CERTAIN_DAY = rf"^\d{{4}}-{_MONTH_AND_DAY}$"
_CERTAIN_TIME = rf"^\d{{4}}-{_MONTH_AND_DAY}[T ]{_HOUR}:{_SIXTY}:{_SIXTY}(?:\.\d{{1,6}})?(?:Z|[+-]{_HOUR}:{_SIXTY})?$"
"""Usual spellings that are right in any year, which one cast can read once each time has a zone."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_CYCLE = timedelta(days=146_097)
"""400 years, after which the calendar repeats itself."""


def timestamp_micros(text: str) -> int:
    """One time, with the outcome that `timestamps_or_null` has for it. Raises `ValueError`."""
    if not _ONE_TIME.fullmatch(text):
        raise ValueError("not a time")
    if text.startswith("0000"):
        # Python's calendar begins a year later.
        return timestamp_micros("0400" + text[4:]) - _CYCLE // _MICROSECOND
    result = datetime.fromisoformat(text)
    offset = result.utcoffset() or timedelta(0)
    # Not as a time of UTC: at either end of the calendar there may be none.
    return (result.replace(tzinfo=UTC) - _EPOCH - offset) // _MICROSECOND


def day_number(text: str) -> int:
    """The days from 1970 to a date written `YYYY-MM-DD`. Raises `ValueError`."""
    if not _ONE_DAY.fullmatch(text):
        raise ValueError("not a date")
    if text.startswith("0000"):
        return day_number("0400" + text[4:]) - _CYCLE.days
    return date.fromisoformat(text).toordinal() - _EPOCH_DAY


def timestamps_or_null(text: pa.Array) -> tuple[pa.Array, list[int]]:
    """Texts as times; one that is not a time becomes null and its row number is returned."""
    with suppress(pa.ArrowInvalid):
        return text.cast(UTC_MICROS), []
    certain, others = _certain(text, _CERTAIN_TIME)
    is_zoned = pc.match_substring_regex(certain, r"Z$|[+-]\d\d:\d\d$")
    zoned = pc.if_else(is_zoned, certain, pc.binary_join_element_wise(certain, "Z", ""))
    return _or_null(zoned.cast(UTC_MICROS), pa.int64(), others, timestamp_micros)


def dates_or_null(text: pa.Array) -> tuple[pa.Array, list[int]]:
    """Texts `YYYY-MM-DD` as dates; one that is not a date becomes null and its row number is returned."""
    with suppress(pa.ArrowInvalid):
        return text.cast(pa.date32()), []
    certain, others = _certain(text, _CERTAIN_DAY)
    return _or_null(certain.cast(pa.date32()), pa.int32(), others, day_number)


def _certain(text: pa.Array, pattern: str) -> tuple[pa.Array, pa.Array]:
    """The texts that match and the others, each with null in the other's place."""
    is_certain = pc.match_substring_regex(text, pattern)
    return pc.if_else(is_certain, text, None), pc.if_else(is_certain, None, text)


def _or_null(
    read: pa.Array, number: pa.DataType, others: pa.Array, read_one: Callable[[str], int]
) -> tuple[pa.Array, list[int]]:
    """What was read, completed by the other texts one by one."""
    numbers: list[int | None] = []
    unreadable: list[int] = []
    rows = pc.indices_nonzero(others.is_valid())
    for row, spelled in zip(rows.to_pylist(), others.take(rows).to_pylist(), strict=True):
        try:
            numbers.append(read_one(spelled))
        except ValueError:
            numbers.append(None)
            unreadable.append(row)
    completed = pc.replace_with_mask(read.cast(number), others.is_valid(), pa.array(numbers, number))
    return completed.cast(read.type), unreadable


def days(times: pa.Array) -> pa.Array:
    """The UTC day of each timestamp."""
    # A cast that knows no zone is many times faster, and for UTC it is the same day.
    return times.cast(UTC_MICROS).cast(_NAIVE_MICROS).cast(pa.date32(), safe=False)


def hours(times: pa.Array) -> pa.Array:
    """Each timestamp cut to the hour, in UTC."""
    return pc.floor_temporal(times.cast(UTC_MICROS).cast(_NAIVE_MICROS), unit="hour").cast(UTC_MICROS)
