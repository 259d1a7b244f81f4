"""One JSON record into Python values that keep the text of numbers and the names that an object has twice.

For what cannot be read a whole batch at a time: routes, Telegraf's metrics, and the records that a batch failed for.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any

from penstock.flow.decode.misfit import MisfitError

DEPTH_MAX = 500
TOO_DEEP = f"nested deeper than {DEPTH_MAX}"
HALF_PAIR = "holds half of a surrogate pair"

_BRACKETS = b"[]{}"
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in _BRACKETS)
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in _BRACKETS + b'"')
_STEPS = [1 if byte in b"[{" else -1 if byte in b"]}" else 0 for byte in range(256)]
_STRING = re.compile(rb'"[^"]*"')
_STRING_OR_CONSTANT = re.compile(rb'("(?:[^"\\]|\\.)*")|-?(?:NaN|Inf(?:inity)?)', re.DOTALL)
_TOO_LARGE = b"9" * 310 + b".0"


class JsonNumber(str):
    """The text of a number, so that no digit is lost."""

    __slots__ = ()

    @property
    def whole(self) -> bool:
        """Written as an integer: `1`, not `1.0` and not `1e0`."""
        return self.lstrip("-").isdigit()


class JsonObject(dict[str, Any]):
    """The members of an object; `doubled` are the names that it gives more than once."""

    doubled: frozenset[str] = frozenset()


def json_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = JsonObject(pairs)
    if len(members) != len(pairs):
        repeated = [name for name, _ in pairs]
        for name in members:
            repeated.remove(name)
        members.doubled = frozenset(repeated)
    return members


def _refuse_constant(name: str) -> None:
    raise MisfitError(f"not JSON: {name} is not a JSON number")


_DECODER = json.JSONDecoder(
    object_pairs_hook=json_object, parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=_refuse_constant
)


def parse(record: bytes) -> Any:
    """The JSON value of a record. Raises `MisfitError`."""
    if not record:
        raise MisfitError("value is empty")
    if too_deep(record):
        raise MisfitError(TOO_DEEP)
    try:
        return _DECODER.decode(record.decode())
    except UnicodeDecodeError as error:
        raise MisfitError(f"value is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise MisfitError(f"not JSON at character {error.pos}: {error.msg}") from None


def parse_object(record: bytes) -> JsonObject:
    """The members of a record, which may hold NaN and infinities. Raises `MisfitError`."""
    value = parse(without_constants(record))
    if not isinstance(value, JsonObject):
        raise MisfitError("expected an object")
    return value


def without_constants(record: bytes) -> bytes:
    """The record with a number too large for any column in place of NaN and infinities, which are not JSON.

    Arrow's reader takes them, and skips them where no column asks for them.
    """
    if b"NaN" not in record and b"Inf" not in record:
        return record
    return _STRING_OR_CONSTANT.sub(lambda match: match[1] or _TOO_LARGE, record)


def well_formed(text: str) -> str:
    """The text itself. Raises `MisfitError` if an escape left half of a surrogate pair in it."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MisfitError(HALF_PAIR) from None
    return text


def too_deep(record: bytes) -> bool:
    """Whether arrays and objects nest deeper than `DEPTH_MAX`: cheap for every record that is not full of brackets."""
    if len(record) <= DEPTH_MAX or len(record.translate(None, _NOT_BRACKETS)) <= DEPTH_MAX:
        return False
    marks = record.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_MARKS)
    return max(accumulate(map(_STEPS.__getitem__, _STRING.sub(b"", marks)))) > DEPTH_MAX
