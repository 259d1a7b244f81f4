"""Types that a job file gains and loses: where a new one begins is said, never guessed."""

from __future__ import annotations

import pytest

from penstock.errors import UserError
from tests.export_story import Story, after
from tests.exports import ExportPipe, type_of
from tests.kafka import Produce, Topics


@pytest.fixture
def story(export: ExportPipe, topic: Topics, produce: Produce) -> Story:
    return Story(export, topic(), produce)


@pytest.mark.parametrize("unknown", ["drop", "quarantine"])
def test_a_type_that_starts_at_the_beginning_gets_what_was_unknown_before(story: Story, unknown: str) -> None:
    """A exports alone up to 5; B is named then, and gets its 1, 3 and 4 as well as what comes."""
    route = f"unknown: {unknown}"
    story.export.describe(story.topic, types=[type_of("A")], route=route)
    story.send("ABABB")
    story.run_to_end()
    assert story.export.offsets("A") == [0, 2]
    story.send("BA")
    story.export.describe(story.topic, types=[type_of("A"), type_of("B", start="beginning")], route=route)
    with story.export.opened(clock=story.clock):
        assert (story.position_of("A"), story.position_of("B"), story.global_position) == (5, 0, 0)
    for _ in range(2):
        story.run_to_end()
    assert story.export.offsets("A") == [0, 2, 6]
    assert story.export.offsets("B") == [1, 3, 4, 5]
    assert story.global_position == 7
    totals = story.totals
    assert (totals.read, totals.written, totals.backfilled) == (7, 7, 3)
    assert (totals.filtered, totals.quarantined) == ((3, 0) if unknown == "drop" else (0, 3))
    assert totals.conserved


def test_a_type_that_starts_at_the_beginning_keeps_its_own_rhythm_behind_it(story: Story) -> None:
    """What lies behind the backfill waits as its rotation says; the two are never mixed in one slice."""
    story.export.describe(story.topic, types=[type_of("A")], route="unknown: drop")
    story.send("ABAB")
    story.run_to_end()
    new = type_of("B", start="beginning", rotation=after(3))
    story.export.describe(story.topic, types=[type_of("A"), new], route="unknown: drop")
    with story.export.opened(clock=story.clock) as pipeline:
        story.read(pipeline, "BAB")
        assert story.export.offsets("B") == [1, 3]
        assert (story.global_position, story.position_of("A")) == (4, 7)
        story.read(pipeline, "B")
    assert story.export.offsets("B") == [1, 3, 4, 6, 7]
    assert story.global_position == 8


def test_a_type_that_starts_now_gets_only_what_comes(story: Story) -> None:
    story.export.describe(story.topic, types=[type_of("A")], route="unknown: drop")
    story.send("ABAB")
    story.run_to_end()
    story.export.describe(story.topic, types=[type_of("A"), type_of("B", start="now")], route="unknown: drop")
    story.send("BA")
    for _ in range(2):
        story.run_to_end()
    assert story.export.offsets("A") == [0, 2, 5]
    assert story.export.offsets("B") == [4]
    assert story.global_position == 6


def test_a_new_type_that_does_not_say_where_it_starts_stops_the_job_before_anything_is_read(story: Story) -> None:
    story.export.describe(story.topic, types=[type_of("A")], route="unknown: drop")
    story.send("AB")
    story.run_to_end()
    story.send("AB")
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")], route="unknown: drop")
    with pytest.raises(UserError) as refused:
        story.run_to_end()
    assert "B" in refused.value.primary and "start" in refused.value.hint
    assert story.global_position == 2
    assert story.written() == [0]


def test_a_job_with_new_types_may_say_where_they_start_before_its_first_run(story: Story) -> None:
    """`start` counts once the table has positions: a job file can be written once and be left as it is."""
    story.export.describe(story.topic, types=[type_of("A", start="now"), type_of("B", start="beginning")])
    story.send("ABAB")
    for _ in range(2):
        story.run_to_end()
    assert story.written() == [0, 1, 2, 3]


def test_a_type_that_is_removed_stops_the_job_before_anything_is_read(story: Story) -> None:
    """Its records would be unknown from one start to the next, and nobody would have said so."""
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")], route="unknown: drop")
    story.send("AB")
    story.run_to_end()
    story.send("AB")
    story.export.describe(story.topic, types=[type_of("A")], route="unknown: drop")
    with pytest.raises(UserError) as refused:
        story.run_to_end()
    assert "B" in refused.value.primary
    assert story.written() == [0, 1]
    assert story.global_position == 2


def test_a_type_that_is_not_wanted_any_more_is_kept_without_values(story: Story) -> None:
    """Its rows stay where they are; records that were of it are unknown now."""
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")], route="unknown: drop")
    story.send("AB")
    story.run_to_end()
    story.send("AB")
    story.export.describe(story.topic, types=[type_of("A"), type_of("B", values="[]")], route="unknown: drop")
    story.run_to_end()
    assert story.written() == [0, 1, 2]
    assert story.global_position == 4
