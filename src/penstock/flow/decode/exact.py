"""The exact path: one JSON record, strictly, naming the field that does not fit.

The fast path decides which records are good; this one says what is wrong with the others, and decodes the schemas
that the fast path cannot (maps). Both have the same rules, held together by a property test.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.flow.decode.json_text import DEPTH_MAX, JsonObject, parse, too_deep
from penstock.flow.decode.leaves import LeafReader, Value, leaf_reader, read_leaf, well_formed
from penstock.flow.decode.misfit import MisfitError, expected, kind_of


class ExactReader:
    """Reads single records against a schema; with `known_only` a field that the schema lacks is a misfit."""

    def __init__(self, schema: pa.Schema, *, known_only: bool) -> None:
        self._schema = schema
        self._row = _members_node(list(schema), known_only)

    def read(self, members: JsonObject) -> list[Value]:
        """One value per field of the schema. Raises `MisfitError`."""
        return self._row.values(members)

    def batch(self, rows: Sequence[list[Value]]) -> pa.RecordBatch:
        """Rows of `read` as columns."""
        arrays = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(self._schema)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def members_of(record: bytes) -> JsonObject:
    """The top-level members of a record. Raises `MisfitError` unless it is exactly one JSON object."""
    if not record:
        raise MisfitError("value is empty")
    if too_deep(record):
        raise MisfitError(f"nested deeper than {DEPTH_MAX}")
    try:
        value = parse(record.decode())
    except UnicodeDecodeError as error:
        raise MisfitError(f"value is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise MisfitError(f"more than one value in the record, the second at character {error.pos}") from None
        raise MisfitError(f"not JSON at character {error.pos}: {error.msg}") from None
    if not isinstance(value, JsonObject):
        raise MisfitError(f"expected an object, found {kind_of(value)}")
    return value


class _Node(Protocol):
    """One type of the schema, prepared for many values."""

    def read(self, value: Any) -> Value:
        """Takes a value that is not null."""
        ...


@dataclass(frozen=True, slots=True)
class _Members:
    nodes: tuple[tuple[str, _Node], ...]
    known_only: bool
    names: frozenset[str]

    def values(self, members: JsonObject) -> list[Value]:
        values: list[Value] = []
        for name, node in self.nodes:
            try:
                if name in members.doubled:
                    raise MisfitError("given twice")
                value = members.get(name)
                values.append(None if value is None else node.read(value))
            except MisfitError as misfit:
                raise misfit.inside(name) from None
        if self.known_only and not members.keys() <= self.names:
            unknown = next(name for name in members if name not in self.names)
            raise MisfitError("field is not in the schema", unknown_field=True).inside(unknown)
        return values


@dataclass(frozen=True, slots=True)
class _Struct:
    members: _Members

    def read(self, value: Any) -> Value:
        if type(value) is not JsonObject:
            raise expected("object", value)
        values = self.members.values(value)
        return {name: each for (name, _), each in zip(self.members.nodes, values, strict=True)}


@dataclass(frozen=True, slots=True)
class _List:
    item: _Node

    def read(self, value: Any) -> Value:
        if type(value) is not list:
            raise expected("array", value)
        items: list[Value] = []
        for index, item in enumerate(value):
            try:
                items.append(None if item is None else self.item.read(item))
            except MisfitError as misfit:
                raise misfit.inside(f"[{index}]") from None
        return items


@dataclass(frozen=True, slots=True)
class _Map:
    item: _Node

    def read(self, value: Any) -> Value:
        if type(value) is not JsonObject:
            raise expected("object", value)
        entries: list[tuple[str, Value]] = []
        for name, item in value.items():
            try:
                if name in value.doubled:
                    raise MisfitError("given twice")
                entries.append((well_formed(name), None if item is None else self.item.read(item)))
            except MisfitError as misfit:
                raise misfit.inside(name) from None
        return entries


@dataclass(frozen=True, slots=True)
class _Leaf:
    kind: pa.DataType
    reader: LeafReader

    def read(self, value: Any) -> Value:
        return read_leaf(self.reader, self.kind, value)


def _members_node(fields: Sequence[pa.Field], known_only: bool) -> _Members:
    nodes = tuple((field.name, _node(field.type, known_only)) for field in fields)
    return _Members(nodes, known_only, frozenset(name for name, _ in nodes))


def _node(kind: pa.DataType, known_only: bool) -> _Node:
    if pa.types.is_struct(kind):
        return _Struct(_members_node([kind.field(index) for index in range(kind.num_fields)], known_only))
    if pa.types.is_list(kind):
        return _List(_node(kind.value_type, known_only))
    if pa.types.is_map(kind):
        return _Map(_node(kind.item_type, known_only))
    return _Leaf(kind, leaf_reader(kind))
