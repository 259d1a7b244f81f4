"""Texts of a job file with a syntax of their own: names, files, expressions, routes and paths of tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.job.expressions import Constant, Field
from penstock.job.faults import InvalidValueError, KeyPath, Secret, kind_of, nearest, shown
from penstock.job.schema import name_findings
from penstock.job.values import LOST, matching, regular_expression, setting, text

if TYPE_CHECKING:
    from penstock.job.reader import SpecReader

DESCRIPTORS_BYTES_MAX = 16 * 1024 * 1024
"""The set travels to every task."""
SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfss", "hdfs")

_SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ONE_SLASH = re.compile(rf"({'|'.join(SCHEMES)}):/*")
_WITHOUT_BUCKET = ("file", "hdfs")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_MESSAGE = re.compile(rf"(?:(?P<file>[^:\s]+):)?(?P<name>{_NAME}(?:\.{_NAME})*)")
_ROUTE = re.compile(r"(field|header)\((.*)\)", re.DOTALL)
_ROUTES = "write field(path.to.field), header(name), key or envelope"


JOB_NAME = matching(
    "[a-z0-9][a-z0-9._-]{0,63}",
    "invalid job name {}",
    "use up to 64 of a-z, 0-9, . _ -, beginning with a letter or a digit",
)
TOPIC_NAME = matching(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}", "invalid topic name {}", "up to 249 letters, digits, . _ -")


def servers(value: object) -> str:
    """The brokers of a cluster: `kafka-1:9092,kafka-2:9092`."""
    for server in text(value).split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None or not 1 <= int(match[1]) <= 65535:
            raise InvalidValueError("expected host:port, separated by commas", "as in kafka-1:9092,kafka-2:9092")
    return text(value)


def read_patterns(value: object, at: KeyPath, reader: SpecReader) -> object:
    """Regular expressions for keys and values of tags."""

    def read(name: str, item: object, path: KeyPath) -> object:
        reader.parsed(regular_expression, name, path)
        return reader.parsed(lambda pattern: regular_expression(setting(pattern)), item, path)

    return reader.mapped(value, at, read)


# files


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """The content of a file. Raises `InvalidValueError`, which does not name it, if it is unreadable or too large."""
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        raise InvalidValueError(f"cannot be read: {getattr(error, 'strerror', None) or 'not a file name'}") from None
    if len(content) > bytes_max:
        raise InvalidValueError(f"is larger than {bytes_max // 1024**2} MiB")
    return content


# messages of a descriptor set


@dataclass(frozen=True, slots=True)
class MessageName:
    """A message of a descriptor set; `file` distinguishes files that define the same name."""

    name: str
    file: str = ""


def message_name(value: object) -> MessageName:
    """Read `full.Name`, or `file.proto:full.Name` where several files define the name."""
    match = _MESSAGE.fullmatch(text(value).strip())
    if match is None:
        hint = "write package.Name, or file.proto:package.Name"
        raise InvalidValueError(f"invalid message name {shown(text(value))}", hint)
    return MessageName(match["name"], match["file"] or "")


def read_descriptors(value: object, at: KeyPath, reader: SpecReader) -> object:
    """The bytes of a descriptor set. An error never names the file: it may be a secret."""
    name = reader.parsed(text, value, at)
    if name is LOST:
        return LOST
    return reader.parsed(lambda path: read_bounded(path, DESCRIPTORS_BYTES_MAX), reader.folder / name, at)


# expressions


def read_expression(value: object, at: KeyPath, reader: SpecReader) -> object:
    """Parse one expression."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return reader.lost(at, "the number does not fit into 64 bits")
    if isinstance(value, bool | int | float):
        return Constant(value)
    if not isinstance(value, str):
        return reader.lost(at, f"expected a column expression, found {kind_of(value)}")
    from penstock.job.sql_text import parse_expression  # noqa: PLC0415 - imports sqlglot

    expression = reader.parsed(parse_expression, value, at)
    if expression == Constant(None):
        return reader.lost(at, "a column that is always null has no type")
    return expression


def read_columns(value: object, at: KeyPath, reader: SpecReader) -> object:
    """Computed columns by name, without those whose expression cannot be read."""
    columns = reader.mapped(value, at, lambda _, item, path: read_expression(item, path, reader))
    if isinstance(value, dict):
        reader.findings += name_findings({name: (*at, name) for name in value})
    return columns


# routes


def read_route(value: object) -> tuple[str, tuple[str, ...]]:
    """The way of a route, and what `field(meta.type)` or `header(event-type)` names."""
    route = text(value).strip()
    if route in ("key", "envelope"):
        return route, ()
    match = _ROUTE.fullmatch(route)
    if match is None:
        raise InvalidValueError(f"invalid route {shown(text(value))}", nearest(route, ("key", "envelope")) or _ROUTES)
    inside = match[2].strip()
    if not inside:
        raise InvalidValueError(f"{match[1]}() is empty", _ROUTES)
    return match[1], (inside,) if match[1] == "header" else _field_path(inside)


def _field_path(inside: str) -> tuple[str, ...]:
    from penstock.job.sql_text import parse_expression  # noqa: PLC0415 - imports sqlglot

    expression = parse_expression(inside)
    if not isinstance(expression, Field):
        hint = "write names with special characters in backticks: field(`a b`.c)"
        raise InvalidValueError("field() takes the path of a decoded field", hint)
    return expression.path


# paths of tables


def read_table_path(value: object, at: KeyPath, reader: SpecReader) -> object:
    """The path of a table, without a slash at its end; a relative one is taken from the job file's folder."""
    path = reader.parsed(_checked_path, value, at)
    if path is LOST:
        return LOST
    whole = path.strip() if _SCHEME.fullmatch(path.strip()) else str((reader.folder / path.strip()).absolute())
    whole = whole.rstrip("/") or "/"
    return Secret(whole) if isinstance(path, Secret) else whole


def _checked_path(value: object) -> str:
    path = text(value)
    if not path.isprintable():
        raise InvalidValueError("a path can have only printable characters")
    match = _SCHEME.fullmatch(path.strip())
    if match is None:
        if path.strip().rstrip("/") in ("", "."):
            raise InvalidValueError("the table needs a folder of its own")
        if path.strip().startswith(("~", "$")):
            message = f"{path.strip()[0]} is not expanded in {shown(path)}"
            raise InvalidValueError(message, "write ${env:NAME} for an environment variable, as in ${env:HOME}/lake")
        if slash := _ONE_SLASH.match(path.strip()):
            hint = f"write {slash[1]}://{'/' if slash[1] == 'file' else ''}{path.strip()[slash.end() :]}"
            raise InvalidValueError(f"{shown(path)} is neither a path nor a url", hint)
        return path
    scheme, location = match[1], match[2]
    bucket, _, key = location.partition("/")
    if scheme not in SCHEMES:
        hint = nearest(scheme, SCHEMES) or f"use a path, {', '.join(f'{item}://' for item in SCHEMES)}"
        raise InvalidValueError(f"unknown storage {shown(scheme + '://')}", hint)
    if scheme == "file" and bucket:
        raise InvalidValueError("a file:// path begins with three slashes", "file:///folder/table")
    if not bucket and scheme not in _WITHOUT_BUCKET:
        raise InvalidValueError(f"{scheme}:// needs a bucket or container", f"{scheme}://bucket/table")
    if not key.strip("/"):
        raise InvalidValueError("the table needs a folder of its own")
    return path
