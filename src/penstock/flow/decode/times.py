"""Times written as text (ISO 8601) into microseconds of UTC, a whole array at a time.

A date alone is its midnight, a time without a zone is UTC, up to nine fraction digits are cut to six.
"""

from __future__ import annotations

import re
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

UTC_MICROS = pa.timestamp("us", "UTC")
_NAIVE_MICROS = pa.timestamp("us")

_DATE = r"\d{4}-\d{2}-\d{2}"
_CLOCK = r"\d{2}(?::\d{2}(?::\d{2}(?:\.\d{1,9})?)?)?"
_LONG_FRACTION = r"(\.\d{6})\d{1,3}"
_DATE_ALONE = rf"^({_DATE})$"
_NO_ZONE = rf"^({_DATE}[T ]{_CLOCK})$"

_DAY = r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})"
_TIME = r"[T ](?P<hour>\d{2})(?::(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?)?)?"
_ZONE = r"(?:Z|(?P<sign>[+-])(?P<zone_hour>\d{2})(?::?(?P<zone_minute>\d{2}))?)?"
_ONE_DAY = re.compile(_DAY, re.ASCII)
_ONE_TIME = re.compile(f"{_DAY}(?:{_TIME}{_ZONE})?", re.ASCII)
_EPOCH = date(1970, 1, 1).toordinal()
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097


def timestamps(text: pa.Array) -> pa.Array:
    """Raises `pa.ArrowInvalid` if any of the texts is not a time; null stays null."""
    # Most topics write every time in one way, so two plain casts come before any regular expression.
    for kind in (UTC_MICROS, _NAIVE_MICROS):
        try:
            return text.cast(kind).cast(UTC_MICROS)
        except pa.ArrowInvalid:
            continue
    spelled = pc.replace_substring_regex(text, _LONG_FRACTION, r"\1")
    spelled = pc.replace_substring_regex(spelled, _DATE_ALONE, r"\1T00Z")
    spelled = pc.replace_substring_regex(spelled, _NO_ZONE, r"\1Z")
    return spelled.cast(UTC_MICROS)


def timestamp_micros(text: str) -> int:
    """One time, with the outcome that `timestamps` has for it and without the price of an array. Raises `ValueError`."""
    found = _ONE_TIME.fullmatch(text)
    if found is None:
        raise ValueError("not a time")
    year, month, day, hour, minute, second, fraction, sign, zone_hour, zone_minute = found.groups()
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    zone_hours, zone_minutes = int(zone_hour or 0), int(zone_minute or 0)
    if hours > 23 or minutes > 59 or seconds > 59 or zone_hours > 23 or zone_minutes > 59:
        raise ValueError("not a time")
    offset_minutes = (zone_hours * 60 + zone_minutes) * (-1 if sign == "-" else 1)
    whole_minutes = (_day_number(year, month, day) * 24 + hours) * 60 + minutes - offset_minutes
    return (whole_minutes * 60 + seconds) * 1_000_000 + int((fraction or "0")[:6].ljust(6, "0"))


def day_number(text: str) -> int:
    """The days from 1970 to a date written `YYYY-MM-DD`. Raises `ValueError`."""
    found = _ONE_DAY.fullmatch(text)
    if found is None:
        raise ValueError("not a date")
    return _day_number(*found.groups())


def _day_number(year: str, month: str, day: str) -> int:
    if year == "0000":
        # Python's calendar begins a year later; 400 years on it is the same one.
        return date(_CYCLE_YEARS, int(month), int(day)).toordinal() - _CYCLE_DAYS - _EPOCH
    return date(int(year), int(month), int(day)).toordinal() - _EPOCH


def timestamps_or_null(text: pa.Array) -> tuple[pa.Array, list[int]]:
    """Like `timestamps`, but a text that is not a time becomes null and its row number is returned."""
    try:
        return timestamps(text), []
    except pa.ArrowInvalid:
        pass
    values: list[int | None] = []
    unreadable: list[int] = []
    for row, each in enumerate(text.to_pylist()):
        try:
            values.append(None if each is None else timestamp_micros(each))
        except ValueError:
            values.append(None)
            unreadable.append(row)
    return pa.array(values, pa.int64()).cast(UTC_MICROS), unreadable


def days(times: pa.Array) -> pa.Array:
    """The UTC day of each timestamp."""
    # A cast that knows no zone is many times faster, and for UTC it is the same day.
    return times.cast(UTC_MICROS).cast(_NAIVE_MICROS).cast(pa.date32(), safe=False)


def hours(times: pa.Array) -> pa.Array:
    """Each timestamp cut to the hour, in UTC."""
    return pc.floor_temporal(times.cast(UTC_MICROS).cast(_NAIVE_MICROS), unit="hour").cast(UTC_MICROS)
