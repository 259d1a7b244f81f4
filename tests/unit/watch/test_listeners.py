from __future__ import annotations

import io
import json

import pytest

from penstock.events import AlertEnded, AlertRaised, Event, FieldsLeftOut, RulesMeasured, SliceRefused
from penstock.tables.export.monitoring import (
    CatchUpPlanned,
    DayComplete,
    DayMarkerFailed,
    TypeCannotBeWritten,
    TypeWrittenAgain,
)
from penstock.watch.listeners import AlertChanges, Listeners, LogLines


class Ear:
    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, object]]] = []

    def event(self, event: Event) -> None:
        self.heard.append((event.name, event.facts()))


def test_every_listener_gets_every_event() -> None:
    one, other = Ear(), Ear()
    Listeners(one, other).event(AlertEnded("lag"))
    assert one.heard == other.heard == [("alert ended", {"rule": "lag"})]


def test_an_alert_is_logged_when_it_begins_and_ends_but_not_every_measurement() -> None:
    ear = Ear()
    spoken = AlertChanges(ear)
    for texts in ([], ["events/0 is far"], ["events/0 is further"], [], []):
        spoken.event(RulesMeasured(alerts={"lag": texts}))
    spoken.event(TypeWrittenAgain("fs"))
    assert ear.heard == [
        ("alert raised", {"rule": "lag", "reason": "events/0 is far"}),
        ("alert ended", {"rule": "lag"}),
        ("type written again", {"type": "fs"}),
    ]


@pytest.mark.parametrize(
    ("event", "name", "level"),
    [
        (TypeCannotBeWritten("fs", "full"), "type cannot be written", "error"),
        (DayMarkerFailed("full"), "day marker failed", "warning"),
        (AlertRaised("lag", "far"), "alert raised", "warning"),
        (AlertEnded("lag"), "alert ended", "info"),
        (TypeWrittenAgain("fs"), "type written again", "info"),
        (DayComplete("fs", "2026-01-01"), "day complete", "info"),
        (CatchUpPlanned(["fs"], 1), "catch-up planned", "info"),
        (FieldsLeftOut(["a"], "odd"), "fields left out", "warning"),
        (SliceRefused("events/0", "old"), "slice refused", "warning"),
    ],
)
def test_an_event_has_the_weight_of_what_a_person_has_to_do(event: Event, name: str, level: str) -> None:
    stream = io.StringIO()
    LogLines("fan", stream).event(event)
    told = json.loads(stream.getvalue())
    assert (told["event"], told["level"], told["job"]) == (name, level, "fan")
    assert event.facts().items() <= told.items()


def test_a_line_for_a_terminal_names_the_job_the_event_and_its_facts() -> None:
    stream = io.StringIO()
    LogLines("fan", stream, text=True).event(SliceRefused("events/0", "old"))
    [line] = stream.getvalue().splitlines()
    assert all(word in line for word in ("fan", "slice refused", "events/0", "old", "warning"))
