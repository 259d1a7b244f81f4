"""The exact path: one JSON record, strictly, naming the field that does not fit.

It is the judge: the fast path reads nothing that this one refuses and gives the same values, held by a property test.
This one also decodes the schemas that the fast path cannot (maps).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.flow.decode.json_text import DEPTH_MAX, JsonObject, parse, parse_member, too_deep
from penstock.flow.decode.leaves import Read, Value, leaf_reader, well_formed
from penstock.flow.decode.misfit import MisfitError, expected, kind_of

_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])

_ReadMembers = Callable[[JsonObject], list[Value]]


class ExactReader:
    """Reads single records against a schema; with `known_only` a field that the schema lacks is a misfit.

    `loose` is the schema, perhaps with texts that take every value (`loose_text`). Its functions do not travel to the
    workers: make it there.
    """

    def __init__(self, schema: pa.Schema, loose: pa.Schema, *, known_only: bool) -> None:
        self._schema = schema
        self._readers = {field.name: _reader(field.type, known_only) for field in loose}
        self.read = _members_reader(self._readers, known_only)
        """One value per field of the schema. Raises `MisfitError`."""

    def try_field(self, record: bytes, name: str) -> None:
        """Raise `MisfitError` if this field makes the record bad: cheaper than to read it all."""
        reader = self._readers.get(name)
        if reader is None or too_deep(record):
            return
        try:
            value = parse_member(bytes(_RAW_MEMBERS.decode(record)[name]))
            if value is not None:
                reader(value)
        except MisfitError as misfit:
            raise misfit.inside(name) from None
        except (msgspec.MsgspecError, ValueError, KeyError):
            return

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


def _reader(kind: pa.DataType, known_only: bool) -> Read:
    if pa.types.is_struct(kind):
        return _struct_reader([kind.field(index) for index in range(kind.num_fields)], known_only)
    if pa.types.is_list(kind):
        return _list_reader(_reader(kind.value_type, known_only))
    if pa.types.is_map(kind):
        return _map_reader(_reader(kind.item_type, known_only))
    return leaf_reader(kind)


def _members_reader(readers: Mapping[str, Read], known_only: bool) -> _ReadMembers:
    named = list(readers.items())
    names = readers.keys()

    def read(members: JsonObject) -> list[Value]:
        values: list[Value] = []
        name = ""
        try:
            for name, reader in named:
                if members.doubled and name in members.doubled:
                    raise MisfitError("given twice")
                value = members.get(name)
                values.append(None if value is None else reader(value))
        except MisfitError as misfit:
            raise misfit.inside(name) from None
        if known_only and not members.keys() <= names:
            unknown = next(name for name in members if name not in names)
            raise MisfitError("field is not in the schema", unknown_field=True).inside(unknown)
        return values

    return read


def _struct_reader(fields: Sequence[pa.Field], known_only: bool) -> Read:
    names = [field.name for field in fields]
    read_members = _members_reader({field.name: _reader(field.type, known_only) for field in fields}, known_only)

    def read(value: Any) -> Value:
        if type(value) is not JsonObject:
            raise expected("object", value)
        return dict(zip(names, read_members(value), strict=True))

    return read


def _list_reader(read_item: Read) -> Read:
    def read(value: Any) -> Value:
        if type(value) is not list:
            raise expected("array", value)
        items: list[Value] = []
        try:
            for item in value:
                items.append(None if item is None else read_item(item))
        except MisfitError as misfit:
            raise misfit.inside(f"[{len(items)}]") from None
        return items

    return read


def _map_reader(read_item: Read) -> Read:
    def read(value: Any) -> Value:
        if type(value) is not JsonObject:
            raise expected("object", value)
        entries: list[tuple[str, Value]] = []
        name = ""
        try:
            for name, item in value.items():
                if name in value.doubled:
                    raise MisfitError("given twice")
                entries.append((well_formed(name), None if item is None else read_item(item)))
        except MisfitError as misfit:
            raise misfit.inside(name) from None
        return entries

    return read
