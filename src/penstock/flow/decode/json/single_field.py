"""One field of a record, found and explained without a look at the others: what most bad records need, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import msgspec

from penstock.flow.decode.json.leaves import Read
from penstock.flow.decode.json.text import parse_member
from penstock.flow.decode.misfit import MisfitError

ITEMS = "[]"
"""Stands among the names of a path for all items of a list."""


class SingleField:
    """The field at the end of the names, `ITEMS` among them; `read` reads one of its values."""

    def __init__(self, names: tuple[str, ...], read: Read) -> None:
        self.path = _path(names)
        self._names = names
        self._in_lists = ITEMS in names
        self._read = read

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
