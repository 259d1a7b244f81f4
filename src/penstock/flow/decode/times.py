"""Times written as text (ISO 8601) into microseconds of UTC, a whole array at a time.

A date alone is its midnight, a time without a zone is UTC, up to nine fraction digits are cut to six.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

UTC_MICROS = pa.timestamp("us", "UTC")
_NAIVE_MICROS = pa.timestamp("us")

_DATE = r"\d{4}-\d{2}-\d{2}"
_CLOCK = r"\d{2}(?::\d{2}(?::\d{2}(?:\.\d{1,9})?)?)?"
_SHAPE = rf"^{_DATE}(?:[T ]{_CLOCK}(?:Z|[+-]\d{{2}}(?::?\d{{2}})?)?)?$"
_LONG_FRACTION = r"(\.\d{6})\d{1,3}"
_DATE_ALONE = rf"^({_DATE})$"
_NO_ZONE = rf"^({_DATE}[T ]{_CLOCK})$"


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


def timestamps_or_null(text: pa.Array) -> tuple[pa.Array, list[int]]:
    """Like `timestamps`, but a text that is not a time becomes null and its row number is returned."""
    try:
        return timestamps(text), []
    except pa.ArrowInvalid:
        pass
    shaped = pc.fill_null(pc.match_substring_regex(text, _SHAPE), True)
    values = pc.if_else(shaped, text, pa.scalar(None, text.type))
    unreadable = set(pc.indices_nonzero(pc.invert(shaped)).to_pylist())
    parts: list[pa.Array] = []
    # What has the shape and is still no time (a month 13) is rare: halving finds it.
    waiting = [(0, len(values))]
    while waiting:
        start, end = waiting.pop()
        try:
            parts.append(timestamps(values.slice(start, end - start)))
        except pa.ArrowInvalid:
            if end - start == 1:
                parts.append(pa.nulls(1, UTC_MICROS))
                unreadable.add(start)
                continue
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]
    return pa.concat_arrays(parts), sorted(unreadable)


def days(times: pa.Array) -> pa.Array:
    """The UTC day of each timestamp."""
    # A cast that knows no zone is many times faster, and for UTC it is the same day.
    return times.cast(UTC_MICROS).cast(_NAIVE_MICROS).cast(pa.date32(), safe=False)


def hours(times: pa.Array) -> pa.Array:
    """Each timestamp cut to the hour, in UTC."""
    return pc.floor_temporal(times.cast(UTC_MICROS).cast(_NAIVE_MICROS), unit="hour").cast(UTC_MICROS)
