"""Durations, sizes and shares as people write them: `60s`, `128MiB`, `10%`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

DURATION_UNITS: dict[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DECIMAL_UNITS = {"": 1, "B": 1, "kB": 1000, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
SIZE_UNITS = _DECIMAL_UNITS | {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*(%?)")
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")
UnitT = TypeVar("UnitT", int, float)


class QuantityError(ValueError):
    """The text is no duration, size or share."""


def parse_duration(text: str) -> float:
    """Seconds of a text such as `500ms`, `60s`, `5m`, `1h` or `2d`."""
    number, unit = _amount(text, DURATION_UNITS, "write a number and one of ms, s, m, h, d, as in 60s")
    return float(number) * unit


def parse_size(text: str) -> int:
    """Bytes of a text such as `128MiB`, `10MB` or `1024`; a fraction of a byte is dropped."""
    how = "write bytes, or a number and one of KiB, MiB, GiB, TiB, kB, MB, GB, TB, as in 128MiB"
    number, unit = _amount(text, SIZE_UNITS, how)
    return int(number) * unit if number.isdecimal() else int(float(number) * unit)


def _amount(text: str, units: Mapping[str, UnitT], how: str) -> tuple[str, UnitT]:
    """The number as it is written, and its unit."""
    found = _QUANTITY.fullmatch(text.strip())
    if found is None or found[2] not in units:
        raise QuantityError(how)
    return found[1], units[found[2]]


def parse_share(text: str) -> float:
    """The part of a whole that a text such as `10%` or `0.1` tells."""
    found = _SHARE.fullmatch(text.strip())
    if found is None:
        raise QuantityError("write a fraction such as 0.1, or a percentage such as 10%")
    return float(found[1]) / (100 if found[2] else 1)
