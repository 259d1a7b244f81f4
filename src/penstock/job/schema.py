"""The schema language of job files: type names and nested mappings to an Arrow schema.

    string  boolean  byte  short  int  long  float  double  date  timestamp  binary  decimal(p,s)
    {name: type, ...}        a struct
    list<type> or [type]     a list
    map<string,type>         a map

A field whose type cannot be read gets Arrow's null type, so that later checks report nothing about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.job.faults import Finding, InvalidValueError, KeyPath, kind_of, nearest, shown

if TYPE_CHECKING:
    from penstock.job.reader import SpecReader

NESTING_MAX = 32
RESERVED_PREFIX = "_penstock"
_FORBIDDEN = " ,;{}()\n\t="

_PRIMITIVES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
}
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,4})\s*,\s*([0-9]{1,4})\s*\)")
_LIST = re.compile(r"(?:list|array)<(.*)>", re.DOTALL)
_MAP = re.compile(r"map<([^,<>]*),(.*)>", re.DOTALL)


INFER = "infer"
"""Instead of a mapping: the fields are those of the first records."""


def read_schema(raw: object, at: KeyPath, reader: SpecReader) -> object:
    """The `schema:` mapping as an Arrow schema; lost only if nothing of it can be read."""
    if raw == INFER:
        return pa.schema([])
    if not isinstance(raw, Mapping):
        return reader.lost(at, f"expected a mapping of field names to types, or {INFER}; found {kind_of(raw)}")
    if not raw:
        return reader.lost(at, "a schema needs at least one field")
    return pa.schema(_fields(raw, at, reader.findings))


def name_findings(names: Mapping[str, KeyPath]) -> Iterator[Finding]:
    """Names that cannot be columns of one table."""
    first: dict[str, str] = {}
    for name, at in names.items():
        fault = name_fault(name)
        if fault:
            yield Finding(at, fault, on_key=True)
        other = first.setdefault(name.casefold(), name)
        if other != name:
            yield Finding(at, f"the same name as {other}: Delta ignores case", on_key=True)


def name_fault(name: str) -> str:
    """Why a column cannot have this name; empty if it can."""
    if not name:
        return "a column name cannot be empty"
    if name.casefold().startswith(RESERVED_PREFIX):
        return f"names that begin with {RESERVED_PREFIX} are reserved"
    characters = sorted({character for character in name if character in _FORBIDDEN})
    if characters:
        return f"a Delta column name cannot hold {' '.join(repr(character) for character in characters)}"
    if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
        return "a column name cannot hold an unpaired surrogate"
    return ""


def parse_type(text: str, depth: int = 1) -> pa.DataType:
    """Read a type text such as `map<string,list<decimal(10,2)>>`; raises `InvalidValueError`."""
    type_text = text.strip()
    if depth > NESTING_MAX:
        raise InvalidValueError(f"more than {NESTING_MAX} levels of nested types")
    if type_text in _PRIMITIVES:
        return _PRIMITIVES[type_text]
    if match := _DECIMAL.fullmatch(type_text):
        precision, scale = int(match[1]), int(match[2])
        if not 1 <= precision <= 38 or scale > precision:
            hint = "precision is 1 to 38, scale is 0 to precision"
            raise InvalidValueError(f"decimal({precision},{scale}) is out of range", hint)
        return pa.decimal128(precision, scale)
    if match := _LIST.fullmatch(type_text):
        return pa.list_(parse_type(match[1], depth + 1))
    if match := _MAP.fullmatch(type_text):
        if match[1].strip() != "string":
            raise InvalidValueError("the keys of a map are strings", "write map<string,...>")
        return pa.map_(pa.string(), parse_type(match[2], depth + 1))
    types = f"types: {', '.join(_PRIMITIVES)}, decimal(p,s), list<T>, map<string,T>"
    raise InvalidValueError(f"unknown type {shown(text)}", nearest(type_text, _PRIMITIVES) or types)


def schema_mapping(schema: Iterable[pa.Field]) -> dict[str, object]:
    """The schema as a job file states it."""
    return {field.name: _stated(field.type) for field in schema}


def type_at(schema: pa.Schema, path: tuple[str, ...]) -> pa.DataType | None:
    """The type of the field at the path; None if the schema has none."""
    kind: pa.DataType = pa.struct(list(schema))
    for name in path:
        index = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if index < 0:
            return None
        kind = kind.field(index).type
    return kind


def job_type_name(kind: pa.DataType) -> str:
    """The type as a job file spells it; Arrow's name for one that no job file has."""
    if pa.types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return f"{{{', '.join(f'{field.name}: {job_type_name(field.type)}' for field in fields)}}}"
    if pa.types.is_list(kind):
        return f"list<{job_type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{job_type_name(kind.key_type)},{job_type_name(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for name, primitive in _PRIMITIVES.items() if primitive == kind), str(kind))


def _stated(kind: pa.DataType) -> object:
    if pa.types.is_struct(kind):
        return schema_mapping(kind)
    return [_stated(kind.value_type)] if pa.types.is_list(kind) else job_type_name(kind)


def _fields(raw: Mapping[str, object], at: KeyPath, findings: list[Finding]) -> list[pa.Field]:
    findings.extend(name_findings({name: (*at, name) for name in raw}))
    return [pa.field(name, _type(value, (*at, name), findings), nullable=True) for name, value in raw.items()]


def _type(raw: object, at: KeyPath, findings: list[Finding]) -> pa.DataType:
    match raw:
        case str():
            try:
                return parse_type(raw)
            except InvalidValueError as fault:
                findings.append(Finding(at, fault.message, fault.hint))
        case {}:
            if raw:
                return pa.struct(_fields(raw, at, findings))
            findings.append(Finding(at, "a struct needs at least one field"))
        case [element]:
            return pa.list_(_type(element, (*at, 0), findings))
        case list():
            findings.append(Finding(at, f"a list type has one element type, not {len(raw)}", "write [string]"))
        case _:
            findings.append(Finding(at, f"expected a type, found {kind_of(raw)}"))
    return pa.null()
