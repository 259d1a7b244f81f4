"""The coordination topic in Kafka: read it in order, append to it, store its snapshots. Used by one thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from penstock.claims.member.topics import SNAPSHOT_BYTES_MAX, CoordinationTopic
from penstock.claims.protocol.codec import ForeignError, MalformedError, decode, encode
from penstock.claims.protocol.records import Record
from penstock.claims.protocol.snapshots import Snapshot, encode_snapshot, newest
from penstock.errors import PenstockError, TransientError, UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.admin import QuietLog, logger
from penstock.logs.kafka.faults import error_of, fault_of
from penstock.logs.kafka.security import librdkafka_settings

CALL_SECONDS_MAX = 15.0
READ_AT_ONCE_MAX = 1000
SNAPSHOTS_READ_MAX = 20
"""Newest snapshots that are looked at: a late writer may have appended an older one after a newer."""
_VALUES_POLL_SECONDS = 0.05
_CLOSE_SECONDS_MAX = 1.0
_CUT = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_DENIED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class LostHistoryError(UserError):
    """The log starts after the end of every snapshot, so who owns what is unknown (RULES M7)."""

    def __init__(self, topic: str, place: int, known: int, first: int) -> None:
        super().__init__(
            f"partition {place} of coordination topic {topic} lost the records {known} to {first - 1}",
            detail="no snapshot covers them: the log's retention is too short, or records were deleted",
            hint="stop every process of this topic and set `claims.lost_history: restart` for the next start: "
            "tables keep their tokens, so nothing is written twice",
        )


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One offset of the log. `record` is None where it holds no record of Penstock; `fault` says why."""

    place: int
    offset: int
    appended_at: float
    record: Record | None
    fault: str = ""


