"""The kinds of value that a job file may hold: each is a type whose annotation defines how it is read.

    lateness_seconds: Annotated[Duration, Key("lateness")] = 60.0

A field of a spec that has such a type is a key of the job file. `Parsed` reads a value alone and raises
`InvalidValueError`; `Read` also gets its key path and the `SpecReader`, and notes what is wrong itself. Tasks need
nothing of this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, get_args

from penstock.job.faults import InvalidValueError, KeyPath, Secret, kind_of, nearest, shown

if TYPE_CHECKING:
    from penstock.job.reader import SpecReader

COUNT_MAX = 2**63 - 1
DURATION_UNITS: dict[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DECIMAL_UNITS = {"": 1, "B": 1, "kB": 1000, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
SIZE_UNITS = _DECIMAL_UNITS | {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}

_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")
SECRET_NAME = re.compile(r"password|secret|token|credential|(?:^|[._-])key(?:$|[._-])|sas", re.IGNORECASE)

UnitT = TypeVar("UnitT", int, float)
NumberT = TypeVar("NumberT", int, float)


# how a field is read


@dataclass(frozen=True, slots=True)
class Parsed:
    """Reads a value without its context."""

    read: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Read:
    """Reads a value that has parts with faults of their own, or that needs its context; `LOST` if it cannot."""

    read: Callable[[Any, KeyPath, SpecReader], object]


@dataclass(frozen=True, slots=True)
class Key:
    """The key, where it is not the name of the field."""

    name: str


class Part(Enum):
    """A field that is a frozen dataclass with keys of its own, or whose key is elsewhere in the file."""

    SECTION = "a mapping under its key"
    INLINE = "its keys are among those of the spec around it"
    TOP = "its key is at the top of the file"


class Lost:
    """The type of `LOST`: the value could not be read, and a finding states why."""


LOST = Lost()


# quantities


def parse_duration(value: str) -> float:
    """Seconds of a text such as `500ms`, `60s`, `5m`, `1h` or `2d`."""
    number, unit = _amount(value, DURATION_UNITS, "duration", "write a number and one of ms, s, m, h, d, as in 60s")
    return float(number) * unit


def parse_size(value: str) -> int:
    """Bytes of a text such as `128MiB`, `10MB` or `1024`; a fraction of a byte is dropped."""
    hint = "write bytes, or a number and one of KiB, MiB, GiB, TiB, kB, MB, GB, TB, as in 128MiB"
    number, unit = _amount(value, SIZE_UNITS, "size", hint)
    return int(number) * unit if number.isdecimal() else int(float(number) * unit)


def _amount(value: str, units: Mapping[str, UnitT], what: str, hint: str) -> tuple[str, UnitT]:
    """The number as it is written, and its unit."""
    match = _QUANTITY.fullmatch(value.strip())
    if match is None or match[2] not in units:
        raise InvalidValueError(f"{shown(value)} is not a {what}", hint)
    return match[1], units[match[2]]


# scalars


def text(value: object) -> str:
    if not isinstance(value, str):
        hint = "put it in quotes" if isinstance(value, int | float) else ""
        raise InvalidValueError(f"expected a string, found {kind_of(value)}", hint)
    if not value.strip():
        raise InvalidValueError("cannot be empty")
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValueError(f"expected true or false, found {kind_of(value)}")
    return value


def count(value: object) -> int:
    """A whole number from 0 on; digits in a text count too, since references are texts."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,19}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError(f"expected a whole number, found {kind_of(value)}")
    if not 0 <= value <= COUNT_MAX:
        raise InvalidValueError("expected a whole number from 0 to 2^63 - 1")
    return value


def positive(value: object) -> int:
    number = count(value)
    if number == 0:
        raise InvalidValueError("must be more than 0")
    return number


def any_duration(value: object) -> float:
    """In seconds; it may be 0."""
    if not isinstance(value, str):
        raise InvalidValueError(f"expected a duration, found {kind_of(value)}", "write the unit too, as in 60s")
    return parse_duration(value)


def duration(value: object) -> float:
    seconds = any_duration(value)
    if seconds <= 0:
        raise InvalidValueError("must be more than 0")
    return seconds


def size(value: object) -> int:
    if isinstance(value, str):
        return positive(parse_size(value))
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError(f"expected a size, found {kind_of(value)}", "write 128MiB, or a number of bytes")
    return positive(value)


