"""Records with a field whose name differs from a column's only in case: to a table both are one name.

The table's own columns, which no record may have, are reserved names in any case.

Which of both holds the value nobody can tell from one record, and a column of its own is impossible; so the record is
bad, and nothing of it is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.fitting import folded
from penstock.flow.columns.seen_types import NewFields, SeenTypes
from penstock.flow.decode.json.exact import members_of
from penstock.flow.decode.json.new_types import Known
from penstock.flow.decode.json.screen import Piece
from penstock.flow.decode.json.text import JsonObject
from penstock.flow.rows import RowNumbers


def misspelled(
    piece: Piece, found: Mapping[str, SeenTypes], known: Known, good: RowNumbers, reserved: frozenset[str]
) -> dict[int, str]:
    """Those of the good rows of the piece that have such a field with a value, each with the reason."""
    names = set(_clashes(found, known, reserved))
    if not names:
        return {}
    errors: dict[int, str] = {}
    kept = frozenset(map(int, good))
    for number in _suspects(piece.records, names):
        row = int(piece.rows[number])
        fault = _fault(members_of(piece.records[number].as_py()), known, reserved) if row in kept else None
        if fault is not None:
            errors[row] = fault
    return errors


def well_spelled(found: Mapping[str, SeenTypes], known: Known, reserved: frozenset[str] = frozenset()) -> NewFields:
    """The new fields with values, without those of records that are bad; of known ones those with new members."""
    spelled = {*map(folded, known), *reserved}
    fields: NewFields = {}
    for name, seen in found.items():
        if name in known:
            inner = _well_spelled(seen, known[name] or {})
            if inner is not None:
                fields[name] = inner
        elif seen.count and folded(name) not in spelled:
            fields[name] = seen
    return fields


def _well_spelled(seen: SeenTypes, known: Known) -> SeenTypes | None:
    if seen.items is not None:
        items = _well_spelled(seen.items, known)
        return None if items is None else SeenTypes(lists=seen.lists, items=items)
    members = well_spelled(seen.members, known)
    return SeenTypes(objects=seen.objects, members=members) if members else None


def _clashes(found: Mapping[str, SeenTypes], known: Known, reserved: frozenset[str] = frozenset()) -> Iterator[str]:
    """Names of new fields with values that are reserved, or differ only in case from a known neighbour."""
    spelled = {*map(folded, known), *reserved}
    for name, seen in found.items():
        below = known.get(name)
        if name not in known and folded(name) in spelled:
            if seen.count:
                yield name
        elif below is not None:
            inner = seen
            while inner.items is not None:
                inner = inner.items
            yield from _clashes(inner.members, below)


def _suspects(records: pa.Array, names: set[str]) -> list[int]:
    """The records that may have one of the names: its text is there, or an escape that may spell it."""
    values = records.cast(pa.binary())
    suspect = pc.match_substring(values, b"\\")
    for name in sorted(names):
        suspect = pc.or_(suspect, pc.match_substring(values, json.dumps(name, ensure_ascii=False)[1:-1].encode()))
    return list(pc.indices_nonzero(suspect).to_pylist())


def _fault(members: JsonObject, known: Known, reserved: frozenset[str] = frozenset()) -> str | None:
    spelled = {folded(name): name for name in known}
    for name, value in members.items():
        if value is None:
            continue
        if name not in known:
            column = spelled.get(folded(name))
            if column is not None:
                return f"{name}: differs only in case from the column {column}"
            if folded(name) in reserved:
                return f"{name}: the name is reserved, the table keeps a column of its own under it"
        elif (below := known[name]) is not None and (inner := _fault_within(value, below)) is not None:
            return f"{name}.{inner}"
    return None


def _fault_within(value: Any, known: Known) -> str | None:
    if isinstance(value, JsonObject):
        return _fault(value, known)
    if isinstance(value, list):
        return next((fault for item in value if (fault := _fault_within(item, known)) is not None), None)
    return None
