"""A batch read by Spark holds exactly the records of its slices, and a failure says what to do next."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from penstock.errors import TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.spark_source import read_batch, source_error
from penstock.logs.log import Partition, Slice, SliceShrankError
from tests.kafka import Produce, Topics

SECONDS_MAX = 120


@pytest.fixture
def spec(bootstrap: str) -> KafkaLogSpec:
    return KafkaLogSpec(bootstrap, topics=("given-by-the-slices",), group="source-test")


def slice_of(topic: str, number: int, start: int, end: int, read_from: int | None = None) -> Slice:
    return Slice(Partition(topic, "any-id", number), start, end, start if read_from is None else read_from)


def offsets(spark: SparkSession, spec: KafkaLogSpec, *slices: Slice) -> list[tuple[int, int]]:
    rows = read_batch(spark, spec, slices, tasks_min=1, headers=False).select("partition", "offset").collect()
    return sorted((row["partition"], row["offset"]) for row in rows)


def test_slices_that_are_split_over_tasks_give_every_offset_once(
    spark: SparkSession, spec: KafkaLogSpec, topic: Topics, produce: Produce
) -> None:
    name = topic(2)
    produce(name, (f"p0-{number}" for number in range(1000)), partition=0)
    produce(name, (f"p1-{number}" for number in range(400)), partition=1)
    frame = read_batch(
        spark, spec, [slice_of(name, 0, 100, 900), slice_of(name, 1, 0, 400)], tasks_min=6, headers=False
    )
    assert frame.columns == ["topic", "partition", "offset", "timestamp", "key", "value"]
    assert frame.rdd.getNumPartitions() >= 6
    rows = frame.select("topic", "partition", "offset", "value").collect()
    expected = [(name, 0, n, f"p0-{n}".encode()) for n in range(100, 900)]
    expected += [(name, 1, n, f"p1-{n}".encode()) for n in range(400)]
    assert sorted((row[0], row[1], row[2], bytes(row[3])) for row in rows) == expected


def test_key_headers_time_and_tombstone_arrive_as_they_were_sent(
    spark: SparkSession, spec: KafkaLogSpec, topic: Topics, produce: Produce
) -> None:
    # The record is years old: retention by time would take it before it is read.
    name = topic(config={"retention.ms": "-1"})
    produce(name, [None], key="k", headers=[("kind", b"x"), ("none", None)], timestamp_ms=1_700_000_000_123)
    frame = read_batch(spark, spec, [slice_of(name, 0, 0, 1)], tasks_min=1, headers=True)
    [row] = frame.selectExpr("key", "value", "headers", "unix_millis(timestamp) as ms").collect()
    assert (bytes(row["key"]), row["value"], row["ms"]) == (b"k", None, 1_700_000_000_123)
    sent = [(each["key"], each["value"] and bytes(each["value"])) for each in row["headers"]]
    assert sent == [("kind", b"x"), ("none", None)]


def test_a_slice_that_is_all_gap_is_left_out(
    spark: SparkSession, spec: KafkaLogSpec, topic: Topics, produce: Produce
) -> None:
    name = topic(2)
    produce(name, ["a", "b"], partition=1)
    gap = slice_of(name, 0, 0, 5, read_from=5)
    assert offsets(spark, spec, gap, slice_of(name, 1, 0, 2)) == [(1, 0), (1, 1)]
    empty = read_batch(spark, spec, [gap], tasks_min=2, headers=True)
    assert empty.columns == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert empty.collect() == []


def test_aborted_records_and_markers_are_holes_and_every_range_ends(
    spark: SparkSession, spec: KafkaLogSpec, topic: Topics, bootstrap: str
) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS_MAX)
    # Offsets: 0 1 2 and marker 3; aborted 4 5 and marker 6; 7 and marker 8.
    for count, finish in (
        (3, producer.commit_transaction),
        (2, producer.abort_transaction),
        (1, producer.commit_transaction),
    ):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(name, "x", partition=0)
        producer.flush(SECONDS_MAX)
        finish(SECONDS_MAX)
    log = KafkaLog(KafkaLogSpec(bootstrap, topics=(name,)))
    wait_until(lambda: [each.end for each in log.bounds(log.partitions()).values()] == [9])
    log.close()
    for start, end, expected in ((0, 9, [0, 1, 2, 7]), (0, 4, [0, 1, 2]), (3, 7, []), (4, 5, []), (6, 8, [7])):
        assert [offset for _, offset in offsets(spark, spec, slice_of(name, 0, start, end))] == expected


def test_a_record_larger_than_a_fetch_is_read_whole(
    spark: SparkSession, spec: KafkaLogSpec, topic: Topics, produce: Produce
) -> None:
    name = topic(config={"max.message.bytes": "20000000"})
    produce(name, [b"x" * 10_000_000, b"small"])
    frame = read_batch(spark, spec, [slice_of(name, 0, 0, 2)], tasks_min=1, headers=False)
    assert [row[0] for row in frame.selectExpr("length(value)").collect()] == [10_000_000, 5]


def test_offsets_that_retention_took_fail_quickly_and_ask_for_a_new_plan(
    spark: SparkSession, spec: KafkaLogSpec, topic: Topics, produce: Produce, bootstrap: str
) -> None:
    name = topic()
    produce(name, ["x"] * 10)
    planned = read_batch(spark, spec, [slice_of(name, 0, 0, 10)], tasks_min=1, headers=False)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(name, 0, 4)]).values():
        future.result(SECONDS_MAX)
    began_at = time.monotonic()
    with pytest.raises(Exception, match="Kafka") as raised:
        planned.collect()
    assert time.monotonic() - began_at < SECONDS_MAX
    error = source_error(raised.value)
    assert isinstance(error, SliceShrankError)
    assert "KafkaIllegalStateException" in error.detail


def test_a_topic_that_went_away_is_worth_another_plan(
    spark: SparkSession, spec: KafkaLogSpec, topic: Topics, produce: Produce, bootstrap: str
) -> None:
    name = topic()
    produce(name, ["x"])
    log = KafkaLog(KafkaLogSpec(bootstrap, topics=(name,)))
    topic.delete(name)
    wait_until(lambda: log.topic_ids([name]) == {})
    log.close()
    with pytest.raises(Exception, match="kafka") as raised:
        offsets(spark, spec, slice_of(name, 0, 0, 1))
    error = source_error(raised.value)
    assert type(error) is TransientError


def test_a_recreated_topic_is_read_without_a_word_so_its_id_must_be_compared(
    spark: SparkSession, spec: KafkaLogSpec, topic: Topics, produce: Produce, bootstrap: str
) -> None:
    name = topic()
    produce(name, ["old"])
    log = KafkaLog(KafkaLogSpec(bootstrap, topics=(name,)))
    before = log.topic_ids([name])
    planned = read_batch(spark, spec, [slice_of(name, 0, 0, 1)], tasks_min=1, headers=False)
    topic.delete(name)
    wait_until(lambda: log.topic_ids([name]) == {})
    topic(name=name)
    wait_until(lambda: log.topic_ids([name]) != {})
    produce(name, ["new"])
    assert [bytes(row["value"]) for row in planned.collect()] == [b"new"]
    assert log.topic_ids([name]) != before
    log.close()


def test_a_failure_of_the_users_own_expression_is_not_blamed_on_kafka(
    spark: SparkSession, spec: KafkaLogSpec, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ["x"])
    frame = read_batch(spark, spec, [slice_of(name, 0, 0, 1)], tasks_min=1, headers=False)
    with pytest.raises(Exception, match="boom") as raised:
        frame.selectExpr("raise_error('boom')").collect()
    assert source_error(raised.value) is None


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
