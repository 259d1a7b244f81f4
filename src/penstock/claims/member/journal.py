"""The coordination topic in Kafka: read a group's records in order, append to them, store its snapshots."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from penstock.claims.member.topics import SNAPSHOT_BYTES_MAX, CoordinationTopic, GrownTopicError
from penstock.claims.protocol.codec import ForeignError, MalformedError, decode, encode
from penstock.claims.protocol.group_view import coordination_partition
from penstock.claims.protocol.records import Record
from penstock.claims.protocol.snapshots import Snapshot, encode_snapshot, snapshots_of
from penstock.errors import PenstockError, TransientError, UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.admin import open_client
from penstock.logs.kafka.faults import OUT_OF_RANGE, TOPIC_DENIED, error_of, fault_of
from penstock.logs.kafka.settings import librdkafka_settings

CALL_SECONDS_MAX = 15.0
READ_AT_ONCE_MAX = 1000
SNAPSHOTS_READ = 20
"""Newest snapshots, of any group, that are looked at first; then ten times as many, and so on."""
PLACED_KEYS = 20
"""How many of the newest snapshots of a partition are checked for groups that belong to another partition."""
FETCH_INTERVALS = 1 / 10
"""How long the broker collects records for one answer at rest, as a part of a heartbeat interval."""
FETCH_SECONDS_MIN, FETCH_SECONDS_MAX = 0.02, 1.0
FETCH_BYTES_MIN = 1024
"""It answers earlier with so much: when a large group changes, its members are not slowed down."""
_VALUES_POLL_SECONDS = 0.05
_CLOSE_SECONDS_MAX = 1.0


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One offset of the log. `record` is None where it holds no record of the group; `fault` is why, if unexpected."""

    offset: int
    appended_at: float
    epoch: int | None
    record: Record | None
    fault: str = ""


