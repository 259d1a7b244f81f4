"""Types that a job file gains and loses: a new one begins at the position of the job."""

from __future__ import annotations

import pytest

from penstock.engine.replay import replay
from penstock.errors import UserError
from tests.support.export_story import Story
from tests.support.exports import ExportPipe, type_of
from tests.support.kafka import Produce, Topics


@pytest.fixture
def story(export: ExportPipe, topic: Topics, produce: Produce) -> Story:
    return Story(export, topic(), produce)


def test_a_type_that_is_added_later_gets_what_comes_and_by_replay_what_was_unknown_before(story: Story) -> None:
    """A exports alone up to 5; B is named then, and its 1, 3 and 4 are in quarantine."""
    story.export.describe(story.topic, types=[type_of("A")], route="unknown: quarantine")
    story.send("ABABB")
    story.run_to_end()
    assert story.export.offsets("A") == [0, 2]
    story.send("BA")
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")], route="unknown: quarantine")
    story.run_to_end()
    assert (story.export.offsets("A"), story.export.offsets("B")) == ([0, 2, 6], [5])
    assert story.global_position == 7
    assert replay(story.export.job, spark=story.export.spark).replayed == 3
    assert story.export.offsets("B") == [1, 3, 4, 5]
    assert story.export.quarantined() == []
    assert story.totals.conserved


def test_a_type_that_is_added_later_gets_nothing_that_was_dropped_before(story: Story) -> None:
    story.export.describe(story.topic, types=[type_of("A")], route="unknown: drop")
    story.send("ABAB")
    story.run_to_end()
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")], route="unknown: drop")
    story.send("BA")
    for _ in range(2):
        story.run_to_end()
    assert story.export.offsets("A") == [0, 2, 5]
    assert story.export.offsets("B") == [4]
    assert story.global_position == 6


def test_a_type_that_is_removed_stops_the_job_before_anything_is_read(story: Story) -> None:
    """Its records would be unknown from one start to the next, without any report."""
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


def test_a_removed_type_is_kept_without_values(story: Story) -> None:
    """Its rows stay where they are; records that were of it are unknown now."""
    story.export.describe(story.topic, types=[type_of("A"), type_of("B")], route="unknown: drop")
    story.send("AB")
    story.run_to_end()
    story.send("AB")
    story.export.describe(story.topic, types=[type_of("A"), type_of("B", values="[]")], route="unknown: drop")
    story.run_to_end()
    assert story.written() == [0, 1, 2]
    assert story.global_position == 4
