"""The kinds of value that a job file may hold, as validators of pydantic fields.

Each is annotated with None for "not stated"; a null in the file never arrives here, the document refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from enum import StrEnum
from typing import Annotated, TypeAlias, TypeVar

from pydantic import PlainValidator

from penstock.job.faults import RefusedError, kind_of, nearest, shown
from penstock.job.sections.quantities import QuantityError, parse_duration, parse_share, parse_size
from penstock.job.spec import MessageName, Secret

NumberT = TypeVar("NumberT", int, float)

COUNT_MAX = 2**63 - 1

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_MESSAGE = re.compile(rf"(?:(?P<file>[^:\s]+):)?(?P<name>{_NAME}(?:\.{_NAME})*)")


def text(value: object) -> str:
    if not isinstance(value, str):
        hint = "put it in quotes" if isinstance(value, int | float) else ""
        raise RefusedError(f"expected a text, found {kind_of(value)}", hint)
    if not value.strip():
        raise RefusedError("cannot be empty")
    return value


def secret(value: object) -> Secret:
    return Secret(text(value))


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise RefusedError(f"expected true or false, found {kind_of(value)}")
    return value


def count(value: object) -> int:
    """A whole number from 0 on; digits in a text count too, since references are texts."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,19}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedError(f"expected a whole number, found {kind_of(value)}")
    if not 0 <= value <= COUNT_MAX:
        raise RefusedError("expected a whole number from 0 to 2^63 - 1")
    return value


def positive(value: object) -> int:
    number = count(value)
    if number == 0:
        raise RefusedError("must be more than 0")
    return number


def _parsed(parse: Callable[[str], NumberT], value: str, what: str) -> NumberT:
    try:
        return parse(value)
    except QuantityError as error:
        raise RefusedError(f"{shown(value)} is no {what}", str(error)) from None


def duration(value: object) -> float:
    if not isinstance(value, str):
        raise RefusedError(f"expected a duration, found {kind_of(value)}", "write the unit too, as in 60s")
    seconds = _parsed(parse_duration, value, "duration")
    if seconds <= 0:
        raise RefusedError("must be more than 0")
    return seconds


def size(value: object) -> int:
    if isinstance(value, str):
        return positive(_parsed(parse_size, value, "size"))
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedError(f"expected a size, found {kind_of(value)}", "write 128MiB, or a number of bytes")
    return positive(value)


def share(value: object) -> float:
    """A part of a whole, from 0 to 1, or in percent."""
    if isinstance(value, str):
        return share(_parsed(parse_share, value, "share"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError(f"expected a share, found {kind_of(value)}", "write 0.1, or 10%")
    if not 0 <= value <= 1:
        raise RefusedError("expected a share from 0 to 1", "write 0.1, or 10%")
    return float(value)


def day(value: object) -> date:
    if not isinstance(value, str):
        raise RefusedError(f"expected a date, found {kind_of(value)}", "write 2000-01-01")
    try:
        return date.fromisoformat(value if _DATE.fullmatch(value) else "")
    except ValueError:
        raise RefusedError(f"{shown(value)} is no date", "write 2000-01-01") from None


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
            raise RefusedError(f"expected a text, a number, true or false, found {kind_of(value)}")


def message_name(value: object) -> MessageName:
    """Read `full.Name`, or `file.proto:full.Name` where several files define the name."""
    found = _MESSAGE.fullmatch(text(value).strip())
    if found is None:
        raise RefusedError(f"{shown(text(value))} is no message name", "write package.Name, or file.proto:package.Name")
    name, file = found["name"], found["file"] or ""
    return MessageName(Secret(name), Secret(file)) if isinstance(value, Secret) else MessageName(name, file)


def one_of(choices: type[StrEnum] | tuple[str, ...]) -> PlainValidator:
    """A closed set of words, with the nearest one as the hint."""
    words = choices if isinstance(choices, tuple) else tuple(choice.value for choice in choices)
    convert: Callable[[str], str] = str if isinstance(choices, tuple) else choices

    def choose(value: object) -> str:
        if not isinstance(value, str):
            raise RefusedError(f"expected one of {', '.join(words)}, found {kind_of(value)}")
        if value not in words:
            raise RefusedError(
                f"{shown(value)} is not one of {', '.join(words)}",
                "" if isinstance(value, Secret) else nearest(value, words),
            )
        return convert(value)

    return PlainValidator(choose)


Text: TypeAlias = Annotated[str | None, PlainValidator(text)]
Hidden: TypeAlias = Annotated[Secret | None, PlainValidator(secret)]
Flag: TypeAlias = Annotated[bool | None, PlainValidator(flag)]
Count: TypeAlias = Annotated[int | None, PlainValidator(count)]
Positive: TypeAlias = Annotated[int | None, PlainValidator(positive)]
Duration: TypeAlias = Annotated[float | None, PlainValidator(duration)]
Size: TypeAlias = Annotated[int | None, PlainValidator(size)]
Share: TypeAlias = Annotated[float | None, PlainValidator(share)]
Date: TypeAlias = Annotated[date | None, PlainValidator(day)]
Message: TypeAlias = Annotated[MessageName | None, PlainValidator(message_name)]
Texts: TypeAlias = list[Annotated[str, PlainValidator(text)]] | None
Settings: TypeAlias = dict[str, Annotated[str, PlainValidator(setting)]] | None
