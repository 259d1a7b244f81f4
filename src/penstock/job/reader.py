"""Reads the values of a job file into the frozen dataclasses that are its specs, and collects all that is wrong.

A faulty value is left out and its field keeps its default, so that everything else is still read and checked. A field
without a default is then None, a section without values: nothing with a finding leaves `job`, so only checks see it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from penstock.job.document import Document
from penstock.job.faults import Finding, InvalidValueError, KeyPath, kind_of, nearest
from penstock.job.values import LOST, Key, Lost, Parsed, Part, Read, one_of


@dataclass(frozen=True, slots=True)
class FileKey:
    """A field of a spec that a job file may state."""

    field: str
    name: str
    marker: Parsed | Read | Part
    spec: Any
    """The dataclass of a section."""
    top: bool
    required: bool


@dataclass(slots=True)
class SpecReader:
    """What the file states, and what is wrong with it so far."""

    document: Document
    folder: Path
    """Of the job file: relative paths begin there."""
    findings: list[Finding] = field(default_factory=list)
    _read: set[KeyPath] = field(default_factory=set)

    def has(self, *key: str | int) -> bool:
        """Whether the file has this key, also with a faulty value."""
        return key in self.document.value_places

    def states(self, *key: str | int) -> bool:
        """Whether the file has this key and its value could be read."""
        return key in self._read

    def misstates(self, *key: str | int) -> bool:
        """Whether the file has this key and its value could not be read."""
        return self.has(*key) and not self.states(*key)

    def written(self, *key: str | int) -> Any:
        """The value of a key as it is in the file."""
        return self.document.value(key)

    def note(self, at: KeyPath, message: str, hint: str = "", *, on_key: bool = False) -> None:
        self.findings.append(Finding(at, message, hint, on_key))

    def lost(self, at: KeyPath, message: str, hint: str = "") -> Lost:
        """Note why a value cannot be read."""
        self.note(at, message, hint)
        return LOST

    def parsed(self, parse: Callable[[Any], object], value: object, at: KeyPath) -> Any:
        """The value as `parse` reads it; `LOST` if it refuses it."""
        try:
            return parse(value)
        except InvalidValueError as refusal:
            return self.lost(at, refusal.message, refusal.hint)

    def listed(self, value: object, at: KeyPath, read: Callable[[Any, KeyPath], object]) -> Any:
        """The items of a list; `LOST` if one of them is lost."""
        if not isinstance(value, list):
            return self.lost(at, f"expected a list, found {kind_of(value)}", "write [one, two]")
        result = [read(item, (*at, index)) for index, item in enumerate(value)]
        return LOST if LOST in result else result

    def mapped(self, value: object, at: KeyPath, read: Callable[[str, Any, KeyPath], object]) -> Any:
        """The values of a mapping without those that are lost."""
        if not isinstance(value, dict):
            return self.lost(at, f"expected a mapping, found {kind_of(value)}")
        result = {name: read(name, item, (*at, name)) for name, item in value.items()}
        return {name: item for name, item in result.items() if item is not LOST}

    def section(self, spec: Any, value: object, at: KeyPath, **others: object) -> Any:
        """The spec that a mapping states; `others` are fields that it cannot state. `LOST` if it is not a mapping."""
        short = isinstance(value, str) and hasattr(spec, "SHORT")
        values = {spec.SHORT: value} if short else value
        if not isinstance(values, dict):
            required = [f"{name}: ..." for name in known_keys(spec, required=True)]
            hint = f"write {{{', '.join(required)}}}" if required else ""
            return self.lost(at, f"expected a mapping, found {kind_of(value)}", hint)
        self._read.add(at)
        self.note_unknown(values, at, known_keys(spec))
        return spec(**others, **self.fields(spec, values, at, short=short))

    def fields(
        self, spec: Any, values: Mapping[str, Any] | None, at: KeyPath, *, short: bool = False
    ) -> dict[str, Any]:
        """The fields of a spec that a mapping states, and those at the top; None as `values`: there is no mapping."""
        result: dict[str, Any] = {}
        for key in keys_of(spec):
            if key.marker is Part.INLINE:
                result[key.field] = key.spec(**self.fields(key.spec, values, at))
                continue
            path = (key.name,) if key.top else (*at, key.name)
            source: Mapping[str, Any] | None = self.document.values if key.top else values
            value: object = LOST
            if source is not None and key.name in source:
                value = self._value(key.marker, source[key.name], at if short else path, key.spec)
            elif key.required and source is not None and not self.has(*path):
                self.note(path, "required key is missing")
            if value is not LOST:
                self._read.add(path)
            elif key.required and key.marker is Part.SECTION:
                value = key.spec(**self.fields(key.spec, None, path))
            elif key.required:
                value = None
            if value is not LOST:
                result[key.field] = value
        return result

    def note_unknown(self, values: Mapping[str, object], at: KeyPath, keys: list[str]) -> None:
        """Note unknown keys, with the closest match."""
        for name in values:
            if name not in keys:
                hint = nearest(name, keys) or f"known keys: {', '.join(keys)}"
                self.note((*at, name), "unknown key", hint, on_key=True)

    def _value(self, marker: Parsed | Read | Part, value: object, at: KeyPath, spec: Any = None) -> object:
        match marker:
            case Parsed(read=read):
                return self.parsed(read, value, at)
            case Read(read=read):
                return read(value, at, self)
            case _:
                return self.section(spec, value, at)


def known_keys(spec: Any, *, required: bool = False) -> list[str]:
    """The keys that a mapping of this spec may have, or those that it must have."""
    names: list[str] = []
    for key in keys_of(spec):
        if key.marker is Part.INLINE:
            names += known_keys(key.spec, required=required)
        elif not key.top and (key.required or not required):
            names.append(key.name)
    return list(dict.fromkeys(names))


@lru_cache(maxsize=256)
def keys_of(spec: Any) -> tuple[FileKey, ...]:
    """The fields of a spec that a job file may state, in their order."""
    hints = get_type_hints(spec, include_extras=True)
    return tuple(key for item in fields(spec) for key in _keys(item, hints[item.name]))


def _keys(item: Any, hint: Any) -> Iterator[FileKey]:
    notes = list(_types_and_annotations(hint))
    # Literals need no annotation.
    reads = [one_of(note) for note in notes if get_origin(note) is Literal]
    reads += [note for note in notes if isinstance(note, Parsed | Read) or note in (Part.SECTION, Part.INLINE)]
    if not reads:
        return
    name = next((note.name for note in notes if isinstance(note, Key)), item.name)
    required = item.default is MISSING and item.default_factory is MISSING
    spec = next((note for note in notes if isinstance(note, type) and is_dataclass(note)), None)
    yield FileKey(item.name, name, reads[-1], spec, Part.TOP in notes, required)


def _types_and_annotations(hint: Any) -> Iterator[Any]:
    """What a hint consists of, also inside of `| None`."""
    if hasattr(hint, "__metadata__"):
        yield from hint.__metadata__
        hint = hint.__origin__
    if get_origin(hint) in (Union, types.UnionType):
        for choice in get_args(hint):
            yield from _types_and_annotations(choice)
    else:
        yield hint
