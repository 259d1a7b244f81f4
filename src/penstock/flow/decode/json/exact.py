"""The exact path: one JSON record, strictly, naming the field that does not fit.

It has the last word: the fast path reads nothing that this one refuses and gives the same values, which a property
test checks. This one also decodes the schemas that the fast path cannot (maps).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa

from penstock.flow.decode.json.leaves import Read, Value, leaf_reader, well_formed
from penstock.flow.decode.json.single_field import ITEMS, SingleField
from penstock.flow.decode.json.text import DEPTH_MAX, JsonObject, parse, skim, too_deep
from penstock.flow.decode.misfit import MisfitError, expected, kind_of
from penstock.job.schema import job_type_name

_OBJECT = msgspec.json.Decoder(msgspec.defstruct("Object", []))
_CUT_OFF = "Input data was truncated"
_KINDS = {"array": "array", "bool": "boolean", "float": "number", "int": "number", "null": "null", "str": "string"}
_FOUND = {f"Expected `object`, got `{kind}`": found for kind, found in _KINDS.items()}
"""Its words for records that are no objects, and ours."""

_ReadMembers = Callable[[JsonObject], list[Value]]


class ExactReader:
    """Reads single records against a schema; with `known_only` a field that the schema lacks is a misfit.

    `loose` is the schema, perhaps with texts that take every value (`loose_text`). Its functions do not travel to the
    workers: make it there.
    """

    def __init__(self, schema: pa.Schema, loose: pa.Schema, *, known_only: bool) -> None:
        self._schema = schema
        self._fields = {field.path: field for field in _fields(loose, known_only, ())}
        self.read = _members_reader({field.name: _reader(field.type, known_only) for field in loose}, known_only)
        """One value per field of the schema. Raises `MisfitError`."""

    def reason_at(self, record: bytes, path: str) -> str | None:
        """Why the field at this path makes the record bad, if it does: cheaper than to read it all.

        Raises `MisfitError` if the reason is a field inside that the schema lacks.
        """
        field = self._fields.get(path)
        return None if field is None or too_deep(record) else field.reason(record)

    def batch(self, rows: Sequence[list[Value]]) -> pa.RecordBatch:
        """Rows of `read` as columns."""
        arrays = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(self._schema)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def members_of(record: bytes) -> JsonObject:
    """The top-level members of a record. Raises `MisfitError` unless it is exactly one JSON object."""
    value = parsed(record, parse)
    if not isinstance(value, JsonObject):
        raise MisfitError(f"expected an object, found {kind_of(value)}")
    return value


def refuse_malformed(record: bytes) -> None:
    """Raise a `MisfitError` in less time than `members_of`, though not for every record for which that does."""
    try:
        _OBJECT.decode(record)
    except msgspec.ValidationError as error:
        if found := _FOUND.get(str(error)):
            raise MisfitError(f"expected an object, found {found}") from None
    except msgspec.DecodeError as error:
        if _says_cut_off(record, error):
            raise _cut_off(parsed(record, str)) from None
    except (ValueError, RecursionError):
        pass
    if b"Inf" not in record and b"-NaN" not in record:
        # Short names of numbers that are none are JSON only to `members_of`.
        with suppress(ValueError):
            parsed(record, skim)


def parsed(record: bytes, parser: Callable[[str], Any]) -> Any:
    """What the parser makes of a record. Raises `MisfitError` for what is no JSON, and what else the parser raises."""
    if not record:
        raise MisfitError("value is empty")
    if too_deep(record):
        raise MisfitError(f"nested deeper than {DEPTH_MAX}")
    try:
        return parser(record.decode())
    except UnicodeDecodeError as error:
        raise MisfitError(f"value is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        if _is_cut_off(record):
            raise _cut_off(record.decode()) from None
        if error.msg == "Extra data":
            raise MisfitError(f"more than one value in the record, the second at character {error.pos}") from None
        raise MisfitError(f"not JSON at character {error.pos}: {error.msg}") from None


def _is_cut_off(record: bytes) -> bool:
    try:
        _OBJECT.decode(record)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return _says_cut_off(record, error)
    return False


def _says_cut_off(record: bytes, error: Exception) -> bool:
    # It says so too of half a surrogate pair, which is written with an escape.
    return b"\\" not in record and str(error) == _CUT_OFF


def _cut_off(text: str) -> MisfitError:
    return MisfitError(f"not JSON at character {len(text)}: the record ends too early")


def _fields(fields: Iterable[pa.Field], known_only: bool, above: tuple[str, ...]) -> Iterator[SingleField]:
    for field in fields:
        yield from _fields_at((*above, field.name), field.type, known_only)


def _fields_at(names: tuple[str, ...], kind: pa.DataType, known_only: bool) -> Iterator[SingleField]:
    """The field and all below it, but not what is inside of maps."""
    nested = pa.types.is_nested(kind)
    wanted = job_type_name(kind) if not nested else "array" if pa.types.is_list(kind) else "object"
    yield SingleField(names, kind, wanted, _reader(kind, known_only) if nested else None)
    if pa.types.is_struct(kind):
        yield from _fields(kind, known_only, names)
    elif pa.types.is_list(kind):
        yield from _fields_at((*names, ITEMS), kind.value_type, known_only)


def _reader(kind: pa.DataType, known_only: bool) -> Read:
    if pa.types.is_struct(kind):
        return _struct_reader(list(kind), known_only)
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
