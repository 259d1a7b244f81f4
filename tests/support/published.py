"""Reads a published topic."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.publish.output import OutputRecord

SECONDS_MAX = 60.0


def some(names: Iterable[str], key: str = "k") -> list[OutputRecord]:
    return [OutputRecord(key.encode(), name.encode()) for name in names]


def read_topic(bootstrap: str, topic: str, committed: bool) -> list[OutputRecord]:
    """Everything up to the present ends of the topic's partitions; transactions that are under way are waited for."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    numbers = admin.list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions
    request = {TopicPartition(topic, number): latest for number in numbers}
    offsets = admin.list_offsets(request, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    ends = {place.partition: future.result(SECONDS_MAX).offset for place, future in offsets.items()}
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "readers",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }
    records: list[OutputRecord] = []
    deadline = time.monotonic() + SECONDS_MAX
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in ends])
        while ends:
            assert time.monotonic() < deadline, "a transaction stays open"
            for message in consumer.consume(10_000, 0.2):
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    records.append(OutputRecord(_bytes(message.key()), _bytes(message.value())))
                elif error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) >= ends.get(partition, 0):
                    ends.pop(partition, None)
    return records


def _bytes(content: str | bytes | None) -> bytes:
    assert isinstance(content, bytes)
    return content
