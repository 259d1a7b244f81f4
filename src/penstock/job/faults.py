"""What is wrong with a job file: findings by key path while it is read, faults with their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import UserError, did_you_mean


class Secret(str):
    """A text that came from a `${env:}` or `${file:}` reference: usable as a string, never printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'******'"


KeyPath: TypeAlias = tuple[str | int, ...]
SHOWN_CHARACTERS_MAX = 60
_KINDS = {bool: "true or false", dict: "a mapping", list: "a list", type(None): "nothing"}
_KINDS |= dict.fromkeys((str, Secret), "a text") | dict.fromkeys((int, float), "a number")


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a file; both numbers count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong under a key path; `on_key` points at the key instead of its value, `place` at neither."""

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


class RefusedError(ValueError):
    """A text or value that cannot be what its key asks for; the code that knows the key makes a finding of it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


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


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word most like this one, or nothing; secrets are never named."""
    return did_you_mean(word, (name for name in known if not isinstance(name, Secret)))


def shown(value: str) -> str:
    """A value as it may stand in a message: in quotes and short, and never a secret."""
    if isinstance(value, Secret):
        return "'******'"
    cut = value if len(value) <= SHOWN_CHARACTERS_MAX else value[:SHOWN_CHARACTERS_MAX] + "..."
    return f"'{cut}'"


def unless_secret(value: str) -> str:
    """A value as it is, or as `shown` hides it."""
    return shown(value) if isinstance(value, Secret) else value


def kind_of(value: object) -> str:
    """The kind of a value that came from YAML, in the words of a message."""
    return _KINDS.get(type(value), type(value).__name__)


def printable(text: str) -> str:
    """One line for a terminal: whatever does not print is written as its escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)
