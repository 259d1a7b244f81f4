"""RULES P1, P2, P3 and P5: where reading begins and ends, which topic it is, and what the group shows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.engine.ownership import TopicRecreatedError
from penstock.errors import UserError
from penstock.lake.state import Totals
from tests.support.kafka import Produce, Topics
from tests.support.pipes import CrashError, Pipe, crash_at, ids, once_at
from tests.support.waiting import wait_until

SECONDS_MAX = 120
RESTART = "recreated: restart"


class Transactions:
    """A transactional producer whose transactions a test opens and ends."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
        self._producer.init_transactions(SECONDS_MAX)

    def send(self, numbers: range) -> None:
        """Open a transaction and put records into it."""
        self._producer.begin_transaction()
        for record in ids(numbers):
            self._producer.produce(self._topic, record, partition=0)
        assert self._producer.flush(SECONDS_MAX) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(SECONDS_MAX)

    def abort(self) -> None:
        self._producer.abort_transaction(SECONDS_MAX)


def end_of(pipe: Pipe) -> int:
    """The end of a topic's only partition that a reader of committed records sees."""
    with pipe.opened() as pipeline:
        [end] = pipeline.present_ends().values()
    return end


# P1: where a partition begins is decided once


def test_p1_a_crash_before_the_first_read_does_not_move_latest(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(3)))
    pipe.describe(name, kafka="start: latest")
    with pytest.raises(CrashError):
        pipe.run_to_end(crash_at("started"))
    produce(name, ids(range(3, 6)))
    pipe.run_to_end()
    assert pipe.column("id") == [3, 4, 5]


def test_p1_a_partition_added_while_the_job_runs_starts_at_its_beginning(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ids(range(3)))
    pipe.describe(name, kafka="start: latest")
    with pipe.opened() as pipeline:
        assert pipeline.round(flush_now=True).done
        topic.grow(name, 2)
        produce(name, ids(range(10, 13)), partition=1)
        wait_until(lambda: len(pipeline.log.partitions()) == 2)
        pipeline.round(flush_now=True)
    assert pipe.rows("partition", "id") == [(1, 10), (1, 11), (1, 12)]


# P2: ends are last stable offsets, holes and gaps are accounted for


def test_p2_records_of_an_open_transaction_wait_for_its_commit(
    pipe: Pipe, topic: Topics, produce: Produce, bootstrap: str
) -> None:
    name = topic()
    pipe.describe(name, kafka="transactional: true")
    produce(name, ids(range(2)))
    transactions = Transactions(bootstrap, name)
    transactions.send(range(2, 5))
    produce(name, ids(range(5, 6)))
    pipe.run_to_end()
    assert pipe.column("id") == [0, 1]
    transactions.commit()
    wait_until(lambda: end_of(pipe) == 7)
    pipe.run_to_end()
    assert pipe.column("id") == [0, 1, 2, 3, 4, 5]
    assert pipe.totals() == Totals(read=6, written=6, holes=1)
    assert pipe.verified()


def test_p2_aborted_records_never_appear_and_are_counted_as_holes(pipe: Pipe, topic: Topics, bootstrap: str) -> None:
    name = topic()
    pipe.describe(name, kafka="transactional: true")
    transactions = Transactions(bootstrap, name)
    # Offsets 0 1 2 and a marker, aborted 4 5 and a marker, 7 and a marker.
    transactions.send(range(3))
    transactions.commit()
    transactions.send(range(100, 102))
    transactions.abort()
    transactions.send(range(3, 4))
    transactions.commit()
    wait_until(lambda: end_of(pipe) == 9)
    pipe.run_to_end()
    assert pipe.rows("offset", "id") == [(0, 0), (1, 1), (2, 2), (7, 3)]
    assert pipe.totals() == Totals(read=4, written=4, holes=5)
    assert pipe.verified()


def test_p2_holes_in_a_topic_that_should_have_none_stop_the_job(pipe: Pipe, topic: Topics, bootstrap: str) -> None:
    name = topic()
    pipe.describe(name)
    transactions = Transactions(bootstrap, name)
    transactions.send(range(3))
    transactions.commit()
    wait_until(lambda: end_of(pipe) == 4)
    with pytest.raises(UserError) as raised:
        pipe.run_to_end(retries=3)
    assert "transactional" in raised.value.hint
    assert pipe.positions() == [0]
    pipe.describe(name, kafka="transactional: true")
    pipe.run_to_end()
    assert pipe.column("id") == [0, 1, 2]


def test_p2_a_slice_that_shrank_under_retention_is_planned_again(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(10)))
    pipe.describe(name, on="gap: record")
    events = pipe.run_to_end(once_at("planned", lambda: topic.cut(name, 4)), retries=2)
    assert len(events.named("batch planned")) == 2
    assert pipe.column("id") == list(range(4, 10))
    assert pipe.totals() == Totals(read=6, written=6, gap=4)
    assert pipe.verified()


