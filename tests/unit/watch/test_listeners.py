from __future__ import annotations

import io
import json

import pytest

from penstock.watch.lines import JsonLines
from penstock.watch.listeners import AlertChanges, Listeners


class Ear:
    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, object]]] = []

    def event(self, name: str, **fields: object) -> None:
        self.heard.append((name, fields))


def test_every_listener_hears_every_event() -> None:
    one, other = Ear(), Ear()
    Listeners(one, other).event("batch committed", written=3)
    assert one.heard == other.heard == [("batch committed", {"written": 3})]


def test_people_hear_when_an_alert_begins_and_when_it_ends_but_not_every_measurement() -> None:
    ear = Ear()
    spoken = AlertChanges(ear)
    for texts in ([], ["events/0 is far"], ["events/0 is further"], [], []):
        spoken.event("rules measured", alerts={"lag": texts}, lag_records={"events/0": 1})
    spoken.event("batch committed", written=1)
    assert ear.heard == [
        ("alert raised", {"rule": "lag", "reason": "events/0 is far"}),
        ("alert ended", {"rule": "lag"}),
        ("batch committed", {"written": 1}),
    ]


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("type cannot be written", "error"),
        ("day marker failed", "warning"),
        ("alert raised", "warning"),
        ("alert ended", "info"),
        ("type written again", "info"),
        ("day complete", "info"),
        ("day opened again", "info"),
        ("catch-up planned", "info"),
    ],
)
def test_an_event_of_an_export_has_the_weight_of_what_a_person_has_to_do(name: str, level: str) -> None:
    stream = io.StringIO()
    JsonLines("fan", stream).event(name, type="fs")
    told = json.loads(stream.getvalue())
    assert (told["event"], told["level"], told["type"], told["job"]) == (name, level, "fs", "fan")
