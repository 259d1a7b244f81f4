"""Writes docs/job-file.md: `python -m docs.job_file.generate`, or `make docs`.

The page is `template.txt`, in which a line `{section}` becomes the table of that section's keys. Keys, types, defaults
and allowed values come from the specs of the job file. `keys.yaml` has one sentence per key, and the type or default
where the model does not show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa
import yaml

from penstock.job.faults import InvalidValueError
from penstock.job.loader import OTHER_KEYS
from penstock.job.reader import FileKey, keys_of
from penstock.job.spec import BlacklistEntry, JobSpec
from penstock.job.values import DURATION_UNITS, SIZE_UNITS, Parsed, Part
from penstock.logs.registry import SPECS
from penstock.tables.export.spec import TypeSpec
from penstock.tables.registry import KINDS

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "job-file.md"
TOP = "job file"
"""The section of the keys at the top of the file."""
REQUIRED = "required"
PROBES = {
    "flag": True,
    "count": 7,
    "date": "2026-03-01",
    "duration": "90s",
    "size": "64MiB",
    "number": 0.5,
    "text": "x",
}
"""A value for each type; `_parsed_type` chooses among those whose value is accepted."""
FORMS: tuple[tuple[type, str], ...] = (
    (tuple, "list"),
    (frozenset, "list"),
    (Mapping, "mapping"),
    (bytes, "file"),
)


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key of the job file, as a row of a table shows it."""

    name: str
    type: str
    """The type of the value, or the allowed words."""
    default: str
    """As the file would state it; empty: none."""


def sections() -> dict[str, list[KeyRow]]:
    """Every section of a job file with its keys; a key of two fields is listed once."""
    result: dict[str, list[KeyRow]] = {TOP: [KeyRow(name, "", "") for name in OTHER_KEYS]}
    _add(result, TOP, JobSpec)
    _add(result, "decode.blacklist", BlacklistEntry)
    for log in SPECS:
        _add(result, f"log.{log.kind}", log)
    for kind in KINDS.all():
        _add(result, f"table.{kind.name}", kind.spec)
    _add(result, "types", TypeSpec)
    return result


def _add(result: dict[str, list[KeyRow]], section: str, spec: Any) -> None:
    rows = result.setdefault(section, [])
    for key in keys_of(spec):
        if key.marker is Part.INLINE:
            _add(result, section, key.spec)
            continue
        target = result[TOP] if key.top else rows
        if key.name not in {row.name for row in target}:
            target.append(_row(spec, key))
        if key.marker is Part.SECTION:
            below = key.name if key.top or section == TOP else f"{section}.{key.name}"
            _add(result, below, key.spec)


def _row(spec: Any, key: FileKey) -> KeyRow:
    hint = get_type_hints(spec, include_extras=True)[key.field]
    words = [word for kind in _kinds(hint) for word in _words(kind)]
    if key.marker is Part.SECTION:
        type_ = "section"
    elif isinstance(key.marker, Parsed) and not words:
        type_ = _parsed_type(key.marker.read)
    else:
        forms = [form for kind in _kinds(hint) for cls, form in FORMS if _is(kind, cls)]
        type_ = next(iter(forms), "list" if bool in _kinds(hint) else "text")
    return KeyRow(key.name, ", ".join(f"`{word}`" for word in words) or type_, _default(spec, key, type_))


def _kinds(hint: Any) -> list[Any]:
    """The types that an annotation allows, without None."""
    inner = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    if get_origin(inner) is not None and type(None) in get_args(inner):
        return [kind for choice in get_args(inner) for kind in _kinds(choice) if choice is not type(None)]
    return [inner]


def _words(kind: Any) -> list[str]:
    return [str(word) for word in get_args(kind)] if get_origin(kind) is Literal else []


def _is(kind: Any, cls: type) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, cls)


def _parsed_type(read: Callable[[Any], object]) -> str:
    """The type that a reader of single values accepts."""
    accepted = [name for name, probe in PROBES.items() if _accepts(read, probe)]
    widest = [name for name in ("text", "size", "number") if name in accepted]
    return next(iter([*widest, *accepted]), "text")


def _accepts(read: Callable[[Any], object], value: object) -> bool:
    try:
        read(value)
    except InvalidValueError:
        return False
    return True


def _default(spec: Any, key: FileKey, type_: str) -> str:
    if key.required:
        return REQUIRED
    field = next(field for field in fields(spec) if field.name == key.field)
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    if type_ == "section" or value is None or isinstance(value, pa.Schema) or value in ("", (), {}, b"", frozenset()):
        return ""
    match value:
        case bool():
            return str(value).lower() if type_ == "flag" else ""
        case tuple():
            return f"[{', '.join(getattr(item, 'name', str(item)) for item in value)}]"
        case int() | float() if type_ == "duration":
            return _quantity(value / 1000 if key.field.endswith("_ms") else value, DURATION_UNITS)
        case int() if type_ == "size":
            return _quantity(value, {unit: size for unit, size in SIZE_UNITS.items() if unit.endswith("iB")})
        case _:
            return str(value)


def _quantity(value: float, units: Mapping[str, float]) -> str:
    """A number with the largest unit that leaves a whole number."""
    unit, size = max(
        ((unit, size) for unit, size in units.items() if value % size == 0 and (value or unit == "s")),
        key=lambda item: item[1],
    )
    return f"{value / size:g}{unit}"


def notes() -> dict[str, dict[str, Any]]:
    """The sentences of `keys.yaml`, by section and key."""
    content: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "keys.yaml").read_text(encoding="utf-8"))
    return content


def table(section: str, rows: list[KeyRow], sentences: Mapping[str, Any]) -> str:
    """The keys of a section as Markdown, in the order of their sentences; raises `KeyError` for one without."""
    lines = ["key | value | meaning", "---|---|---"]
    for row in rows:
        if row.name not in sentences:
            raise KeyError(f"docs/job_file/keys.yaml has no sentence for {row.name} of {section}")
    for row in sorted(rows, key=lambda row: list(sentences).index(row.name)):
        note = sentences[row.name]
        note = {"is": note} if isinstance(note, str) else note
        lines.append(f"`{row.name}` | {_value(row, note)} | {note['is']}")
    return "\n".join(lines)


def _value(row: KeyRow, note: Mapping[str, str]) -> str:
    type_, default = note.get("type", row.type), note.get("default", row.default)
    if default == REQUIRED:
        return f"{type_}, required"
    if f"`{default}`" in type_.split(", "):
        return type_.replace(f"`{default}`", f"**`{default}`**")
    if not default:
        return type_
    in_words = default if default.startswith(REQUIRED) else f"**{default}**"
    return f"{type_}, {in_words if 'default' in note else f'**`{default}`**'}"


def page() -> str:
    """The text of docs/job-file.md."""
    tables, sentences = sections(), notes()
    used: set[str] = set()

    def table_of(match: re.Match[str]) -> str:
        used.add(match[1])
        return table(match[1], tables[match[1]], sentences.get(match[1], {}))

    text = re.sub(
        r"^\{([a-z._ ]+)\}$", table_of, (FOLDER / "template.txt").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    missing = [name for name, rows in tables.items() if rows and name not in used]
    if missing:
        raise KeyError(f"docs/job_file/template.txt has no table of {', '.join(missing)}")
    return text


def unused_notes() -> Iterator[str]:
    """Sentences for keys that the job file does not have."""
    names = {section: {row.name for row in rows} for section, rows in sections().items()}
    for section, sentences in notes().items():
        yield from (f"{section}.{name}" for name in sentences if name not in names.get(section, set()))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
