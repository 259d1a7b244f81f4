"""The bytes of records as text for people: whatever they hold is visible, bounded, and marked where the error is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from penstock.flow.decode.json_text import JsonObject, parse
from penstock.flow.decode.misfit import MisfitError
from penstock.job.faults import printable

LIST_BYTES_MAX = 1024
"""Of a record in a list."""
RECORD_BYTES_MAX = 64 * 1024
"""Of a record on a page of its own."""
BINARY_SHARE_MIN = 0.3
"""With more characters that are not text, a value is shown as hex."""
JSON_DEPTH_MAX = 40
CELL_CHARACTERS_MAX = 200
HEX_WIDTH = 16
END = "▮"
"""Marked where more should follow the end of a record."""

_AT = re.compile(r"\bat (?P<unit>character|byte) (?P<number>\d+)\b")
_PATH = re.compile(r"(?P<path>[^\s:\"]+): ")
_NOT_READ = ("not JSON", "value is not UTF-8")
"""Errors that may not name the place, which another reader finds."""
_quoted = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text; `marked` is where the error is."""

    text: str
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """What a key, a value or a header holds."""

    form: str
    """`JSON`, `text`, `hex` or `null`."""
    size_bytes: int
    """Of the whole value, of which `pieces` may show the beginning."""
    pieces: tuple[Piece, ...] = ()
    cut: bool = False

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def marked(self) -> bool:
        return any(piece.marked for piece in self.pieces)


def content_of(value: bytes | None, error: str = "", size_bytes: int | None = None) -> Content:
    """A value, or its first bytes if it has `size_bytes`; the place that `error` names is marked if it is shown."""
    if value is None:
        return Content("null", 0)
    size_bytes = len(value) if size_bytes is None else size_bytes
    cut = len(value) < size_bytes
    pieces = None if cut else _json(value, error)
    if pieces is not None:
        return Content("JSON", size_bytes, pieces)
    text = value.decode(errors="backslashreplace")
    if sum(_is_odd(character) for character in value.decode(errors="replace")) > BINARY_SHARE_MIN * len(value):
        return Content("hex", size_bytes, (Piece(_hex(value)),), cut)
    return Content("text", size_bytes, _marked(text, _position(value, error), cut), cut)


def cut_content(value: bytes | None, bytes_max: int, error: str = "") -> Content:
    """The content of the first bytes of a value."""
    return content_of(value, error) if value is None else content_of(value[:bytes_max], error, len(value))


def _is_odd(character: str) -> bool:
    return character == "\ufffd" or not (character.isprintable() or character.isspace())


def visible(text: str) -> str:
    """The text with its lines; characters that do not print become escapes, also those that change its direction."""
    return "\n".join(map(printable, text.split("\n")))


def _position(value: bytes, error: str) -> int | None:
    """Which character of the text the error names."""
    if "truncated" in error:
        return len(value.decode(errors="backslashreplace"))
    match = _AT.search(error)
    if match is None and error.startswith(_NOT_READ):
        try:
            parse(value)
        except MisfitError as misfit:
            match = _AT.search(str(misfit))
    if match is None:
        return None
    number = int(match["number"])
    return len(value[:number].decode(errors="backslashreplace")) if match["unit"] == "byte" else number


def _marked(text: str, at: int | None, cut: bool) -> tuple[Piece, ...]:
    if at is None or (cut and at >= len(text)):
        return (Piece(visible(text)),)
    if at >= len(text):
        return (Piece(visible(text)), Piece(END, marked=True))
    length = 4 if text[at] == "\\" else 1
    parts = (text[:at], False), (text[at : at + length], True), (text[at + length :], False)
    return tuple(Piece(visible(part), marked) for part, marked in parts if part)


def _hex(value: bytes) -> str:
    lines = (value[start : start + HEX_WIDTH] for start in range(0, len(value), HEX_WIDTH))
    return "\n".join(
        f"{number * HEX_WIDTH:06x}  {line.hex(' '):<{HEX_WIDTH * 3}} "
        + "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        for number, line in enumerate(lines)
    )


# JSON


def _json(value: bytes, error: str) -> tuple[Piece, ...] | None:
    """JSON with a line for each member, and the member that the error names marked; None if it is not JSON."""
    if value.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        parsed = parse(value)
    except MisfitError:
        return None
    match = _PATH.match(error)
    return tuple(_members(parsed, "", "" if match is None else match["path"].casefold(), 0))


def _members(value: object, path: str, marked: str, depth: int) -> Iterator[Piece]:
    indent, end = "  " * (depth + 1), "\n" + "  " * depth
    if isinstance(value, JsonObject | list) and value and depth >= JSON_DEPTH_MAX:
        yield Piece("…")
        return
    match value:
        case JsonObject() if value:
            for number, (name, member) in enumerate(value.items()):
                twice = " (given twice)" if name in value.doubled else ""
                inside = f"{path}.{name}" if path else name
                label = Piece(f"{visible(_quoted(name))}{twice}: ", bool(twice))
                yield Piece(("{" if not number else ",") + f"\n{indent}")
                yield from _member(label, member, inside, marked, depth)
            yield Piece(end + "}")
        case list() if value:
            for number, member in enumerate(value):
                yield Piece(("[" if not number else ",") + f"\n{indent}")
                yield from _member(Piece(""), member, f"{path}[{number}]", marked, depth)
            yield Piece(end + "]")
        case _:
            yield Piece(_scalar(value))


def _member(label: Piece, member: object, path: str, marked: str, depth: int) -> Iterator[Piece]:
    pieces = [label, *_members(member, path, marked, depth + 1)]
    if path.casefold() == marked:
        yield Piece("".join(piece.text for piece in pieces), marked=True)
    else:
        yield from (piece for piece in pieces if piece.text)


def _scalar(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case JsonObject():
            return "{}"
        case list():
            return "[]"
        case str() if type(value) is str:
            return printable(_quoted(value))
        case _:
            # The text of a number, as it is in the record.
            return str(value)


# values of rows


def cell_text(value: object) -> str:
    """A value of a row in one line, cut; text without quotes."""
    match value:
        case None:
            return "null"
        case str():
            text = value
        case bytes():
            text = value[: CELL_CHARACTERS_MAX + 1].decode(errors="backslashreplace")
        case bool():
            text = "true" if value else "false"
        case datetime():
            text = value.isoformat().replace("+00:00", "Z")
        case dict() | list() | tuple():
            text = json.dumps(value, default=cell_text, ensure_ascii=False)
        case _:
            text = str(value)
    text = printable(text[: CELL_CHARACTERS_MAX + 1])
    return text if len(text) <= CELL_CHARACTERS_MAX else f"{text[: CELL_CHARACTERS_MAX - 1]}…"
