"""Fields that records have and the schema lacks: how they travel from the tasks and which of them become columns."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

import pyarrow as pa

_FORBIDDEN_CHARACTERS = frozenset(" ,;{}()\n\t=")


def pack(fields: Mapping[str, pa.DataType]) -> dict[str, str]:
    """Types as text: a one-field Arrow schema each, since a type's own text cannot be read back."""
    return {
        name: base64.b64encode(pa.schema([(name, kind)]).serialize().to_pybytes()).decode()
        for name, kind in fields.items()
    }


def unpack(fields: Mapping[str, str]) -> dict[str, pa.DataType]:
    return {
        name: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type for name, text in fields.items()
    }


def merge(reports: Iterable[Mapping[str, pa.DataType]]) -> dict[str, pa.DataType]:
    """The fields of several reports; where they differ in a type, the wider one."""
    merged: dict[str, pa.DataType] = {}
    for report in reports:
        for name, kind in report.items():
            merged[name] = widen(merged[name], kind) if name in merged else kind
    return merged


def widen(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one.equals(other):
        return one
    numbers = (pa.int64(), pa.float64())
    return pa.float64() if one in numbers and other in numbers else pa.string()


def addable(fields: Mapping[str, pa.DataType], columns: Iterable[str]) -> pa.Schema:
    """Those that a Delta table can take as columns beside its own: it compares names without case."""
    taken = {name.lower() for name in columns}
    chosen = []
    for name in sorted(fields):
        if name and name.lower() not in taken and not _FORBIDDEN_CHARACTERS & set(name) and _storable(fields[name]):
            taken.add(name.lower())
            chosen.append(pa.field(name, fields[name]))
    return pa.schema(chosen)


def _storable(kind: pa.DataType) -> bool:
    """A table has no place for a type of nothing: `null`, a struct without fields, or a list of either."""
    if pa.types.is_null(kind):
        return False
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_storable(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _storable(kind.value_type)
    return True