class Journal:
    """The coordination partition of one group. Read by one thread; any thread may append."""

    def __init__(
        self,
        spec: KafkaLogSpec,
        topic: CoordinationTopic,
        group: str,
        heartbeat_seconds: float = 10.0,
        delivery_seconds_max: float | None = None,
        appends: bool = True,
    ) -> None:
        """A record fails unless it is delivered within half a heartbeat interval, or within the given time.

        Without `appends` the producer is opened for the first record: to open it takes the permission to write.
        """
        self.topic = topic
        self.group = group
        self.place = coordination_partition(group, topic.partitions)
        self._key = group.encode()
        self._bootstrap = spec.bootstrap
        self._fault: PenstockError | None = None
        self._settings: dict[str, Any] = {
            **librdkafka_settings(spec),
            "reconnect.backoff.ms": 100,
            "reconnect.backoff.max.ms": 1000,
        }
        self._rest_seconds = min(max(heartbeat_seconds * FETCH_INTERVALS, FETCH_SECONDS_MIN), FETCH_SECONDS_MAX)
        self._delivery_ms = int((delivery_seconds_max or max(1.0, heartbeat_seconds / 2)) * 1000)
        self._sought = 0
        self.hurries = True
        """Whether its consumer gets each record at once, or costs the broker little."""
        self._consumer = self._new_consumer()
        self._producer = self._new_producer() if appends else None

    def _new_producer(self) -> Producer:
        settings = {
            **self._settings,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "message.max.bytes": SNAPSHOT_BYTES_MAX,
            "delivery.timeout.ms": self._delivery_ms,
            "request.timeout.ms": self._delivery_ms,
            # Automatic topic creation would use the wrong settings.
            "allow.auto.create.topics": False,
        }
        return open_client(Producer, settings)

    def _new_consumer(self) -> Consumer:
        wait_seconds, bytes_min = (FETCH_SECONDS_MIN, 1) if self.hurries else (self._rest_seconds, FETCH_BYTES_MIN)
        settings = {
            **self._settings,
            # librdkafka requires one; partitions are assigned by hand, and the group is never joined.
            "group.id": "penstock-claims",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.min.bytes": bytes_min,
            "fetch.wait.max.ms": int(wait_seconds * 1000),
            "fetch.error.backoff.ms": 100,
            "fetch.message.max.bytes": SNAPSHOT_BYTES_MAX,
        }
        return open_client(Consumer, settings)

    # reading

    def keep_pace(self, hurries: bool) -> None:
        """Read on with a consumer that gets each record at once, or with one that costs the broker little."""
        offset = max(self._sought, self.position())
        self._consumer.close()
        self.hurries = hurries
        self._consumer = self._new_consumer()
        self.seek(offset)

    def reopen(self) -> None:
        """Go on with new clients where the present ones are: one may not recover from a restart of its broker."""
        offset = max(self._sought, self.position())
        self.close()
        self._consumer = self._new_consumer()
        self._producer = None if self._producer is None else self._new_producer()
        self.seek(offset)

    def bounds(self) -> tuple[int, int]:
        """Where the log starts and ends now."""
        return self._bounds(self.topic.name, self.place)

    def snapshots(self) -> list[Snapshot]:
        """The newest usable snapshots of the group, in the order in which they were written."""
        first, end = self._bounds(self.topic.snapshots, self.place)
        count = SNAPSHOTS_READ
        while first < end:
            start = max(first, end - count)
            messages = self._read(self.topic.snapshots, self.place, start, end)
            result = snapshots_of(self.group, (message.value() for message in messages if message.key() == self._key))
            if result or start == first:
                return result
            count *= 10
        return []

    def holds(self, offset: int, appended_at: float) -> bool:
        """Whether the log holds at this offset a record that was appended then; True if it cannot be read."""
        items = self._read(self.topic.name, self.place, offset, offset + 1)
        return not items or abs(items[0].timestamp()[1] / 1000 - appended_at) < 0.001

    def check_new(self) -> None:
        """GrownTopicError if the group, of which its own partition has no snapshot, may have some in another one.

        The snapshot of any group that lies where another number of partitions puts it shows that the topic grew.
        """
        topic, count = self.topic.snapshots, self.topic.partitions
        for place in range(count):
            first, end = self._bounds(topic, place)
            keys = {message.key() for message in self._read(topic, place, max(first, end - PLACED_KEYS), end)}
            for group in (key.decode(errors="replace") for key in keys if key):
                if coordination_partition(group, count) != place:
                    result = f"it has {count}, and group {group} lies where another number puts it"
                    raise GrownTopicError(self.topic.name, result)

    def seek(self, offset: int) -> None:
        """Read on from this offset."""
        self._sought = offset
        self._consumer.assign([TopicPartition(self.topic.name, self.place, offset)])

    def position(self) -> int:
        """The next offset that `poll` returns; offsets without a record count too. Below 0 before anything was read."""
        [position] = self._consumer.position([TopicPartition(self.topic.name, self.place)])
        return int(position.offset)

    def poll(self, seconds: float) -> list[JournalEntry]:
        """What was appended since, within the given time; raises if something is wrong with the topic."""
        self._serve()
        if self._fault is not None:
            raise self._fault
        return [self._entry(message) for message in self._messages(seconds)]

    def _messages(self, seconds: float) -> list[Message]:
        """All entries that are available, as soon as there is one: waiting for more would only delay it."""
        try:
            first = self._consumer.poll(seconds)
            result = [] if first is None else [first, *self._consumer.consume(READ_AT_ONCE_MAX - 1, timeout=0)]
        except KafkaException as error:
            raise self._error(error) from None
        for event in (fault for message in result if (fault := message.error()) is not None):
            if event.code() in OUT_OF_RANGE:
                raise TransientError(f"coordination topic {self.topic.name} was cut or recreated")
            if event.code() in TOPIC_DENIED:
                raise self._error(event)
        return [message for message in result if message.error() is None]

    def _entry(self, message: Message) -> JournalEntry:
        offset, appended_at = message.offset() or 0, message.timestamp()[1] / 1000
        key, epoch = message.key(), message.leader_epoch()
        if key is not None and key != self._key:
            return JournalEntry(offset, appended_at, epoch, None)
        try:
            record, partitions = decode(message.value(), self.group)
            if key is None:
                raise ForeignError("a record without a key")
        except (ForeignError, MalformedError) as fault:
            return JournalEntry(offset, appended_at, epoch, None, str(fault))
        if partitions != self.topic.partitions:
            result = f"it has {self.topic.partitions}, a record of {record.who.client_id} was written for {partitions}"
            raise GrownTopicError(self.topic.name, result)
        return JournalEntry(offset, appended_at, epoch, record)

    # appending

    def append(self, record: Record, failed: Callable[[Record], None]) -> None:
        """Send a record; only reading it back shows that it arrived, `failed` is called if it did not."""
        content = encode(record, self.group, self.topic.partitions)
        self._produce(self.topic.name, content, lambda: failed(record))

    def keep(self, snapshot: Snapshot) -> int | None:
        """Write a snapshot; if it is lost, another one follows. Returns its size if it is too large to be written."""
        content = encode_snapshot(snapshot)
        if len(content) >= SNAPSHOT_BYTES_MAX:
            return len(content)
        self._produce(self.topic.snapshots, content, lambda: None)
        return None

    def flush(self, seconds: float) -> int:
        """Wait for records in flight; returns how many are still not delivered."""
        try:
            return 0 if self._producer is None else int(self._producer.flush(seconds))
        except KafkaException as error:
            raise self._error(error) from None

    def close(self) -> None:
        """Close both clients; records still queued are not sent."""
        if self._producer is not None:
            self._producer.purge(in_flight=False)
            with contextlib.suppress(KafkaException):
                self._producer.flush(_CLOSE_SECONDS_MAX)
        self._consumer.close()

    def _produce(self, topic: str, content: bytes, failed: Callable[[], None]) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed()
                if error.code() in TOPIC_DENIED:
                    self._fault = self._error(error)

        if self._producer is None:
            self._producer = self._new_producer()
        try:
            self._producer.produce(topic, content, self._key, partition=self.place, on_delivery=delivered)
        except BufferError:
            raise TransientError("too many coordination records wait for the broker") from None
        except KafkaException as error:
            # After a fatal error every call fails, and only the event before it states the cause.
            self._serve()
            raise (self._fault or self._error(error)) from None
        self._serve()

    def _serve(self) -> None:
        """Let the producer report what became of its records."""
        try:
            if self._producer is not None:
                self._producer.poll(0)
        except KafkaException as error:
            # A fatal error: it may not write, or lost its sequence of records.
            self._fault = self._error(error)

    # places

    def _bounds(self, topic: str, place: int) -> tuple[int, int]:
        try:
            watermark_offsets = self._consumer.get_watermark_offsets(
                TopicPartition(topic, place), timeout=CALL_SECONDS_MAX
            )
        except KafkaException as error:
            raise self._error(error) from None
        if watermark_offsets is None:
            raise TransientError(f"the broker did not report in time where {topic} starts and ends")
        return int(watermark_offsets[0]), int(watermark_offsets[1])

    def _read(self, topic: str, place: int, start: int, end: int) -> list[Message]:
        """The messages at the offsets `[start, end)`, as far as they still exist."""
        result: list[Message] = []
        if start >= end:
            return result
        deadline = time.monotonic() + CALL_SECONDS_MAX
        where = TopicPartition(topic, place, start)
        self._consumer.assign([where])
        while where.offset < end:
            if time.monotonic() > deadline:
                raise TransientError(f"{topic} could not be read in time")
            result += self._messages(_VALUES_POLL_SECONDS)
            [now] = self._consumer.position([TopicPartition(topic, place)])
            where.offset = max(where.offset, now.offset)
        # Requests to the broker would queue after the fetches of an assigned consumer.
        self._consumer.unassign()
        return [message for message in result if start <= (message.offset() or 0) < end]

    def _error(self, error: KafkaError | KafkaException) -> PenstockError:
        fault = fault_of(error)
        if fault.code in TOPIC_DENIED:
            return UserError(
                f"not allowed: coordination topic {self.topic.name}",
                detail=fault.text,
                hint=f"grant Read, Write and Describe on {self.topic.name} and {self.topic.snapshots}",
            )
        return error_of(fault, self._bootstrap, f"coordination topic {self.topic.name}", None)