def number(value: object) -> float:
    """Any number; one in a text counts too, since references are texts."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}(?:\.[0-9]{1,18})?", value):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValueError(f"expected a number, found {kind_of(value)}")
    return float(value)


def day(value: object) -> date:
    if not isinstance(value, str):
        raise InvalidValueError(f"expected a date, found {kind_of(value)}", "write 2000-01-01")
    try:
        return date.fromisoformat(value if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value) else "")
    except ValueError:
        raise InvalidValueError(f"{shown(value)} is not a date", "write 2000-01-01") from None


def setting(value: object) -> str:
    """A scalar as the text that a foreign system expects."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str():
            return value
        case _:
            raise InvalidValueError(f"expected a string, a number, true or false, found {kind_of(value)}")


def regular_expression(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        more = "; for any text write .*" if value.startswith("*") else ""
        raise InvalidValueError(f"{shown(value)} is not a regular expression", f"{error}{more}") from None
    return value


def matching(pattern: str, fault: str, hint: str = "") -> Parsed:
    """A text that matches a pattern; `{}` in the fault is the value."""

    def read(value: object) -> str:
        if not re.fullmatch(pattern, text(value), re.DOTALL):
            raise InvalidValueError(fault.format(shown(text(value))), hint)
        return text(value)

    return Parsed(read)


def one_of(choices: Any, hint: str = "") -> Parsed:
    """One value of a `Literal`, with the closest match as the hint, or else this one."""
    names: tuple[str, ...] = get_args(choices)

    def choose(value: object) -> str:
        if not isinstance(value, str):
            raise InvalidValueError(f"expected one of {', '.join(names)}, found {kind_of(value)}")
        if value not in names:
            raise InvalidValueError(f"{shown(value)} is not one of {', '.join(names)}", nearest(value, names) or hint)
        return str(value)

    return Parsed(choose)


def within(
    parse: Callable[[object], NumberT], fault: str, hint: str = "", *, least: float = 0, most: float = float("inf")
) -> Parsed:
    """A number with bounds; `fault` gives the reason for them."""

    def read(value: object) -> NumberT:
        number = parse(value)
        if not least <= number <= most:
            raise InvalidValueError(fault, hint)
        return number

    return Parsed(read)


# several values


def items(parse: Callable[[Any], object], into: Callable[[list[Any]], object] = tuple) -> Read:
    """A list; one faulty item makes the whole list faulty."""

    def read(value: object, at: KeyPath, reader: SpecReader) -> object:
        result = reader.listed(value, at, lambda item, path: reader.parsed(parse, item, path))
        return result if result is LOST else into(result)

    return Read(read)


def read_settings(value: object, at: KeyPath, reader: SpecReader) -> Any:
    """Texts by name; those whose names suggest a secret are never printed."""
    result = reader.mapped(value, at, lambda _, item, path: reader.parsed(setting, item, path))
    return LOST if result is LOST else secret_settings(result)


def secret_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The same settings; a value whose name suggests a secret is one."""
    return {name: Secret(item) if SECRET_NAME.search(name) else item for name, item in settings.items()}


def sections_by_name(spec: Any) -> Read:
    """A mapping of names to sections, each with its name as the field `name`."""

    def read(value: object, at: KeyPath, reader: SpecReader) -> object:
        return reader.mapped(value, at, lambda name, item, path: reader.section(spec, item, path, name=name))

    return Read(read)


def sections(spec: Any) -> Read:
    """A list of sections."""

    def read(value: object, at: KeyPath, reader: SpecReader) -> object:
        result = reader.listed(value, at, lambda item, path: reader.section(spec, item, path))
        return result if result is LOST else tuple(result)

    return Read(read)


Text: TypeAlias = Annotated[str, Parsed(text)]
Flag: TypeAlias = Annotated[bool, Parsed(flag)]
Count: TypeAlias = Annotated[int, Parsed(count)]
Positive: TypeAlias = Annotated[int, Parsed(positive)]
Duration: TypeAlias = Annotated[float, Parsed(duration)]
Size: TypeAlias = Annotated[int, Parsed(size)]
Share: TypeAlias = Annotated[float, within(number, "expected a share from 0 to 1", "write 0.1", most=1)]
Date: TypeAlias = Annotated[date, Parsed(day)]
Pattern: TypeAlias = Annotated[str, Parsed(lambda value: regular_expression(text(value)))]
Texts: TypeAlias = Annotated[tuple[str, ...], items(text)]
Settings: TypeAlias = Annotated[Mapping[str, str], Read(read_settings)]
