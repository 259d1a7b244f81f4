"""A real cluster as a log: identity, partitions, bounds, start, and errors that one can act on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.embedded.broker import Cluster
from penstock.errors import TransientError, UserError
from penstock.job.spec import KafkaLogSpec, StartAt
from penstock.logs.kafka.admin import CALL_SECONDS_MAX
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.log import Bounds, Partition
from tests.support.kafka import Produce, Topics
from tests.support.waiting import wait_until

REQUEST_SECONDS_MAX = 120
T = TypeVar("T")
OpenLog = Callable[..., KafkaLog]


@pytest.fixture
def open_log(bootstrap: str) -> Iterator[OpenLog]:
    opened: list[KafkaLog] = []

    def make(
        *topics: str,
        pattern: str | None = None,
        start: StartAt | Mapping[str, Mapping[int, int]] = "earliest",
    ) -> KafkaLog:
        opened.append(KafkaLog(KafkaLogSpec(bootstrap, topics=topics, topic_pattern=pattern, start=start)))
        return opened[-1]

    yield make
    for log in opened:
        log.close()


def bounds_of(log: KafkaLog) -> list[tuple[int, int]]:
    bounds = log.bounds(log.partitions())
    return [(bounds[item].first, bounds[item].end) for item in sorted(bounds)]


def delete_records(bootstrap: str, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(REQUEST_SECONDS_MAX)


def test_the_admin_client_returns_the_cluster_id(open_log: OpenLog, cluster: Cluster) -> None:
    assert open_log("any").admin.cluster().cluster_id == cluster.cluster_id


def test_partitions_of_several_topics_come_sorted_and_with_the_id_of_their_topic(
    open_log: OpenLog, topic: Topics
) -> None:
    two, one = topic(2), topic(1)
    partitions = open_log(two, one).partitions()
    assert [(partition.topic, partition.number) for partition in partitions] == sorted([(two, 0), (two, 1), (one, 0)])
    ids = {item.topic: item.topic_id for item in partitions}
    assert len(set(ids.values())) == 2


def test_new_partitions_are_picked_up_while_running(open_log: OpenLog, topic: Topics, bootstrap: str) -> None:
    name = topic(1)
    log = open_log(name)
    assert [partition.number for partition in log.partitions()] == [0]
    # The client must outlive its future: one that is collected early fails it.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_partitions([NewPartitions(name, 3)]).values():
        future.result(REQUEST_SECONDS_MAX)
    wait_until(lambda: [item.number for item in log.partitions()] == [0, 1, 2])


def test_a_pattern_matches_whole_names_and_finds_topics_that_come_later(open_log: OpenLog, topic: Topics) -> None:
    stem = topic()
    matching = topic(name=f"{stem}-eu")
    topic(name=f"{stem}-eu-old")
    log = open_log(pattern=f"{stem}-(eu|us)")
    wait_until(lambda: [partition.topic for partition in log.partitions()] == [matching])
    later = topic(2, name=f"{stem}-us")
    wait_until(lambda: [item.topic for item in log.partitions()] == [matching, later, later])


def test_a_pattern_never_takes_kafkas_own_topics(
    open_log: OpenLog, topic: Topics, produce: Produce, bootstrap: str
) -> None:
    produce(topic(), ["x"], transactional=True)
    assert "__transaction_state" in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=120).topics
    names = {partition.topic for partition in open_log(pattern=".*").partitions()}
    assert names
    assert not [name for name in names if name.startswith("__")]


def test_a_topic_pattern_without_matches_is_not_an_error(open_log: OpenLog) -> None:
    assert open_log(pattern="nothing-is-called-so").partitions() == ()


def test_a_wrong_topic_name_is_reported_with_the_closest_topic(open_log: OpenLog, topic: Topics) -> None:
    name = topic()
    open_log(name).partitions()
    with pytest.raises(UserError) as raised:
        open_log(name[:-1]).partitions()
    assert name[:-1] in raised.value.primary
    assert raised.value.hint == f"did you mean {name}?"


def test_a_recreated_topic_has_another_id(open_log: OpenLog, topic: Topics) -> None:
    name = topic()
    log = open_log(name)
    log.partitions()
    before = log.topic_ids([name])
    topic.delete(name)
    wait_until(lambda: log.topic_ids([name]) == {})
    topic(name=name)
    wait_until(lambda: log.topic_ids([name]) != {})
    after = log.topic_ids([name])
    assert before.keys() == after.keys() == {name}
    assert before != after
    assert log.partitions() == (Partition(name, after[name], 0),)


def test_a_missing_topic_is_absent_from_the_ids(open_log: OpenLog, topic: Topics) -> None:
    name = topic()
    log = open_log(name)
    wait_until(lambda: log.topic_ids([name, "not-there"]).keys() == {name})


def test_bounds_are_read_for_all_partitions_together(open_log: OpenLog, topic: Topics, produce: Produce) -> None:
    name = topic(3)
    produce(name, ["a", "b"], partition=0)
    produce(name, ["c"], partition=2)
    assert bounds_of(open_log(name)) == [(0, 2), (0, 0), (0, 1)]
    assert open_log(name).bounds([]) == {}


def test_the_end_stays_before_an_open_transaction(
    open_log: OpenLog, topic: Topics, produce: Produce, bootstrap: str
) -> None:
    name = topic()
    log = open_log(name)
    produce(name, ["a", "b"])
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(REQUEST_SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(name, "open")
    producer.flush(REQUEST_SECONDS_MAX)
    produce(name, ["behind"])
    assert bounds_of(log) == [(0, 2)]
    producer.abort_transaction(REQUEST_SECONDS_MAX)
    # The records a, b, open, behind and the marker of the abort.
    wait_until(lambda: bounds_of(log) == [(0, 5)])


def test_deleted_records_move_the_beginning(open_log: OpenLog, topic: Topics, produce: Produce, bootstrap: str) -> None:
    name = topic()
    produce(name, ["a", "b", "c", "d"])
    delete_records(bootstrap, name, 3)
    assert bounds_of(open_log(name)) == [(3, 4)]


def test_bounds_of_a_deleted_topic_ask_for_a_new_plan(open_log: OpenLog, topic: Topics) -> None:
    name = topic()
    log = open_log(name)
    partitions = log.partitions()
    topic.delete(name)
    wait_until(lambda: log.topic_ids([name]) == {})
    with pytest.raises(TransientError) as raised:
        log.bounds(partitions)
    assert f"{name}/0" in raised.value.primary


@pytest.mark.parametrize(("policy", "expected"), [("delete", False), ("compact", True), ("compact,delete", True)])
def test_a_compacted_topic_is_recognised(open_log: OpenLog, topic: Topics, policy: str, expected: bool) -> None:
    name = topic(config={"cleanup.policy": policy})
    log = open_log(name)
    log.partitions()
    assert log.compacted(name) is expected


def test_start_is_resolved_against_what_the_log_holds(
    open_log: OpenLog, topic: Topics, produce: Produce, bootstrap: str
) -> None:
    name = topic(2)
    produce(name, ["a", "b", "c", "d"], partition=0)
    produce(name, ["e"], partition=1)
    delete_records(bootstrap, name, 2)
    starts = {
        "earliest": "earliest",
        "latest": "latest",
        "explicit": {name: {0: 3}},
        "before": {name: {0: 1}},
        "beyond": {name: {0: 5}},
    }
    logs = {label: open_log(name, start=start) for label, start in starts.items()}
    partitions = logs["earliest"].partitions()
    bounds = logs["earliest"].bounds(partitions)
    assert [bounds[partition] for partition in partitions] == [Bounds(2, 4), Bounds(0, 1)]
    assert list(logs["earliest"].start_offsets(partitions, bounds).values()) == [2, 0]
    assert list(logs["latest"].start_offsets(partitions, bounds).values()) == [4, 1]
    assert list(logs["explicit"].start_offsets(partitions, bounds).values()) == [3, 0]
    for label in ("before", "beyond"):
        with pytest.raises(UserError):
            logs[label].start_offsets(partitions, bounds)


def test_an_unreachable_broker_is_reported_within_the_bound(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = KafkaLog(KafkaLogSpec("127.0.0.1:9", topics=("t",)), call_seconds_max=2.0)
    began_at = time.monotonic()
    with caplog.at_level(logging.DEBUG, "penstock.kafka"), pytest.raises(TransientError) as raised:
        log.partitions()
    assert time.monotonic() - began_at < CALL_SECONDS_MAX, "not the bound of the others"
    assert "127.0.0.1:9" in raised.value.primary
    assert "Connection refused" in raised.value.primary
    assert capfd.readouterr().err == ""
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1


def test_a_broker_that_comes_back_is_used_again(tmp_path: Path) -> None:
    with Cluster.start(tmp_path / "kafka") as own:
        log = KafkaLog(KafkaLogSpec(own.bootstrap, topics=("t",)), call_seconds_max=5.0)
        Topics(own.bootstrap)(name="t")
        before = log.partitions()
        bounds = log.bounds(before)
        first_client = log.admin._client
        own.kill()
        with pytest.raises(TransientError):
            log.partitions()
        own.restart()
        # Its leaders have a new epoch, which the client has not learned yet.
        wait_until(lambda: answered(lambda: log.bounds(before)) == bounds, 60)
        assert log.partitions() == before
        assert log.admin._client is not first_client, "one that loses its broker twice would keep two threads busy"
        log.close()


def answered(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except TransientError:
        return None
