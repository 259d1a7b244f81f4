"""What is wrong with a job file: findings by key path while the file is read, then faults with line and column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.errors import UserError, did_you_mean


class Secret(str):
    """A text that came from a `${env:}` reference: usable as a string, never printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'******'"


KeyPath: TypeAlias = tuple[str | int, ...]
SHOWN_CHARACTERS_MAX = 60
_KINDS = {bool: "true or false", dict: "a mapping", list: "a list", type(None): "nothing"}
_KINDS |= dict.fromkeys((str, Secret), "a string") | dict.fromkeys((int, float), "a number")


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file; both numbers count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong under a key path: at the value, with `on_key` at the key, or at a `place` that is neither."""

    key: KeyPath
    message: str
    hint: str = ""
    on_key: bool = False
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to fix; line and column count from 1 and are None where the file itself cannot be read."""

    file: str
    line: int | None
    column: int | None
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        subject = f" {self.key}:" if self.key else ("" if self.line is not None else ":")
        hint = f"; {self.hint}" if self.hint else ""
        return printable(f"{place}{subject} {self.message}{hint}")

    def as_json(self) -> Mapping[str, str | int | None]:
        return {
            "line": self.line,
            "column": self.column,
            "key": printable(self.key),
            "message": printable(self.message),
            "hint": printable(self.hint),
        }


class InvalidValueError(ValueError):
    """A file, text or value that cannot be used; code that knows its key makes a finding of it."""

    def __init__(self, message: str, hint: str = "", place: Place | None = None) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.place = place


class JobFileError(UserError):
    """All faults of a job file together, in the order of the file."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


def key_text(key: KeyPath) -> str:
    """The key path as people write it: `sql.select[0]`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def nearest(name: str, candidates: Iterable[str]) -> str:
    """A hint with the candidate most similar to a name, or an empty text; it never shows a secret."""
    return did_you_mean(name, (candidate for candidate in candidates if not isinstance(candidate, Secret)))


def shown(value: str) -> str:
    """A value for a message: in quotes, short, and hidden if it is a secret."""
    if isinstance(value, Secret):
        return "'******'"
    cut = value if len(value) <= SHOWN_CHARACTERS_MAX else value[:SHOWN_CHARACTERS_MAX] + "..."
    return f"'{cut}'"


def without_secrets(finding: Finding, value: object) -> Finding:
    """The finding about a value, without any part of a secret that a reference filled in."""
    secrets = set(_secret_parts(value))
    if not secrets.isdisjoint(re.findall(r"\w+", finding.message)):
        return replace(finding, message="is invalid after its references are filled in", hint="")
    return finding if secrets.isdisjoint(re.findall(r"\w+", finding.hint)) else replace(finding, hint="")


def _secret_parts(value: object) -> Iterator[str]:
    if isinstance(value, Secret):
        yield from re.findall(r"\w+", value)
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _secret_parts(item)


def unless_secret(value: str) -> str:
    """The value as it is, or hidden if it is a secret."""
    return shown(value) if isinstance(value, Secret) else value


def kind_of(value: object) -> str:
    """The kind of a YAML value, for a message."""
    return _KINDS.get(type(value), type(value).__name__)


def printable(text: str) -> str:
    """One line for a terminal: characters that do not print become escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)
