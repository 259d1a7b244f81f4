"""The routes of a job change while records of its types wait: each is written once, where it was counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from penstock.verify import verify
from tests.export_story import Story
from tests.exports import ExportPipe, type_of
from tests.kafka import Produce, Topics

NEVER = "{every: 365d}"


@pytest.fixture
def story(export: ExportPipe, topic: Topics, produce: Produce) -> Story:
    return Story(export, topic(), produce)


class Schedule(NamedTuple):
    """The records before and after the change, the values of both types, and where each offset belongs."""

    before: str
    old: tuple[str, str]
    after: str
    new: tuple[str, str]
    rows: Mapping[str, list[int]]
    quarantined: list[int]


SCHEDULES = {
    # C was unknown when B left its records: found among them, they would be one too many.
    "a value is added": Schedule("ABCB", ("[A]", "[B]"), "CB", ("[A]", "[B, C]"), {"A": [0], "B": [1, 3, 4, 5]}, [2]),
    # The records that B left go to A by now: looked for in B, they would not be found.
    "a value moves": Schedule("ABCB", ("[A]", "[B, C]"), "CB", ("[A, C]", "[B]"), {"A": [0, 4], "B": [1, 2, 3, 5]}, []),
    # As many A wait in B as there are B, which are written: by count alone nobody could tell them apart.
    "the counts match": Schedule(
        "BABAB", ("[B]", "[A]"), "AB", ("[A]", "[B]"), {"A": [0, 2, 4, 5], "B": [1, 3, 6]}, []
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=list(SCHEDULES))
def test_what_waits_when_values_change_is_written_once_and_where_it_was_counted(
    story: Story, schedule: Schedule
) -> None:
    def describe(values: tuple[str, str]) -> None:
        types = [type_of("A", values=values[0]), type_of("B", values=values[1], rotation=NEVER)]
        story.export.describe(story.topic, types=types)

    describe(schedule.old)
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, schedule.before)
    describe(schedule.new)
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, schedule.after)
    story.run_to_end()
    assert {name: story.export.offsets(name) for name in "AB"} == schedule.rows
    if schedule.quarantined:
        assert [offset for (offset,) in story.export.quarantined("offset")] == schedule.quarantined
    assert (story.totals.deferred, story.totals.vanished, story.totals.conserved) == (0, 0, True)
    assert verify(story.export.job).ok
