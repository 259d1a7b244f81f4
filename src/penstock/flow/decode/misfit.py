"""Why a record cannot be a row, and where in it the problem is."""

from __future__ import annotations

import json
from typing import Any

SHOWN_CHARACTERS_MAX = 60
_PATH_CHARACTERS_MAX = 120
_QUOTE = json.JSONEncoder(ensure_ascii=False).encode


class MisfitError(Exception):
    """A problem and its path; each enclosing struct, list or map prepends its name to the path."""

    def __init__(self, problem: str) -> None:
        # `Exception` has kept its arguments already.
        self.problem = problem
        self._path = ""

    def inside(self, name: str) -> MisfitError:
        """The same error with the field `name` before its path; an empty name adds nothing."""
        joint = "." if name and self._path and not self._path.startswith("[") else ""
        self._path = f"{name}{joint}{self._path}"
        return self

    def __str__(self) -> str:
        return f"{place(self._path)}: {self.problem}" if self._path else self.problem


class Inside:
    """A context that adds the field `name` to the path of errors; cheaper than a generator."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MisfitError):
            error.inside(self._name)


def place(path: str) -> str:
    """A path as error texts show it."""
    return clipped(path, _PATH_CHARACTERS_MAX)


def quoted(value: Any) -> str:
    """A text or number as JSON writes it, clipped."""
    return clipped(_QUOTE(value), SHOWN_CHARACTERS_MAX)


def clipped(text: str, characters_max: int) -> str:
    """At most `characters_max` characters, all valid in a string column."""
    short = text if len(text) <= characters_max else text[: characters_max - 1] + "…"
    return short if short.isascii() else short.encode(errors="backslashreplace").decode()
