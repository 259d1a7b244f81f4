"""One field of a record, found and explained without a look at the others: what most bad records need, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from penstock.flow.decode.json.leaves import Read, plain_reader
from penstock.flow.decode.json.loose_text import ANY_TEXT
from penstock.flow.decode.json.text import JsonNumber, parse_member
from penstock.flow.decode.misfit import SHOWN_CHARACTERS_MAX, MisfitError, expected, place

_TEXT, _NUMBER, _FLAG = "string", "number", "boolean"
_KINDS = {'"': _TEXT, "t": _FLAG, "f": _FLAG, **dict.fromkeys("-0123456789", _NUMBER)}
"""By the first character of a value, as far as the value says all in its own spelling."""
_ESCAPE = "\\"
ITEMS = "[]"
"""Stands among the names of a path for all items of a list."""


class SingleField:
    """The field at the end of the names, `ITEMS` among them; `read_nested` reads its values if they have parts."""

    def __init__(self, names: tuple[str, ...], kind: pa.DataType, wanted: str, read_nested: Read | None) -> None:
        self.path = _path(names)
        self._names = names
        self._in_lists = ITEMS in names
        self._read = plain_reader(kind) if read_nested is None else read_nested
        self._readable = _readable(kind)
        self._wanted = wanted

    def reason(self, record: bytes) -> str | None:
        """Why the field makes the record bad; None if it does not, or if only a look at the whole record can tell.

        Raises `MisfitError` if the reason is a field inside that the schema lacks.
        """
        try:
            found = self._cut_out(record)
            if self._in_lists:
                reasons = (self._reason(str(raw, "utf-8"), path) for path, raw in _values(found, self._names, ""))
                return next(filter(None, reasons), None)
            for _ in self._names:
                found = found.inner
            text = str(found, "utf-8")
        except ValueError:
            # It is not there, has a name that this parser cannot look for, or is not UTF-8.
            return None
        return self._reason(text, self.path)

    @cached_property
    def _cut_out(self) -> Callable[[bytes], Any]:
        kind: Any = msgspec.Raw
        for name in reversed(self._names):
            # Items may lack the field, or be null themselves.
            within = kind if kind is msgspec.Raw else kind | None
            if name == ITEMS:
                kind = list[within]  # type: ignore[valid-type]
            else:
                member = ("inner", within, None) if self._in_lists else ("inner", kind)
                kind = msgspec.defstruct("Around", [member], rename={"inner": name}, gc=False)
        return msgspec.json.Decoder(kind).decode

    def _reason(self, text: str, path: str) -> str | None:
        """Why this value, as it is written, cannot be one of the field."""
        kind = _KINDS.get(text[0])
        if kind is None or len(text) > SHOWN_CHARACTERS_MAX or _ESCAPE in text or not text.isprintable():
            return self._exact_reason(text, path)
        if kind in self._readable:
            try:
                self._read(text[1:-1] if kind == _TEXT else JsonNumber(text) if kind == _NUMBER else text == "true")
                return None
            except MisfitError as misfit:
                return str(misfit.inside(path))
            except ValueError:
                pass
        return f"{place(path)}: expected {self._wanted}, found {kind} {text}"

    def _exact_reason(self, text: str, path: str) -> str | None:
        try:
            value = parse_member(text)
        except ValueError:
            return None
        try:
            if value is not None:
                self._read(value)
        except MisfitError as misfit:
            # Whether an unknown field stops the job is decided by the whole record, which may be bad besides.
            return None if misfit.unknown_field else str(misfit.inside(path))
        except ValueError:
            return str(expected(self._wanted, value).inside(path))
        return None


def _values(found: Any, names: tuple[str, ...], path: str) -> Iterator[tuple[str, msgspec.Raw]]:
    """Every value of the field in what was cut out, with its path; nulls are none."""
    if found is None:
        return
    if not names:
        yield path, found
    elif names[0] == ITEMS:
        for number, item in enumerate(found):
            yield from _values(item, names[1:], f"{path}[{number}]")
    else:
        yield from _values(found.inner, names[1:], f"{path}.{names[0]}" if path else names[0])


def _path(names: tuple[str, ...]) -> str:
    return "".join(name if name == ITEMS else f".{name}" for name in names)[1:]


def _readable(kind: pa.DataType) -> frozenset[str]:
    """The kinds of plain values that may be of the type."""
    if pa.types.is_nested(kind):
        return frozenset()
    if pa.types.is_boolean(kind):
        return frozenset([_FLAG])
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return frozenset([_NUMBER])
    if pa.types.is_decimal(kind):
        return frozenset([_TEXT, _NUMBER])
    return frozenset([_TEXT, _NUMBER, _FLAG]) if kind.equals(ANY_TEXT) else frozenset([_TEXT])
