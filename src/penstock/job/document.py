"""A YAML text as plain values, with the line and column of each key and value.

Plain scalars follow YAML 1.2's core: `on`, `off`, `yes`, `no`, `12:30` and dates stay texts.
Mapping keys are always texts, as written. `${env:NAME}` in values is filled in, as a secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from penstock.job.faults import Finding, InvalidValueError, KeyPath, Place, Secret
from penstock.job.values import SECRET_NAME

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value]"

NESTING_MAX = 40
NODES_MAX = 20_000
DIGITS_MAX = 30
PIECES_MAX = 20
_PART = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<body>[^{}]*)\}|(?P<open>\$\{)")
_YAML_HINTS = {
    "escape character": "in double quotes a backslash begins an escape: use single quotes",
    "quoted scalar": "a quote is not closed",
    "mapping values are not allowed": "indent all keys alike; a value with a colon and a space needs quotes",
    "cannot start any token": "a value that begins with a special character needs quotes",
    "undefined alias": "a value that begins with * needs quotes",
    "alphabetic or numeric character": "a value that begins with * or & needs quotes",
    "expected node content": "a value is missing, or begins with a special character and needs quotes",
    "expected key": "indent all keys alike, and close quotes",
    "expected ':'": "write key: value, with a space after the colon",
    "another document": "a job file is one document: remove the ---",
}
"""By a part of what the YAML parser states."""
_GENERIC = re.compile(r"\b(?:map|list|array)<")
_WAYS = "write ${env:NAME}, or $${ for a plain ${"


@dataclass(slots=True)
class Document:
    """The values of a file, the places of its keys and values, and the faults of its YAML and references."""

    values: dict[str, Value] = field(default_factory=dict)
    key_places: dict[KeyPath, Place] = field(default_factory=dict)
    value_places: dict[KeyPath, Place] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def value(self, key: KeyPath) -> Any:
        """The value of a key; None if the file states none that can be read."""
        value: Any = self.values
        for part in key:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def place(self, finding: Finding) -> Place:
        """The place of a finding; for a key that the file does not have, the place of the nearest key above it."""
        key = finding.key
        if finding.place is not None:
            return finding.place
        if not finding.on_key and key in self.value_places:
            return self.value_places[key]
        while key and key not in self.key_places:
            key = key[:-1]
        return self.key_places.get(key) or self.value_places.get((), Place(1, 1))


class _Loader(yaml.CSafeLoader):
    """A safe loader that infers types as YAML 1.2 does."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the library's own attribute


_TAG = "tag:yaml.org,2002:"
_FLOAT = r"[-+]?(?:[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)"
for _name, _pattern, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", "[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"^(?:{_pattern})$"), _first)


def read_document(text: str, env: Mapping[str, str]) -> Document:
    """Read one YAML document; raises `InvalidValueError` with its place if it is not one mapping in valid YAML."""
    root = _composed(text)
    if root is None:
        raise InvalidValueError("the file is empty", place=Place(1, 1))
    if not isinstance(root, MappingNode):
        raise InvalidValueError("a job file is a mapping of keys such as job, log and table", place=_place(root))
    document = Document()
    document.values = _Converter(document, env).mapping(root, ())
    return document


def _composed(text: str) -> Node | None:
    try:
        # Before the nodes are built, since building them recurses.
        _check_events(yaml.parse(text, Loader=_Loader))
        root: Node | None = yaml.compose(text, Loader=_Loader)
        return root
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text) from None
    except yaml.reader.ReaderError as error:
        before = text.encode()[: error.position]
        place = Place(before.count(b"\n") + 1, error.position - before.rfind(b"\n"))
        raise InvalidValueError(f"the character {error.character:#x} is not allowed", place=place) from None


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> InvalidValueError:
    """What is wrong with a text that is not YAML, and what to write."""
    problem = (error.problem or error.context or "cannot be read").removeprefix("but ")
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return InvalidValueError(f"not valid YAML: {problem}", place=Place(1, 1))
    place, rest = Place(mark.line + 1, mark.column + 1), text[mark.index :]
    if rest.startswith("{") and text[: mark.index].endswith("$"):
        reference = re.match(r"\{[\w: ]*\}", rest)
        hint = f'inside braces write it in quotes, as in "${reference[0] if reference else "{env:NAME}"}"'
        return InvalidValueError(
            "not valid YAML: a reference without quotes", hint, Place(place.line, place.column - 1)
        )
    if rest.startswith("\t"):
        return InvalidValueError("not valid YAML: a tab", "indent with spaces", place)
    opened = error.context_mark
    if error.context in ("while parsing a flow mapping", "while parsing a flow sequence") and opened is not None:
        bracket = f"{text[opened.index]} in line {opened.line + 1}, column {opened.column + 1}"
        return InvalidValueError(
            f"not valid YAML: the {bracket} is not closed", "or a comma or quotes are missing", place
        )
    hint = next((hint for part, hint in _YAML_HINTS.items() if part in f"{error.context}: {problem}"), "")
    return InvalidValueError(f"not valid YAML: {problem}", hint, place)


def _check_events(events: Iterable[yaml.Event]) -> None:
    """Refuse deep nesting, and tags, which no value of a job file needs."""
    depth = 0
    for event in events:
        if getattr(event, "tag", None) is not None:
            raise InvalidValueError("YAML tags are not supported", place=_place(event))
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > NESTING_MAX:
                raise InvalidValueError(f"more than {NESTING_MAX} levels of nesting", place=_place(event))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _pieces(texts: Iterable[str]) -> int:
    """How many texts, from the first on, are one whose commas are in parentheses or in map<...>."""
    depth, brackets = 0, "()"
    for number, text in enumerate(texts, 1):
        brackets = "<>" if number == 1 and _GENERIC.search(text) else brackets
        depth += text.count(brackets[0]) - text.count(brackets[1])
        if depth <= 0:
            return number
    return 1


