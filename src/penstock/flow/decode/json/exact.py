"""The exact check of one record: for what msgspec accepts and Arrow's reader refuses, or reads as another value.

These are names that an object gives twice, decimals with large exponents or of too many digits, texts that only Python
takes for decimals, and numbers that no double can hold. It costs as much as several records, so only those records
are checked whose bytes look like it.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, DecimalException
from typing import Any

import msgspec
import pyarrow as pa

from penstock.flow.decode.json.new_fields import FieldTree, MapOf
from penstock.flow.decode.json.reader import OUT_OF_RANGE
from penstock.flow.decode.json_text import JsonObject, too_deep, without_constants
from penstock.flow.decode.misfit import MisfitError, place
from penstock.job.schema import job_type_name

GIVEN_TWICE = ": given twice"
TINY_EXPONENT = r"[eE]-0*[1-9][0-9]{2}"
"""Arrow reads past the end of a table for such a decimal: it refuses the number, or takes it for 0."""
SUSPICIOUS_NUMBER = r'[eE]-0*[1-9][0-9]|[eE]\+?0*[1-9][0-9]{2}|[0-9.]{77}|(?i:nan|inf)|"[-+0-9.eE_ ]*[_ ][-+0-9.eE_ ]*"'
"""Matches every record with a number that only Arrow refuses or misreads, and a few others."""
LONG_ZEROS = b"0" * 19
"""Occurs in every decimal that Arrow takes for another number than 0: with that many zeros, and an exponent."""

_DECIMAL = re.compile(r"[+-]?0*(?=\.?[0-9])(?!\.?([0-9]\.?){77})[0-9]*\.?[0-9]*([eE][+-]?[0-9]+)?", re.ASCII)
"""At most 76 digits, which is what Arrow reads."""
_LARGE_EXPONENT = re.compile(rb"[eE]\+?0*[1-9][0-9]{2}")
_LARGE = re.compile(r"-?[0-9]+(?:\.([0-9]+))?[eE]\+?0*([1-9][0-9]{2,})", re.ASCII)
_DOUBLE_EXPONENT_MAX = 308
_TOO_LARGE = "not readable: a number is too large for a double"


def exact_fault(record: bytes, fields: FieldTree) -> str | None:
    """Why a record is bad; None also for what is not JSON."""
    if too_deep(record):
        return None
    decoder = _CAREFUL_DECODER if _LARGE_EXPONENT.search(record) else _DECODER
    try:
        return _fault(decoder.decode(without_constants(record).decode()), fields, "")
    except MisfitError as misfit:
        return str(misfit)
    except (ValueError, RecursionError):
        return None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    twice = JsonObject(members)
    names = [name for name, _ in pairs]
    twice.doubled = frozenset(name for name in members if names.count(name) > 1)
    return twice


def _number(text: str) -> msgspec.Raw:
    parts = _LARGE.fullmatch(text)
    if parts and int(parts[2][:5]) > _DOUBLE_EXPONENT_MAX + len(parts[1] or ""):
        raise MisfitError(_TOO_LARGE)
    return msgspec.Raw(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_int=msgspec.Raw, parse_float=msgspec.Raw)
_CAREFUL_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_int=msgspec.Raw, parse_float=_number)


def _fault(value: Any, fields: FieldTree | MapOf | pa.Decimal128Type, path: str) -> str | None:
    if isinstance(value, list):
        return next((reason for item in value if (reason := _fault(item, fields, f"{path}[]")) is not None), None)
    if isinstance(fields, pa.Decimal128Type):
        return _decimal_fault(value, fields, path)
    if not isinstance(value, dict):
        return None
    is_map = isinstance(fields, MapOf)
    for name in sorted(value.doubled) if isinstance(value, JsonObject) else ():
        if is_map or name in fields:
            return f"{place(f'{path}.{name}'[1:])}{GIVEN_TWICE}"
    for name, member in value.items():
        below = fields.values if isinstance(fields, MapOf) else fields.get(name)
        if below is not None:
            reason = _fault(member, below, f"{path}[...]" if is_map else f"{path}.{name}")
            if reason is not None:
                return reason
    return None


def _decimal_fault(value: Any, kind: pa.DataType, path: str) -> str | None:
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        problem = "string"
    elif isinstance(value, str | msgspec.Raw) and not _fits(
        value if isinstance(value, str) else bytes(value).decode(), kind.precision, kind.scale
    ):
        problem = OUT_OF_RANGE
    else:
        return None
    return f"{place(path[1:])}: expected {job_type_name(kind)}, found {problem}"


def _fits(text: str, precision: int, scale: int) -> bool:
    """Whether a decimal of so many digits has exactly this value."""
    try:
        number = Decimal(text)
    except DecimalException:
        # Its exponent is beyond any number.
        return False
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    too_fine = -exponent - scale
    return not number or (number.adjusted() < precision - scale and not any(digits[-too_fine:] if too_fine > 0 else ()))
