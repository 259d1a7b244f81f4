"""RULES P1, P2, P3 and P5: where reading begins and ends, which topic it is, and what the group shows."""

from __future__ import annotations

import pytest

from penstock.engine.ownership import TopicRecreatedError
from penstock.environment import new_batch_id
from penstock.errors import UserError
from penstock.lake.proposal import Proposal, StartPart
from penstock.plan import BeyondEndError
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe, ids, once_at

RESTART = "recreated: restart"


def test_p1_an_explicit_start_outside_the_log_is_a_user_error(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(3)))
    pipe.describe(name, kafka="start: {0: 4}")
    with pytest.raises(UserError):
        pipe.run_to_end()
    pipe.describe(name, kafka="start: {0: 3}")
    pipe.run_to_end()
    assert pipe.positions() == [3]


def test_p3_a_topic_recreated_between_write_and_commit_commits_nothing(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ids(range(5)))
    pipe.describe(name)

    def recreate() -> None:
        topic.recreate(name)
        produce(name, ids(range(100, 105)))

    with pytest.raises(TopicRecreatedError):
        pipe.run_to_end(once_at("staged", recreate), retries=5)
    assert pipe.column("id") == []
    pipe.describe(name, on=RESTART)
    pipe.run_to_end()
    assert pipe.column("id") == list(range(100, 105))


def test_p3_a_position_beyond_the_end_stops_the_job(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(5)))
    pipe.describe(name)
    with pipe.opened() as pipeline:
        [partition] = pipeline.log.partitions()
        pipeline.table.commit(Proposal("pipe", new_batch_id(), (StartPart(partition, 8, 0),)))
    with pytest.raises(BeyondEndError) as raised:
        pipe.run_to_end(retries=1)
    assert (raised.value.position, raised.value.end) == (8, 5)


def test_a_topic_added_to_the_list_starts_at_the_configured_start(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    first, second = topic(), topic()
    produce(first, ids(range(2)))
    produce(second, ids(range(10, 12)))
    pipe.describe(first, columns="topic: kafka.topic")
    pipe.run_to_end()
    pipe.describe(first, second, kafka="start: latest", columns="topic: kafka.topic")
    pipe.run_to_end()
    produce(second, ids(range(12, 13)))
    pipe.run_to_end()
    assert sorted(pipe.rows("topic", "id")) == sorted([(first, 0), (first, 1), (second, 12)])
