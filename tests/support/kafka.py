"""What the tests do to the real broker: make topics and put records into them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

REQUEST_SECONDS_MAX = 120
RECORD_BYTES_MAX = 64 * 1024 * 1024

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Topics:
    """Makes topics; called, it makes one with a unique name."""

    bootstrap: str

    def __call__(
        self,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        name: str | None = None,
        replication: int = 1,
        assignment: list[list[int]] | None = None,
    ) -> str:
        """`assignment` names the brokers of each partition."""
        chosen = name or f"topic-{uuid.uuid4().hex[:12]}"
        copies = {"replication_factor": replication} if assignment is None else {"replica_assignment": assignment}
        topic = NewTopic(chosen, partitions, config=dict(config or {}), **copies)
        admin = self._admin()
        for future in admin.create_topics([topic]).values():
            future.result(REQUEST_SECONDS_MAX)
        self._wait_for_leaders(chosen, partitions)
        return chosen

    def delete(self, name: str) -> None:
        admin = self._admin()
        for future in admin.delete_topics([name]).values():
            future.result(REQUEST_SECONDS_MAX)

    def recreate(self, name: str, partitions: int = 1, assignment: list[list[int]] | None = None) -> None:
        """Delete the topic and make it again, empty, under another id."""
        self.delete(name)
        deadline = time.monotonic() + REQUEST_SECONDS_MAX
        while self._exists(name):
            assert time.monotonic() < deadline, f"topic {name} was not deleted in time"
            time.sleep(0.05)
        self(partitions, name=name, assignment=assignment)

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions up to that count."""
        admin = self._admin()
        for future in admin.create_partitions([NewPartitions(name, partitions)]).values():
            future.result(REQUEST_SECONDS_MAX)
        self._wait_for_leaders(name, partitions)

    def cut(self, name: str, offset: int, partition: int = 0) -> None:
        """Drop the records below an offset, as retention does."""
        admin = self._admin()
        for future in admin.delete_records([TopicPartition(name, partition, offset)]).values():
            future.result(REQUEST_SECONDS_MAX)

    def _wait_for_leaders(self, name: str, partitions: int) -> None:
        """A busy broker names a topic before it takes its records, and a record that is sent again loses its place."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        requested = {TopicPartition(name, number): latest for number in range(partitions)}
        deadline = time.monotonic() + REQUEST_SECONDS_MAX
        while True:
            # A client keeps asking about the partitions that it knew first: a new one for each attempt.
            admin = self._admin()
            if not any(future.exception(REQUEST_SECONDS_MAX) for future in admin.list_offsets(requested).values()):
                return
            assert time.monotonic() < deadline, f"topic {name} has no leaders"
            time.sleep(0.02)

    def _exists(self, name: str) -> bool:
        admin = self._admin()
        [future] = admin.describe_topics(TopicCollection([name])).values()
        return future.exception(REQUEST_SECONDS_MAX) is None

    def _admin(self) -> AdminClient:
        # The caller keeps it in a name while it waits: a client that is collected cancels its requests.
        return AdminClient({"bootstrap.servers": self.bootstrap})


@dataclass(frozen=True, slots=True)
class Produce:
    """Puts records into a topic; called, it returns (partition, offset) of each, in the order given."""

    bootstrap: str

    def __call__(
        self,
        topic: str,
        values: Iterable[bytes | str | None],
        partition: int | None = None,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        transactional: bool = False,
        timestamp_ms: int | None = None,
        aborted: bool = False,
    ) -> list[tuple[int, int]]:
        settings: dict[str, str | int] = {
            "bootstrap.servers": self.bootstrap,
            # One request at a time keeps the order; an idempotent producer waits half a second for its id.
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 5,
            # Each record without a key to a partition of its own: never at random all of them to one.
            "sticky.partitioning.linger.ms": 0,
            "message.max.bytes": RECORD_BYTES_MAX,
        }
        if transactional:
            settings["transactional.id"] = f"test-{uuid.uuid4().hex}"
        producer = Producer(settings)
        if transactional:
            producer.init_transactions(REQUEST_SECONDS_MAX)
            producer.begin_transaction()
        delivered = _Delivered(producer)
        options: dict[str, Any] = {"key": key, "headers": list(headers or [])}
        if partition is not None:
            options["partition"] = partition
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        for value in values:
            delivered.send(topic, value, options)
        if transactional:
            places = delivered.places()
            (producer.abort_transaction if aborted else producer.commit_transaction)(REQUEST_SECONDS_MAX)
            _wait_for_markers(self.bootstrap, topic, places)
        return delivered.places()


def _wait_for_markers(bootstrap: str, topic: str, places: list[tuple[int, int]]) -> None:
    """The broker writes the marker of a transaction behind its commit: the next record must not come before it."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "markers"})
    deadline = time.monotonic() + REQUEST_SECONDS_MAX
    try:
        for partition, offset in dict(sorted(places)).items():
            while consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=120)[1] < offset + 2:
                assert time.monotonic() < deadline, "a transaction has no marker"
                time.sleep(0.01)
    finally:
        consumer.close()


class _Delivered:
    """Where each record of one call went."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._places: list[tuple[int, int] | None] = []
        self._errors: list[KafkaError] = []

    def send(self, topic: str, value: bytes | str | None, options: Mapping[str, Any]) -> None:
        index = len(self._places)
        self._places.append(None)

        def arrived(error: KafkaError | None, message: Message) -> None:
            partition, offset = message.partition(), message.offset()
            if error is not None:
                self._errors.append(error)
            elif partition is not None and offset is not None:
                self._places[index] = (partition, offset)

        try:
            self._producer.produce(topic, value, on_delivery=arrived, **options)
        except BufferError:
            self._producer.flush(REQUEST_SECONDS_MAX)
            self._producer.produce(topic, value, on_delivery=arrived, **options)
        self._producer.poll(0)

    def places(self) -> list[tuple[int, int]]:
        undelivered = self._producer.flush(REQUEST_SECONDS_MAX)
        assert not self._errors, self._errors[0]
        assert undelivered == 0, f"{undelivered} records were not delivered"
        result = [place for place in self._places if place is not None]
        assert sorted(result, key=itemgetter(0)) == sorted(result), "records did not keep their order"
        return result
