from __future__ import annotations

import io
import json

import pytest

from penstock.events import AlertEnded, AlertRaised, Event, FieldsLeftOut, ProgressMeasured, RulesMeasured, SliceRefused
from penstock.tables.export.monitoring import (
    DayComplete,
    DayMarkerFailed,
    TypeCannotBeWritten,
    TypeWrittenAgain,
)
from penstock.watch.listeners import AlertChanges, Listeners, LogLines


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def event(self, event: Event) -> None:
        self.events.append((event.name, event.facts()))


def test_every_listener_gets_every_event() -> None:
    one, other = Recorder(), Recorder()
    Listeners(one, other).event(AlertEnded("lag"))
    assert one.events == other.events == [("alert ended", {"rule": "lag"})]


def test_an_alert_is_logged_when_it_begins_and_ends_but_not_every_measurement() -> None:
    recorder = Recorder()
    changes = AlertChanges(recorder)
    for texts in ([], ["events/0 is far"], ["events/0 is further"], [], []):
        changes.event(RulesMeasured(alerts={"lag": texts}))
    changes.event(TypeWrittenAgain("fs"))
    assert recorder.events == [
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
        (FieldsLeftOut(["a"], "name"), "fields left out", "warning"),
        (SliceRefused("events/0", "old"), "slice refused", "warning"),
    ],
)
def test_an_event_is_logged_with_its_level_and_facts(event: Event, name: str, level: str) -> None:
    stream = io.StringIO()
    LogLines("fan", stream).event(event)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"], line["job"]) == (name, level, "fan")
    assert event.facts().items() <= line.items()


def test_the_lag_of_every_round_is_not_logged() -> None:
    stream = io.StringIO()
    LogLines("fan", stream).event(ProgressMeasured({}))
    assert stream.getvalue() == ""
