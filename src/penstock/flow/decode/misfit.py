"""The word of the exact path: why a record cannot be a row."""

from __future__ import annotations

import json
from typing import Any

from penstock.flow.decode.json.text import JsonNumber, JsonObject

SHOWN_CHARACTERS_MAX = 60
_PATH_CHARACTERS_MAX = 120
_QUOTE = json.JSONEncoder(ensure_ascii=False).encode
_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    JsonNumber: "number",
    str: "string",
    list: "array",
    JsonObject: "object",
}


class MisfitError(Exception):
    """A problem and the place where it is; the place grows outwards as the error leaves structs, lists and maps."""

    def __init__(self, problem: str, *, unknown_field: bool = False) -> None:
        # `Exception` has kept its arguments already.
        self.problem = problem
        self.unknown_field = unknown_field
        self._path = ""

    def inside(self, name: str) -> MisfitError:
        """The same error, seen from outside of the field `name`."""
        joint = "." if self._path and not self._path.startswith("[") else ""
        self._path = f"{name}{joint}{self._path}"
        return self

    @property
    def path(self) -> str:
        return place(self._path)

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self._path else self.problem


def place(path: str) -> str:
    """A path as reasons show it."""
    return clipped(path, _PATH_CHARACTERS_MAX)


def expected(wanted: str, value: Any) -> MisfitError:
    return MisfitError(f"expected {wanted}, found {shown(value)}")


def kind_of(value: Any) -> str:
    return _KINDS[type(value)]


def shown(value: Any) -> str:
    """The kind of a value and, if it is short to say, the value."""
    kind = kind_of(value)
    if isinstance(value, bool):
        return f"{kind} {str(value).lower()}"
    if isinstance(value, JsonNumber):
        return f"{kind} {clipped(value, SHOWN_CHARACTERS_MAX)}"
    if isinstance(value, str):
        return f"{kind} {quoted(value[:SHOWN_CHARACTERS_MAX])}"
    return kind


def quoted(value: Any) -> str:
    """A text or number as JSON writes it, clipped."""
    return clipped(_QUOTE(value), SHOWN_CHARACTERS_MAX)


def clipped(text: str, characters_max: int) -> str:
    """At most so many characters, all of which a string column can hold."""
    short = text if len(text) <= characters_max else text[: characters_max - 1] + "…"
    return short if short.isascii() else short.encode(errors="backslashreplace").decode()