def _place(item: Node | yaml.Event) -> Place:
    mark = item.start_mark
    return Place(mark.line + 1, mark.column + 1) if mark is not None else Place(1, 1)


@dataclass(slots=True)
class _Converter:
    """Nodes to values; a faulty value is noted and left out."""

    document: Document
    env: Mapping[str, str]
    nodes_left: int = NODES_MAX

    def mapping(self, node: MappingNode, at: KeyPath) -> dict[str, Value]:
        self.document.value_places[at] = _place(node)
        values: dict[str, Value] = {}
        for key_node, value_node in self._rejoined(node, at):
            key = self._key(key_node, at)
            if key is None:
                continue
            path = (*at, key)
            if path in self.document.key_places:
                first = self.document.key_places[path].line
                self._note(path, f"given twice, first in line {first}", key=key_node)
                continue
            self.document.key_places[path] = _place(key_node)
            value = self._value(value_node, path)
            if value is not None:
                values[key] = value
        return values

    def _rejoined(self, node: MappingNode | SequenceNode, at: KeyPath) -> list[Any]:
        """The entries of a node; a value in braces that its own commas cut is noted, and read as if it were quoted."""
        entries = [pair if isinstance(node, MappingNode) else (number, pair) for number, pair in enumerate(node.value)]
        for number, (key, value) in enumerate(entries if node.flow_style else ()):
            if not isinstance(value, ScalarNode) or value.style:
                continue
            texts = [value.value]
            for other, nothing in entries[number + 1 : number + PIECES_MAX]:
                piece = nothing if isinstance(node, SequenceNode) else other if nothing.value == "" else None
                if not isinstance(piece, ScalarNode):
                    break
                texts.append(f"'{piece.value}'" if piece.style else piece.value)
            count = _pieces(texts)
            if count > 1:
                whole = ", ".join(texts[:count])
                path = (*at, key if isinstance(key, int) else key.value)
                text = "" if SECRET_NAME.search(str(path[-1])) else f': "{whole}"'
                self._note(path, "ends at its first comma", f"quote it inside braces{text}", key=value)
                entries[number : number + count] = [(key, ScalarNode(value.tag, whole, value.start_mark))]
        return entries

    def _key(self, node: Node, at: KeyPath) -> str | None:
        if not isinstance(node, ScalarNode):
            self._note(at, "a key must be a string", key=node)
            return None
        if "${" in node.value:
            self._note((*at, node.value), "references are allowed in values only", key=node)
            return None
        return str(node.value)

    def _value(self, node: Node, at: KeyPath) -> Value | None:
        self.document.value_places[at] = _place(node)
        self.nodes_left -= 1
        # Aliases repeat nodes without end: both bounds hold for the unfolded tree.
        if len(at) > NESTING_MAX or self.nodes_left < 0:
            if len(at) > NESTING_MAX or self.nodes_left == -1:
                self._note(at, "too large: too many values after aliases, or too many levels")
            return None
        if isinstance(node, MappingNode):
            return self.mapping(node, at)
        if isinstance(node, SequenceNode):
            items = [self._value(item, (*at, index)) for index, (_, item) in enumerate(self._rejoined(node, at))]
            kept = [item for item in items if item is not None]
            return kept if len(kept) == len(items) else None
        return self._scalar(node, at)

    def _scalar(self, node: Node, at: KeyPath) -> Value | None:
        match node.tag.removeprefix(_TAG):
            case "null":
                self._note(at, "has no value", "give it one, or remove the key")
                return None
            case "bool":
                return bool(node.value.lower() == "true")
            case "int" | "float" as kind:
                return self._number(kind, node.value, at)
            case _:
                return self._text(node.value, at)

    def _number(self, kind: str, text: str, at: KeyPath) -> int | float | None:
        number = int(text) if kind == "int" and len(text) <= DIGITS_MAX else float(text)
        if isinstance(number, float) and (kind == "int" or not math.isfinite(number)):
            self._note(at, "the number is too large")
            return None
        return number

    def _text(self, text: str, at: KeyPath) -> str | None:
        filled, faults = resolve(text, self.env)
        for fault in faults:
            self._note(at, fault.message, fault.hint)
        return None if faults else filled

    def _note(self, at: KeyPath, message: str, hint: str = "", key: Node | None = None) -> None:
        self.document.findings.append(Finding(at, message, hint, place=_place(key) if key is not None else None))


# references


def resolve(text: str, env: Mapping[str, str]) -> tuple[str, list[InvalidValueError]]:
    """Fill in the references of a text: a `Secret` where there was one, and a fault for each that is missing."""
    faults: list[InvalidValueError] = []

    def fill(part: re.Match[str]) -> str:
        if part["escape"]:
            return "${"
        kind, _, name = (word.strip() for word in (part["body"] or "").partition(":"))
        if part["open"]:
            faults.append(InvalidValueError("a reference begins with ${ and is not closed", _WAYS))
        elif kind != "env" or not name:
            faults.append(InvalidValueError(f"invalid reference ${{{part['body']}}}", _WAYS))
        elif name not in env:
            faults.append(
                InvalidValueError(f"environment variable {name} is not set", f"set {name} before the job starts")
            )
        return env.get(name, "")

    filled = _PART.sub(fill, text)
    has_references = any(not part["escape"] for part in _PART.finditer(text))
    return (Secret(filled) if has_references else filled), faults
