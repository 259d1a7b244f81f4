"""The routes of a job change while records of its types wait."""

from __future__ import annotations

import pytest

from penstock.errors import UserError
from tests.support.export_story import Story
from tests.support.exports import ExportPipe, type_of
from tests.support.kafka import Produce, Topics

NEVER = "{every: 365d}"


@pytest.fixture
def story(export: ExportPipe, topic: Topics, produce: Produce) -> Story:
    return Story(export, topic(), produce)


@pytest.mark.parametrize(
    ("old", "new"),
    [(("[A]", "[B]"), ("[A]", "[B, C]")), (("[A]", "[B, C]"), ("[A, C]", "[B]")), (("[B]", "[A]"), ("[A]", "[B]"))],
    ids=["a value is added", "a value moves", "two types swap values"],
)
def test_routes_change_only_once_no_record_waits_for_a_type(
    story: Story, old: tuple[str, str], new: tuple[str, str]
) -> None:
    """Deferred records of a type can only be found by the routes under which they were counted."""

    def describe(values: tuple[str, str]) -> None:
        types = [type_of("A", values=values[0]), type_of("B", values=values[1], rotation=NEVER)]
        story.export.describe(story.topic, types=types)

    describe(old)
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "ABAB")
    describe(new)
    with pytest.raises(UserError, match="while records wait for a type"):
        story.run_to_end()
    describe(old)
    story.run_to_end()
    assert story.written() == [0, 1, 2, 3]
    describe(new)
    story.send("AB")
    story.run_to_end()
    assert story.written() == list(range(6))
    assert (story.totals.deferred, story.totals.vanished, story.totals.conserved) == (0, 0, True)