class Journal:
    """One coordination topic, read from a snapshot or from its beginning."""

    def __init__(self, spec: KafkaLogSpec, topic: CoordinationTopic, delivery_seconds_max: float = 5.0) -> None:
        self.topic = topic
        self._bootstrap = spec.bootstrap
        self._fault: PenstockError | None = None
        settings: dict[str, Any] = {
            **librdkafka_settings(spec),
            "reconnect.backoff.ms": 100,
            "reconnect.backoff.max.ms": 1000,
        }
        self._consumer = Consumer(
            {
                **settings,
                # librdkafka requires one; partitions are assigned by hand, and the group is never joined.
                "group.id": "penstock-claims",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                # In a large group the broker collects records briefly: one response instead of one per heartbeat.
                "fetch.min.bytes": 64 * 1024,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 100,
                "fetch.message.max.bytes": SNAPSHOT_BYTES_MAX,
            },
            logger=QuietLog(logger),
        )
        self._producer = Producer(
            {
                **settings,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "compression.type": "lz4",
                "message.max.bytes": SNAPSHOT_BYTES_MAX,
                "delivery.timeout.ms": int(delivery_seconds_max * 1000),
                "request.timeout.ms": int(delivery_seconds_max * 1000),
                # Automatic topic creation would use the wrong settings.
                "allow.auto.create.topics": False,
            },
            logger=QuietLog(logger),
        )

    # reading

    def snapshots(self) -> dict[int, Snapshot]:
        """The newest usable snapshot of each coordination partition."""
        wanted = {
            place: (max(first, end - SNAPSHOTS_READ_MAX), end)
            for place, (first, end) in self._bounds(self.topic.snapshots).items()
            if first < end
        }
        contents = self._values(self.topic.snapshots, wanted)
        found = {place: newest(each, self.topic.topic_id, place) for place, each in contents.items()}
        return {place: snapshot for place, snapshot in found.items() if snapshot is not None}

    def seek(self, known: Mapping[int, int], restart: bool = False) -> dict[int, tuple[int, int]]:
        """Seek to the given offsets; returns where each partition is read from and where it ends now.

        LostHistoryError if records after the known ones are gone; with `restart` they are skipped.
        """
        bounds: dict[int, tuple[int, int]] = {}
        for place, (first, end) in self._bounds(self.topic.name).items():
            start = known.get(place, 0)
            if start < first and not restart:
                raise LostHistoryError(self.topic.name, place, start, first)
            if start > end:
                raise TransientError(f"coordination topic {self.topic.name} ends before its snapshot")
            bounds[place] = (max(first, start), end)
        self._consumer.assign([TopicPartition(self.topic.name, place, start) for place, (start, _) in bounds.items()])
        return bounds

    def poll(self, seconds: float) -> list[JournalEntry]:
        """What was appended since, within the given time; raises if something is wrong with the topic."""
        self._raise_fault()
        try:
            messages = self._messages(seconds)
        except KafkaException as error:
            raise self._error(error) from None
        entries = []
        for message in messages:
            event = message.error()
            if event is None:
                entries.append(self._entry(message))
            elif event.code() in _CUT:
                raise TransientError(f"coordination topic {self.topic.name} was cut or recreated")
            elif event.code() in _DENIED:
                raise self._error(event)
        return entries

    def _messages(self, seconds: float) -> list[Message]:
        """Whatever is there, as soon as something is: waiting for more would only delay it."""
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        return [first, *self._consumer.consume(READ_AT_ONCE_MAX - 1, timeout=0)]

    def positions(self) -> dict[int, int]:
        """The next offset that `poll` returns, per coordination partition; offsets without a record count too."""
        return {
            each.partition: each.offset
            for each in self._consumer.position(
                [TopicPartition(self.topic.name, place) for place in range(self.topic.partitions)]
            )
        }

    def _entry(self, message: Message) -> JournalEntry:
        place, offset = message.partition() or 0, message.offset() or 0
        appended_at = message.timestamp()[1] / 1000
        try:
            record, partitions = decode(message.value())
        except (ForeignError, MalformedError) as fault:
            return JournalEntry(place, offset, appended_at, None, str(fault))
        if partitions != self.topic.partitions:
            raise UserError(
                f"coordination topic {self.topic.name} has {self.topic.partitions} partitions, "
                f"a record of {record.who.client_id} was written for {partitions}",
                detail="claims are placed by that number, so it must never change",
                hint="stop every process, delete the topic and its snapshots, and start again: "
                "tables keep their tokens, so nothing is written twice",
            )
        return JournalEntry(place, offset, appended_at, record)

    # appending

    def append(self, place: int, record: Record, failed: Callable[[Record], None]) -> None:
        """Send a record; only reading it back shows that it arrived, `failed` is called if it did not."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed(record)
                if error.code() in _DENIED:
                    self._fault = self._error(error)

        self._produce(self.topic.name, place, None, encode(record, self.topic.partitions), delivered)

    def keep(self, snapshot: Snapshot) -> None:
        """Write a snapshot; if it is lost, another one follows."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None and error.code() in _DENIED:
                self._fault = self._error(error)

        content = encode_snapshot(snapshot)
        if len(content) < SNAPSHOT_BYTES_MAX:
            self._produce(self.topic.snapshots, snapshot.place, str(snapshot.place).encode(), content, delivered)

    def flush(self, seconds: float) -> int:
        """Wait for records in flight; returns how many are still not delivered."""
        try:
            return int(self._producer.flush(seconds))
        except KafkaException as error:
            raise self._error(error) from None

    def close(self) -> None:
        """Close both clients; records still queued are not sent."""
        self._producer.purge(in_flight=False)
        with contextlib.suppress(KafkaException):
            self._producer.flush(_CLOSE_SECONDS_MAX)
        self._consumer.close()

    def _produce(self, topic: str, place: int, key: bytes | None, content: bytes, delivered: Any) -> None:
        try:
            self._producer.produce(topic, content, key, partition=place, on_delivery=delivered)
        except BufferError:
            raise TransientError("too many coordination records wait for the broker") from None
        except KafkaException as error:
            raise self._error(error) from None
        self._serve()

    def _serve(self) -> None:
        """Let the producer report what became of its records."""
        try:
            self._producer.poll(0)
        except KafkaException as error:
            # A fatal error: it may not write, or lost its sequence of records.
            self._fault = self._error(error)

    def _raise_fault(self) -> None:
        self._serve()
        if self._fault is not None:
            raise self._fault

    def _bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Where each partition starts and ends, by two requests however many partitions there are."""
        first, end = (self._offsets(topic, place) for place in (OFFSET_BEGINNING, OFFSET_END))
        return {place: (first[place], end[place]) for place in range(self.topic.partitions)}

    def _offsets(self, topic: str, instant: int) -> dict[int, int]:
        places = [TopicPartition(topic, place, instant) for place in range(self.topic.partitions)]
        try:
            found = self._consumer.offsets_for_times(places, timeout=CALL_SECONDS_MAX)
        except KafkaException as error:
            raise self._error(error) from None
        for each in found:
            if each.error is not None:
                raise self._error(each.error)
        return {each.partition: each.offset for each in found}

    def _values(self, topic: str, wanted: Mapping[int, tuple[int, int]]) -> dict[int, list[bytes | None]]:
        """The values at the offsets `[start, end)` of each partition, as far as they still exist."""
        found: dict[int, list[bytes | None]] = {place: [] for place in wanted}
        places = [TopicPartition(topic, place, start) for place, (start, _) in wanted.items()]
        deadline = time.monotonic() + CALL_SECONDS_MAX
        if places:
            self._consumer.assign(places)
        while any(each.offset < wanted[each.partition][1] for each in places):
            if time.monotonic() > deadline:
                break
            for message in self._messages(_VALUES_POLL_SECONDS):
                event = message.error()
                if event is None:
                    found[message.partition() or 0].append(message.value())
                elif event.code() in _DENIED:
                    raise self._error(event)
            places = self._consumer.position(places)
        # Requests to the broker would queue after the fetches of an assigned consumer.
        self._consumer.unassign()
        if not all(found.values()):
            raise TransientError(f"{topic} could not be read in time")
        return found

    def _error(self, error: KafkaError | KafkaException) -> PenstockError:
        fault = fault_of(error)
        if fault.code in _DENIED:
            return UserError(
                f"not allowed: coordination topic {self.topic.name}",
                detail=fault.text,
                hint=f"grant Read, Write and Describe on {self.topic.name} and {self.topic.snapshots}",
            )
        return error_of(fault, self._bootstrap, f"coordination topic {self.topic.name}", None)
