"""The table's positions as offsets of a consumer group, for lag tools."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.embedded.broker import Cluster
from penstock.errors import TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.mirror import mirror, mirrored
from penstock.logs.log import Partition
from tests.support.kafka import Produce, Topics

TWO_PARTITIONS = 2


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def log(bootstrap: str, topic: Topics, produce: Produce) -> Iterator[KafkaLog]:
    name = topic(TWO_PARTITIONS)
    for number in range(TWO_PARTITIONS):
        produce(name, ["a", "b", "c", "d", "e"], partition=number)
    opened = KafkaLog(KafkaLogSpec(bootstrap, topics=(name,)))
    yield opened
    opened.close()


def both(log: KafkaLog) -> tuple[Partition, Partition]:
    zero, one = log.partitions()
    return zero, one


def test_any_lag_tool_shows_the_positions(log: KafkaLog, group: str, bootstrap: str) -> None:
    zero, one = both(log)
    assert mirror(log, group, {zero: 3, one: 5}) == {}
    assert mirrored(log, group, [zero, one]) == {zero: 3, one: 5}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    committed = consumer.committed([TopicPartition(zero.topic, 0), TopicPartition(zero.topic, 1)], timeout=120)
    consumer.close()
    assert [item.offset for item in committed] == [3, 5]


def test_a_group_without_offsets_is_empty(log: KafkaLog, group: str) -> None:
    assert mirrored(log, group, both(log)) == {}


def test_the_group_never_moves_back(log: KafkaLog, group: str) -> None:
    zero, one = both(log)
    mirror(log, group, {zero: 4, one: 1})
    assert mirror(log, group, {zero: 2, one: 2}) == {zero: "the group is already at 4"}
    assert mirrored(log, group, [zero, one]) == {zero: 4, one: 2}


def test_an_unchanged_position_is_not_committed_again(
    log: KafkaLog, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero, _ = both(log)
    mirror(log, group, {zero: 4})
    monkeypatch.setattr(log.admin, "try_each", lambda start: pytest.fail("a request to commit"))
    assert mirror(log, group, {zero: 4}) == {}
    assert mirror(log, group, {}) == {}


def test_position_zero_is_shown_too(log: KafkaLog, group: str) -> None:
    zero, _ = both(log)
    assert mirror(log, group, {zero: 0}) == {}
    assert mirrored(log, group, [zero]) == {zero: 0}


def test_a_group_with_active_consumers_is_reported_and_not_written(log: KafkaLog, group: str, bootstrap: str) -> None:
    zero, one = both(log)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.subscribe([zero.topic])
        deadline = time.monotonic() + 60
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.2)
        refused = mirror(log, group, {zero: 3, one: 3})
        assert refused.keys() == {zero, one}
        assert all("another program consumes with this group" in reason for reason in refused.values())
    finally:
        consumer.close()
    assert mirrored(log, group, [zero, one]) == {}


def test_an_unreachable_broker_is_a_transient_error(group: str) -> None:
    away = KafkaLog(KafkaLogSpec("127.0.0.1:9", topics=("t",)), call_seconds_max=1.0)
    with pytest.raises(TransientError):
        mirror(away, group, {Partition("t", "id", 0): 1})


def test_the_first_mirror_waits_for_a_coordinator_that_is_just_starting(tmp_path: Path) -> None:
    with Cluster.start(tmp_path / "kafka") as own:
        log = KafkaLog(KafkaLogSpec(own.bootstrap, topics=(Topics(own.bootstrap)(name="t"),)))
        [zero] = log.partitions()
        assert mirror(log, "first-group-of-the-cluster", {zero: 0}) == {}
        own.kill()
        own.restart()
        assert mirrored_in_time(log, "first-group-of-the-cluster", zero) == {zero: 0}
        log.close()


def mirrored_in_time(log: KafkaLog, group: str, partition: Partition) -> dict[Partition, int]:
    deadline = time.monotonic() + 60
    while True:
        try:
            return mirrored(log, group, [partition])
        except TransientError:
            assert time.monotonic() < deadline
