"""Records as Arrow's JSON reader can read them, where the schema has maps or texts that take every value.

A map `{"a":1,"b":2}` is rewritten as `{"key":["a","b"],"value":[1,2]}`, and a value for such a text as its text. The
rest of a record stays as it is, so all else is read and checked as in records without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from penstock.flow.columns.fitting import folded
from penstock.flow.decode.json.column_types import ANY_TEXT, KEYS, VALUES, known_fields
from penstock.flow.decode.json.screen import refuse_duplicates
from penstock.flow.decode.json_text import parse_object, without_constants
from penstock.flow.decode.misfit import MisfitError

_REWRITERS_KEPT_MAX = 512
_members = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode
_items = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
_encode = msgspec.json.Encoder().encode

_REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)
_Rewrite = Callable[[msgspec.Raw], Any]
"""The value to write instead. Raises `msgspec.MsgspecError` if the value is of another kind than its column."""


def loosened(schema: pa.Schema, stated: pa.Schema) -> pa.Schema:
    """The schema with `ANY_TEXT` for each text, at any depth, that `stated` lacks (`on.mixed_types: text`)."""
    return pa.schema(_loosened_fields(schema, stated))


def _loosened_fields(fields: Iterable[pa.Field], stated: Iterable[pa.Field]) -> list[pa.Field]:
    strict = {folded(field.name): field.type for field in stated}
    return [field.with_type(_loosened_type(field.type, strict.get(folded(field.name)))) for field in fields]


def _loosened_type(kind: pa.DataType, stated: pa.DataType | None) -> pa.DataType:
    if pa.types.is_struct(kind):
        below = stated if stated is not None and pa.types.is_struct(stated) else ()
        return pa.struct(_loosened_fields(kind, below))
    if pa.types.is_list(kind):
        item = stated.value_type if stated is not None and pa.types.is_list(stated) else None
        return pa.list_(_loosened_type(kind.value_type, item))
    return ANY_TEXT if stated is None and pa.types.is_string(kind) else kind


class Rewriter:
    """Rewrites the records of a schema, if there is `needed` for it."""

    def __init__(self, schema: pa.Schema) -> None:
        self._known = known_fields(schema)
        self._rewrites = self._rewrites_of(schema)
        self._quotes_added = 0
        self.needed = bool(self._rewrites)

    def rewrite(self, record: bytes) -> bytes:
        """Raises `MisfitError` if the record is not an object of the schema, or gives a name twice."""
        try:
            return self._rewritten(record)
        except _REFUSALS:
            try:
                return self._rewritten(without_constants(record))
            except _REFUSALS as error:
                raise MisfitError(f"not JSON: {error}") from None

    def _rewritten(self, record: bytes) -> bytes:
        members = _members(record)
        if members is None:
            raise msgspec.ValidationError("expected an object")
        self._quotes_added = 0
        written = _encode(_replace(members, self._rewrites))
        if written.count(b'"') != record.count(b'"') + self._quotes_added:
            # msgspec keeps one value for each name, and Arrow would not see that there were two.
            refuse_duplicates(parse_object(record), self._known)
        return written

    def _rewrites_of(self, fields: Iterable[pa.Field]) -> list[tuple[str, _Rewrite]]:
        named = [(field.name, self._rewrite_of(field.type)) for field in fields]
        return [(name, rewrite) for name, rewrite in named if rewrite is not None]

    def _rewrite_of(self, kind: pa.DataType) -> _Rewrite | None:
        """How values of the type are rewritten; None if they need not be."""
        if kind.equals(ANY_TEXT):
            return self._text
        if pa.types.is_map(kind):
            return self._map_rewrite(self._rewrite_of(kind.item_type))
        if pa.types.is_struct(kind) and (rewrites := self._rewrites_of(kind)):
            return lambda raw: _replace(_members(raw), rewrites)
        if pa.types.is_list(kind) and (rewrite := self._rewrite_of(kind.value_type)) is not None:
            return lambda raw: None if (items := _items(raw)) is None else [rewrite(item) for item in items]
        return None

    def _map_rewrite(self, rewrite_value: _Rewrite | None) -> _Rewrite:
        def rewrite(raw: msgspec.Raw) -> Any:
            members = _members(raw)
            if members is None:
                return None
            self._quotes_added += 4
            values = members.values() if rewrite_value is None else map(rewrite_value, members.values())
            return {KEYS: list(members), VALUES: list(values)}

        return rewrite

    def _text(self, raw: msgspec.Raw) -> Any:
        value = bytes(raw)
        if value == b"null" or value.startswith(b'"'):
            return raw
        self._quotes_added += 2
        return msgspec.json.format(value, indent=-1).decode()


@lru_cache(maxsize=_REWRITERS_KEPT_MAX)
def rewriter_for(schema: pa.Schema) -> Rewriter:
    return Rewriter(schema)


def _replace(members: dict[str, Any] | None, rewrites: Iterable[tuple[str, _Rewrite]]) -> Mapping[str, Any] | None:
    if members is not None:
        for name, rewrite in rewrites:
            if name in members:
                members[name] = rewrite(members[name])
    return members
