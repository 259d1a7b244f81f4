"""The held partitions of a member, read through one Kafka consumer that is assigned by hand and joins no group."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.claims.member.consumer.acks import Acks
from penstock.errors import PenstockError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.admin import open_client
from penstock.logs.kafka.faults import OUT_OF_RANGE, TOPIC_DENIED, error_of, fault_of
from penstock.logs.kafka.reader import next_offsets
from penstock.logs.kafka.settings import librdkafka_settings
from penstock.logs.log import Partition

FETCH_AT_ONCE_MAX = 500
UNANSWERED_SECONDS_MAX = 10.0
"""A consumer that gives nothing for so long although the log has more is replaced: after a restart of its broker
librdkafka may wait for ever for the answer to a request for leader epochs."""
_LOOKS_AT_PROGRESS = 4
"""How often the consumer reports within that time how far it has fetched."""


@dataclass(frozen=True, slots=True)
class Work:
    """One record, handed out under a claim; `timestamp` is in milliseconds since 1970, as Kafka keeps it."""

    partition: Partition
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int | None
    token: int
    stream: int = field(default=0, repr=False, compare=False)
    """Which read of the partition it belongs to: after an interruption there is another one under the same token."""


@dataclass(slots=True, eq=False)
class Stream:
    """One claim that is being read: what is fetched and not delivered, what is delivered and not done.

    The queue belongs to the polling thread; everything else is guarded by the member's lock.
    """

    acks: Acks
    number: int = 0
    """Streams of one member have different ones."""
    queue: deque[Message | int] = field(default_factory=deque)
    """Records in order; a number means that the log holds nothing more below it."""
    log_end: int = 0
    """Where the log ended when it was last asked."""
    stale: bool = False
    """It has to start again from the group's position."""
    out_of_range: bool = False
    """The log no longer holds what comes next: it starts again once everything before is done."""
    fetch_from: int = field(init=False)
    """The offset after the last record that the consumer delivered."""
    fetched_to: int | None = None
    """How far the consumer reports that it has fetched: records of aborted transactions are never delivered."""
    unanswered_seconds: float = 0.0
    """How long this stream was polled since it last advanced."""

    def __post_init__(self) -> None:
        self.fetch_from = self.acks.position

    @property
    def partition(self) -> Partition:
        return self.acks.partition

    @property
    def token(self) -> int:
        return self.acks.token

    @property
    def over(self) -> bool:
        return self.stale or (self.out_of_range and not self.queue and not self.acks.tracked)

    def stuck(self) -> bool:
        """Whether the consumer should have delivered by now: the log has more, and it was polled for long."""
        return self.fetch_from < self.log_end and self.unanswered_seconds > UNANSWERED_SECONDS_MAX

    @property
    def lag(self) -> int:
        """Records up to the log's end as it was when it was last asked."""
        return max(0, self.log_end - self.acks.position)

    def take(self, entry: Message | int, fetch_from: int) -> None:
        """Queue what the consumer gave; what comes next begins at `fetch_from`."""
        self.queue.append(entry)
        self.fetch_from = fetch_from
        self.unanswered_seconds = 0.0

    def note_progress(self, fetched_to: int | None) -> None:
        """Note how far the consumer has fetched; if that is further than before, it is not stuck."""
        if fetched_to != self.fetched_to:
            self.fetched_to = fetched_to
            self.unanswered_seconds = 0.0

    def next_messages(self, count_max: int) -> list[Message]:
        """The records that could be delivered now; they stay in the queue until `hand_out` takes them."""
        while self.queue and isinstance(self.queue[0], int):
            self.acks.pass_over(self.queue.popleft())  # type: ignore[arg-type]
        messages = (entry for entry in self.queue if not isinstance(entry, int))
        return list(islice(messages, max(0, min(count_max, self.acks.capacity))))

    def hand_out(self, count: int) -> Iterator[Work]:
        """Take so many records from the queue and track them."""
        while count > 0:
            entry = self.queue.popleft()
            if isinstance(entry, int):
                self.acks.pass_over(entry)
                continue
            work = _work(entry, self)
            self.acks.deliver(work.offset)
            count -= 1
            yield work


