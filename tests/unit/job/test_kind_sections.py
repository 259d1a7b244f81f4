"""A kind of table brings its own part of the job file: here one that only this test knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self, cast

import pytest

from penstock.job.reader import SpecReader
from penstock.job.spec import JobSpec, TableSpec, job_of
from penstock.job.values import Part, Positive, Text
from penstock.tables.kind import Kind
from penstock.tables.registry import KINDS
from penstock.tables.rows import complete_rows
from tests.unit.job.conftest import BASE, Faults, Load

TOY = BASE.replace("delta: {path: s3://lake/web}", "toy: {path: toys, colour: red}")


@dataclass(frozen=True, slots=True)
class Parking:
    wheels: Positive = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ToySpec(TableSpec):
    kind = "toy"
    colour: Text
    parking: Annotated[Parking, Part.SECTION, Part.TOP] = field(default_factory=Parking)

    def complete(self, job: JobSpec[Self], reader: SpecReader) -> JobSpec[Self]:
        if self.colour == "grey":
            reader.note(("table", "toy", "colour"), "is not a colour")
        return complete_rows(job, reader)[0]


class ToyKind:
    name = ToySpec.kind
    spec = ToySpec


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "toy", cast(Kind, ToyKind()))


@pytest.mark.usefixtures("toys")
def test_a_kind_in_the_registry_loads_from_its_own_sections(load: Load, tmp_path: Path) -> None:
    table = job_of(load(TOY + "parking: {wheels: 3}\n"), ToySpec).table
    assert table.path == f"{tmp_path}/toys"
    assert (table.kind, table.colour, table.parking.wheels) == ("toy", "red", 3)


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (TOY.replace("red", "grey"), (7, "table.toy.colour", "is not a colour")),
        (TOY.replace("red", "[red]"), (7, "table.toy.colour", "expected a string, found a list")),
        (TOY.replace(", colour: red", ""), (7, "table.toy.colour", "required key is missing")),
        (TOY.replace("colour", "color"), (7, "table.toy.color", "unknown key; did you mean colour?")),
        (TOY + "parkin: {wheels: 3}\n", (8, "parkin", "unknown key; did you mean parking?")),
        (TOY + "parking: {weels: 3}\n", (8, "parking.weels", "unknown key; did you mean wheels?")),
        (TOY + "days: {idle: 1m}\n", (8, "days", "has no meaning without table.export; remove it")),
        (BASE + "parking: {wheels: 3}\n", (8, "parking", "has no meaning without table.toy; remove it")),
        (TOY + "  delta: {path: b}\n", (7, "table.toy", "contradicts table.delta: state one of them")),
        (
            TOY.replace("  toy: {path: toys, colour: red}", "  {}") + "parking: {wheels: 3}\n",
            (6, "table.toy", "required key is missing; one of delta, "),
        ),
        (TOY.replace("path: toys", "path: ftp://toys/a"), (7, "table.toy.path", "unknown storage 'ftp://'")),
    ],
)
def test_faults_of_a_kind_are_reported_with_all_others(faults: Faults, text: str, fault: tuple[int, str, str]) -> None:
    line, key, message = fault
    assert [(at, where) for at, where, text in faults(text) if message in text] == [(line, key)]


def test_an_unregistered_kind_is_an_unknown_key(faults: Faults) -> None:
    assert ("table.toy", True) in [(key, text.startswith("unknown key")) for _, key, text in faults(TOY)]
    assert (8, "parking") in [(line, key) for line, key, _ in faults(BASE + "parking: {}\n")]
