"""Mappings into frozen dataclasses: a faulty value has its finding and is left out, everything else is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest

from penstock.job.document import read_document
from penstock.job.reader import SpecReader, known_keys
from penstock.job.values import (
    LOST,
    Duration,
    Key,
    Part,
    Positive,
    Settings,
    Text,
    Texts,
    sections_by_name,
)

AT = ("pump",)


@dataclass(frozen=True)
class Valve:
    SHORT: ClassVar[str] = "state"
    state: Literal["open", "closed"] = "open"
    turns: Positive = 1


@dataclass(frozen=True)
class Pipe:
    name: str
    metres: Positive


@dataclass(frozen=True)
class Labels:
    colours: Texts
    parts: Texts = ("a",)


@dataclass(frozen=True)
class Pump:
    maker: Text
    labels: Annotated[Labels, Part.INLINE]
    pause_seconds: Annotated[Duration, Key("pause")] = 5.0
    valve: Annotated[Valve, Part.SECTION] = field(default_factory=Valve)
    settings: Settings = field(default_factory=dict)
    pipes: Annotated[Mapping[str, Pipe], sections_by_name(Pipe), Part.TOP] = field(default_factory=dict)
    serial: str = "not a key"


def read(text: str) -> tuple[Any, SpecReader]:
    document = read_document(text, {})
    reader = SpecReader(document, Path())
    return reader.section(Pump, document.values["pump"], AT), reader


def faults(reader: SpecReader) -> list[tuple[tuple[str | int, ...], str]]:
    return [(finding.key, finding.message) for finding in reader.findings]


def test_stated_keys_are_read_and_the_rest_has_defaults() -> None:
    pump, reader = read("pump: {maker: acme, colours: [x], pause: 2m, valve: closed}\npipes: {long: {metres: 9}}\n")
    assert pump == Pump("acme", Labels(("x",), ("a",)), 120.0, Valve("closed"), pipes={"long": Pipe("long", 9)})
    assert reader.findings == []
    assert reader.states("pump", "pause") and not reader.states("pump", "settings")


def test_only_annotated_fields_are_keys_and_a_field_at_the_top_is_none_of_the_section() -> None:
    assert known_keys(Pump) == ["maker", "colours", "parts", "pause", "valve", "settings"]


def test_a_faulty_value_keeps_the_default_and_hides_no_other_fault() -> None:
    pump, reader = read(
        "pump: {maker: 5, colours: [x, 7], pause: 2, valve: {state: opn, turns: 3}, settings: {a: [1], b: 2}}\n"
        "pipes: {short: {}, none: 4}\n"
    )
    assert faults(reader) == [
        ((*AT, "maker"), "expected a string, found a number"),
        ((*AT, "colours", 1), "expected a string, found a number"),
        ((*AT, "pause"), "expected a duration, found a number"),
        ((*AT, "valve", "state"), "'opn' is not one of open, closed"),
        ((*AT, "settings", "a"), "expected a string, a number, true or false, found a list"),
        (("pipes", "short", "metres"), "required key is missing"),
        (("pipes", "none"), "expected a mapping, found a number"),
    ]
    assert (pump.maker, pump.labels.colours, pump.pause_seconds) == (None, None, 5.0)
    assert (pump.valve, pump.settings) == (Valve("open", 3), {"b": "2"})
    assert reader.has("pump", "pause") and not reader.states("pump", "pause")


def test_a_fault_in_a_short_form_is_reported_at_its_section() -> None:
    _, reader = read("pump: {maker: a, colours: [], valve: opn}\n")
    assert [(finding.key, finding.hint) for finding in reader.findings] == [((*AT, "valve"), "did you mean open?")]


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("pauze", "did you mean pause?"),
        ("serial", "known keys: maker, colours, parts, pause, valve, settings"),
    ],
)
def test_an_unknown_key_is_reported_with_the_closest_match(key: str, hint: str) -> None:
    _, reader = read(f"pump: {{maker: a, colours: [], {key}: 1}}\n")
    assert [(finding.key, finding.hint, finding.on_key) for finding in reader.findings] == [((*AT, key), hint, True)]


def test_a_section_that_is_not_a_mapping_is_dropped_with_a_hint_naming_its_keys() -> None:
    pump, reader = read("pump: [1]\n")
    assert pump is LOST
    assert [(finding.key, finding.hint) for finding in reader.findings] == [(AT, "write {maker: ..., colours: ...}")]