class StreamReader:
    """The Kafka consumer, used by one thread at a time; what it fetches goes to the streams it follows."""

    def __init__(self, spec: KafkaLogSpec, group: str) -> None:
        self._bootstrap = spec.bootstrap
        self._followed: dict[tuple[str, int], Stream] = {}
        self._paused: set[tuple[str, int]] = set()
        self._settings = {
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 100,
            "reconnect.backoff.ms": 100,
            "reconnect.backoff.max.ms": 1000,
            **librdkafka_settings(spec),
            # Only a name: partitions are assigned by hand, and offsets are never committed to it.
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "statistics.interval.ms": int(1_000 * UNANSWERED_SECONDS_MAX / _LOOKS_AT_PROGRESS),
            "stats_cb": self._read_statistics,
        }
        self._consumer = open_client(Consumer, self._settings)

    def replace_consumer(self) -> None:
        """Go on with a new consumer, where the present one stopped: `follow` assigns what is read."""
        self._consumer.close()
        self._consumer = open_client(Consumer, self._settings)
        for stream in self._followed.values():
            stream.unanswered_seconds = 0.0
        self._followed.clear()
        self._paused.clear()

    def follow(self, streams: Mapping[Partition, Stream]) -> None:
        """Read exactly these streams, each from its start; those already being read continue."""
        chosen = {(partition.topic, partition.number): stream for partition, stream in streams.items()}
        gone = [key for key, stream in self._followed.items() if chosen.get(key) is not stream]
        # A paused partition stays paused when it is assigned again.
        self._resume([key for key in gone if key in self._paused])
        if gone:
            self._consumer.incremental_unassign([TopicPartition(*key) for key in gone])
        for key in gone:
            del self._followed[key]
        new = {key: stream for key, stream in chosen.items() if key not in self._followed}
        if new:
            places = [TopicPartition(*key, stream.fetch_from) for key, stream in new.items()]
            self._consumer.incremental_assign(places)
        self._followed |= new

    def fetch(self, seconds: float) -> None:
        """Wait for records within the given time, and put them into their streams."""
        self._hold_back()
        asked_at = time.monotonic()
        try:
            first = self._consumer.poll(seconds)
            waited_seconds = time.monotonic() - asked_at
            for key, stream in self._followed.items():
                stream.unanswered_seconds = 0.0 if key in self._paused else stream.unanswered_seconds + waited_seconds
            if first is None:
                return
            messages = [first, *self._consumer.consume(FETCH_AT_ONCE_MAX - 1, timeout=0)]
        except KafkaException as error:
            raise self._error(error) from None
        for message in messages:
            self._take(message)

    def _read_statistics(self, statistics: str) -> None:
        offsets = next_offsets(statistics)
        for key, stream in self._followed.items():
            stream.note_progress(offsets.get(key))

    def close(self) -> None:
        self._followed.clear()
        self._consumer.close()

    def _hold_back(self) -> None:
        """Pause full streams: one slow partition must not fill the memory or stop the others."""
        full = {key for key, stream in self._followed.items() if len(stream.queue) >= stream.acks.capacity}
        slack = [key for key in self._paused - full if self._has_slack(self._followed[key])]
        self._resume(slack)
        new = full - self._paused
        if new:
            self._consumer.pause([TopicPartition(*key) for key in new])
            self._paused |= new

    @staticmethod
    def _has_slack(stream: Stream) -> bool:
        """Whether half of the limit is free: each pause discards what was prefetched, so they should be rare."""
        return 2 * (len(stream.queue) + stream.acks.tracked) <= stream.acks.in_flight_max

    def _resume(self, keys: list[tuple[str, int]]) -> None:
        if keys:
            self._consumer.resume([TopicPartition(*key) for key in keys])
            self._paused.difference_update(keys)

    def _take(self, message: Message) -> None:
        stream = self._followed.get((message.topic() or "", message.partition() or 0))
        event = message.error()
        if event is not None and event.code() in TOPIC_DENIED:
            raise self._error(event)
        if stream is None:
            return
        if event is None:
            stream.take(message, offset_of(message) + 1)
        elif event.code() == KafkaError._PARTITION_EOF:
            stream.take(offset_of(message), offset_of(message))
        elif event.code() in OUT_OF_RANGE:
            stream.out_of_range = True
        # Anything else is a broker that is briefly unavailable: librdkafka reconnects.

    def _error(self, error: KafkaError | KafkaException) -> PenstockError:
        return error_of(fault_of(error), self._bootstrap, "the topics of this member", None)


def _work(message: Message, stream: Stream) -> Work:
    kind, timestamp = message.timestamp()
    return Work(
        partition=stream.partition,
        offset=message.offset() or 0,
        key=message.key(),
        value=message.value(),
        headers=tuple(cast(list[tuple[str, bytes | None]], message.headers() or ())),
        timestamp=timestamp if kind else None,
        token=stream.token,
        stream=stream.number,
    )


def offset_of(message: Message) -> int:
    return message.offset() or 0
