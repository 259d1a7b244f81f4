"""The exact check of one record, for what neither msgspec nor Arrow's reader finds alone.

These are names that an object gives twice, decimals of more digits or with smaller exponents than Arrow reads, and
texts that only Python takes for decimals. The check costs as much as several records.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pyarrow as pa

from penstock.flow.decode.json.new_fields import FieldTree, MapOf
from penstock.flow.decode.json.screen import OUT_OF_RANGE
from penstock.flow.decode.json_text import JsonObject, json_object, without_constants
from penstock.flow.decode.misfit import place
from penstock.job.schema import job_type_name

SMALL_EXPONENT = r'[0-9.]{38}[eE]-|[0-9.][eE]-0*(?:[4-9][0-9]|[1-9][0-9]{2,})(?:[\s",\]}]|$)'
"""Arrow's table of powers ends at 10^76: it reads such decimals past that end, as 0 or as another number."""

_DECIMAL = re.compile(
    r"(?![-+]?[0-9.]{38,}[eE]-)[+-]?0*(?=\.?[0-9])(?!\.?([0-9]\.?){77})"
    r"[0-9]*\.?[0-9]*([eE](\+?[0-9]+|-0*[0-3]?[0-9]))?",
    re.ASCII,
)
"""At most 76 digits, which is what Arrow reads, and no small exponent."""


def exact_fault(record: bytes, fields: FieldTree) -> str | None:
    """Why a record is bad; None also for what is not JSON."""
    try:
        return _fault(_DECODER.decode(without_constants(record).decode()), fields, "")
    except (ValueError, RecursionError):
        return None


_DECODER = json.JSONDecoder(object_pairs_hook=json_object, parse_int=msgspec.Raw, parse_float=msgspec.Raw)


def _fault(value: Any, fields: FieldTree | MapOf | pa.Decimal128Type, path: str) -> str | None:
    if isinstance(value, list):
        return next((reason for item in value if (reason := _fault(item, fields, f"{path}[]")) is not None), None)
    if isinstance(value, str | msgspec.Raw):
        text, kind = (value, "string") if isinstance(value, str) else (bytes(value).decode(), OUT_OF_RANGE)
        if not isinstance(fields, pa.Decimal128Type) or _DECIMAL.fullmatch(text):
            return None
        return f"{place(path[1:])}: expected {job_type_name(fields)}, found {kind}"
    if not isinstance(value, JsonObject) or isinstance(fields, pa.Decimal128Type):
        return None
    is_map = isinstance(fields, MapOf)
    for name in sorted(value.doubled):
        if is_map or name in fields:
            return f"{place(f'{path}.{name}'[1:])}: given twice"
    for name, member in value.items():
        below = fields.values if isinstance(fields, MapOf) else fields.get(name)
        if below is not None:
            reason = _fault(member, below, f"{path}[...]" if is_map else f"{path}.{name}")
            if reason is not None:
                return reason
    return None
