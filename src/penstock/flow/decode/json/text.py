"""One JSON text into Python values that keep what the strict walk has to know: number texts and doubled names."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import accumulate
from typing import Any

DEPTH_MAX = 500

_BRACKETS = b"[]{}"
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in _BRACKETS)
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in _BRACKETS + b'"')
_STEPS = [1 if byte in b"[{" else -1 if byte in b"]}" else 0 for byte in range(256)]
_STRING = re.compile(rb'"[^"]*"')
_STRING_OR_SHORT_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|-NaN|Inf(?!inity)')


class JsonNumber(str):
    """The text of a number, so that no digit is lost before its column is known."""

    __slots__ = ()

    @property
    def whole(self) -> bool:
        """Written as an integer: `1`, not `1.0` and not `1e0`."""
        return self.lstrip("-").isdigit()


class JsonObject(dict[str, Any]):
    """The members of an object; `doubled` are the names that it gives more than once."""

    doubled: frozenset[str] = frozenset()


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = JsonObject(pairs)
    if len(members) != len(pairs):
        times = Counter(name for name, _ in pairs)
        members.doubled = frozenset(name for name, count in times.items() if count > 1)
    return members


_SKIMMER = json.JSONDecoder(object_pairs_hook=list)
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=JsonNumber
)


class ConstantError(ValueError):
    """A number of Python that JSON has not, such as NaN."""


def _refuse_constant(name: str) -> None:
    raise ConstantError(name)


_PLAIN_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=_refuse_constant
)


def parse(text: str) -> Any:
    """Raises `json.JSONDecodeError`; a text deeper than `DEPTH_MAX` has to be refused before (`too_deep`)."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError:
        if "Inf" not in text and "-NaN" not in text:
            raise
        respelled = _STRING_OR_SHORT_NAME.sub(_long_name, text)
        if respelled == text:
            raise
        return _DECODER.decode(respelled)


def parse_plain(text: str) -> Any:
    """Like `parse`, but `NaN` and infinities raise `ConstantError`."""
    return _PLAIN_DECODER.decode(text)


def skim(text: str) -> Any:
    """Like `parse` in less time, but without the texts of numbers, and objects are lists of pairs; `ValueError`."""
    return _SKIMMER.decode(text)


def parse_member(raw: str) -> Any:
    """A value that a parser has cut out of its record already. Raises `ValueError`."""
    return _DECODER.raw_decode(raw)[0]


def _long_name(found: re.Match[str]) -> str:
    # Arrow's reader takes these spellings too, and a record's fate must not depend on which reader met it.
    return {"-NaN": "NaN", "Inf": "Infinity"}.get(found.group(), found.group())


def too_deep(record: bytes) -> bool:
    """Whether arrays and objects nest deeper than `DEPTH_MAX`: cheap for every record that is not full of brackets."""
    if len(record) <= DEPTH_MAX or len(record.translate(None, _NOT_BRACKETS)) <= DEPTH_MAX:
        return False
    marks = record.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_MARKS)
    return max(accumulate(map(_STEPS.__getitem__, _STRING.sub(b"", marks)))) > DEPTH_MAX