def test_p2_a_compacted_topic_is_read_with_its_holes(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic(
        config={
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.001",
            "min.compaction.lag.ms": "0",
        }
    )
    for key, numbers in (("a", range(3)), ("b", range(3, 5)), ("a", range(5, 6))):
        produce(name, ids(numbers), key=key)

    def compacted() -> bool:
        # Only a closed segment is compacted, and a new record closes one.
        produce(name, ids(range(99, 100)), key="last")
        return len(offsets_of(pipe.bootstrap, name)) < end_of(pipe) - 3

    pipe.describe(name)
    wait_until(compacted)
    end = end_of(pipe)
    pipe.run_to_end()
    read = pipe.column("offset")
    assert [item for item in read if item < 6] == [4, 5]
    assert pipe.positions() == [end]
    assert pipe.totals() == Totals(read=len(read), written=len(read), holes=end - len(read))
    assert pipe.verified()


def offsets_of(bootstrap: str, topic: str) -> list[int]:
    """The offsets that a plain consumer finds."""
    with consumer_of(bootstrap, uuid.uuid4().hex) as consumer:
        end = consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS_MAX)[1]
        consumer.assign([TopicPartition(topic, 0, 0)])
        result: list[int] = []
        while not result or result[-1] < end - 1:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None and message.error() is None
            offset = message.offset()
            assert offset is not None
            result.append(offset)
    return result


@contextmanager
def consumer_of(bootstrap: str, group: str) -> Iterator[Consumer]:
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        yield consumer
    finally:
        consumer.close()


# P3: a topic is its id, not its name


def test_p3_a_topic_recreated_between_runs_stops_the_job_or_is_read_from_its_beginning(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ids(range(5)))
    pipe.describe(name, kafka="start: latest")
    pipe.run_to_end()
    produce(name, ids(range(5, 7)))
    pipe.run_to_end()
    topic.recreate(name)
    produce(name, ids(range(100, 103)))
    version = pipe.version()
    with pytest.raises(TopicRecreatedError):
        pipe.run_to_end(retries=3)
    assert pipe.version() == version
    pipe.describe(name, kafka="start: latest", on=RESTART)
    pipe.run_to_end()
    assert sorted(pipe.column("id")) == [5, 6, 100, 101, 102]
    assert pipe.verified()


def test_p3_a_topic_recreated_between_plan_and_read_is_noticed(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(5)))
    pipe.describe(name, on=RESTART)

    def recreate() -> None:
        topic.recreate(name)
        produce(name, ids(range(100, 105)))

    with pipe.opened(once_at("planned", recreate)) as pipeline:
        with pytest.raises(Exception, match="recreated"):
            pipeline.round(flush_now=True)
        pipeline.round(flush_now=True)
    assert pipe.column("id") == list(range(100, 105))
    with pipe.opened() as pipeline:
        assert pipeline.round(flush_now=True).done


# P5: the group shows the table's position


def test_p5_the_group_shows_the_tables_position_and_nothing_lower(
    pipe: Pipe, topic: Topics, produce: Produce, bootstrap: str
) -> None:
    name = topic(2)
    group = f"group-{uuid.uuid4().hex[:8]}"
    produce(name, ids(range(4)), partition=0)
    produce(name, ids(range(6)), partition=1)
    pipe.describe(name, kafka=f"group: {group}")
    pipe.run_to_end()
    partitions = [TopicPartition(name, number) for number in range(2)]
    with consumer_of(bootstrap, group) as consumer:
        assert [item.offset for item in consumer.committed(partitions, SECONDS_MAX)] == pipe.positions() == [4, 6]
        consumer.commit(offsets=[TopicPartition(name, 0, 100)], asynchronous=False)
        produce(name, ids(range(2)), partition=0)
        produce(name, ids(range(2)), partition=1)
        events = pipe.run_to_end()
        assert [event["partition"] for event in events.named("mirror refused")] == [f"{name}/0"]
        assert [item.offset for item in consumer.committed(partitions, SECONDS_MAX)] == [100, 8]
    assert pipe.positions() == [6, 8]


def test_p5_a_group_in_use_does_not_stop_the_job(pipe: Pipe, topic: Topics, produce: Produce, bootstrap: str) -> None:
    name = topic()
    group = f"group-{uuid.uuid4().hex[:8]}"
    produce(name, ids(range(4)))
    pipe.describe(name, kafka=f"group: {group}")
    with consumer_of(bootstrap, group) as consumer:
        consumer.subscribe([name])
        assert consumer.poll(SECONDS_MAX) is not None
        events = pipe.run_to_end()
    assert events.named("mirror refused") or events.named("mirror failed")
    assert pipe.positions() == [4]
    assert pipe.column("id") == list(range(4))


# several topics, and topics that come later


def test_a_topic_created_while_a_pattern_job_runs_is_read_from_its_beginning(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    prefix = f"shop-{uuid.uuid4().hex[:8]}"
    first = topic(name=f"{prefix}.a")
    topic(name=f"other-{prefix}.a")
    produce(first, ids(range(2)))
    pipe.describe(pattern=rf"{prefix}\..*", kafka="start: latest", columns="topic: kafka.topic")
    with pipe.opened() as pipeline:
        assert pipeline.round(flush_now=True).done
        second = topic(name=f"{prefix}.b")
        produce(second, ids(range(10, 12)))
        produce(first, ids(range(2, 3)))
        wait_until(lambda: len(pipeline.log.partitions()) == 2)
        pipeline.round(flush_now=True)
    assert sorted(pipe.rows("topic", "id")) == [(first, 2), (second, 10), (second, 11)]
