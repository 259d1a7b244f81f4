"""A bounded sample of a topic, or its records as they arrive. Joins no group, commits nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from types import TracebackType
from typing import Self, TypeAlias, cast, get_args

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaException, Message, TopicPartition

from penstock.errors import TransientError, UserError
from penstock.flow.columns.times import timestamp_micros
from penstock.job.faults import InvalidValueError
from penstock.job.spec import KafkaLogSpec, StartAt
from penstock.job.values import parse_duration
from penstock.logs.kafka.admin import open_client
from penstock.logs.kafka.faults import error_of, fault_of
from penstock.logs.kafka.log import is_answer
from penstock.logs.kafka.settings import reading_settings
from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import Bounds, Partition

Start: TypeAlias = StartAt | int | datetime
"""Where to begin in every partition: by name, by offset, or by the time of the record."""
Progress: TypeAlias = Callable[[int], None]
"""Called with the number of records read so far."""

STRETCHES_MAX = 10
"""Places of a partition that are sampled, evenly from its first to its last record."""
SAMPLE_BYTES_MAX = 64 * 1024 * 1024
CALL_SECONDS_MAX = 5.0
SILENCE_SECONDS_MAX = 10.0
_POLL_SECONDS = 0.1
_SETTINGS = {
    "auto.offset.reset": "earliest",
    # Little is fetched ahead: the next stretch is elsewhere.
    "fetch.message.max.bytes": str(256 * 1024),
    "fetch.queue.backoff.ms": "5",
    "fetch.wait.max.ms": "10",
    "queued.min.messages": "1",
}


@dataclass(frozen=True, slots=True)
class Record:
    partition: int
    offset: int
    at_ms: int | None
    """Kafka's timestamp."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def size_bytes(self) -> int:
        return len(self.key or b"") + len(self.value or b"")


@dataclass(frozen=True, slots=True)
class Sample:
    """Records of a topic, by partition and offset, and what its partitions hold."""

    topic: str
    bounds: Mapping[Partition, Bounds]
    records: tuple[Record, ...]

    @property
    def offsets(self) -> int:
        """Those of the whole topic; not all of them need to have a record."""
        return sum(bounds.end - bounds.first for bounds in self.bounds.values())


def parse_start(text: str) -> Start:
    """Read `earliest`, `latest`, an offset, a time, or how long ago, as in `2h`."""
    if text in get_args(StartAt):
        return cast("StartAt", text)
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=timestamp_micros(text))
    except (ValueError, OverflowError):
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except (InvalidValueError, OverflowError):
        hint = "write earliest, latest, an offset, a time such as 2026-03-01T10:00:00Z, or how long ago, as in 2h"
        raise UserError(f"invalid start {text}", hint=hint) from None


class TopicReader:
    """Reads records of one topic."""

    def __init__(self, spec: KafkaLogSpec) -> None:
        self._spec = spec
        [self._topic] = spec.topics
        topics = KafkaTopics(spec, CALL_SECONDS_MAX)
        try:
            self._bounds = dict(topics.bounds(topics.partitions()))
        finally:
            topics.close()
        self._consumer = open_client(Consumer, {**reading_settings(spec), **_SETTINGS})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def sample(self, start: Start | None, count: int, progress: Progress = lambda _: None) -> Sample:
        """About `count` records, spread over the whole topic, or those that follow `start` in each partition."""
        records: dict[tuple[int, int], Record] = {}
        size_bytes = 0
        for record in chain.from_iterable(map(self._read, self._rounds(start, count))):
            records[record.partition, record.offset] = record
            size_bytes += record.size_bytes
            progress(len(records))
            if size_bytes > SAMPLE_BYTES_MAX:
                break
        return Sample(self._topic, self._bounds, tuple(records[place] for place in sorted(records)))

    def follow(self, start: Start) -> Iterator[Record]:
        """The records from `start` on, without an end."""
        self._assign({number: offset for number, (offset, _) in self._ranges(start).items()})
        while True:
            event = self._poll()
            if event is not None and event.error() is None:
                yield _record(event)

    def _ranges(self, start: Start | None) -> dict[int, tuple[int, int]]:
        """The offsets from `start` to the end of each partition."""
        firsts = {partition.number: bounds.first for partition, bounds in self._bounds.items()}
        ends = {partition.number: bounds.end for partition, bounds in self._bounds.items()}
        match start:
            case "latest":
                starts = ends
            case int():
                starts = dict.fromkeys(ends, start)
            case datetime():
                at_ms = round(start.timestamp() * 1000)
                request = [TopicPartition(self._topic, number, at_ms) for number in ends]
                try:
                    found = self._consumer.offsets_for_times(request, timeout=CALL_SECONDS_MAX)
                except KafkaException as error:
                    raise error_of(fault_of(error), self._spec.bootstrap, f"topic {self._topic}") from None
                # Below 0 if no record is that late.
                starts = {item.partition: ends[item.partition] if item.offset < 0 else item.offset for item in found}
            case _:
                starts = firsts
        return {number: (min(max(starts[number], firsts[number]), ends[number]), ends[number]) for number in ends}

    def _rounds(self, start: Start | None, count: int) -> list[dict[int, tuple[int, int]]]:
        """Of each partition an offset, and how many records from there on; partitions are read at the same time."""
        ranges = self._ranges("earliest" if start == "latest" else start)
        total = sum(end - begin for begin, end in ranges.values())
        rounds: list[dict[int, tuple[int, int]]] = [{} for _ in range(STRETCHES_MAX)]
        for number, (begin, end) in ranges.items():
            size = end - begin
            if not size:
                continue
            quota = min(size, max(1, round(count * size / total)))
            stretches = 1 if start is not None or quota == size else min(STRETCHES_MAX, quota)
            length = -(-quota // stretches)
            for index in range(stretches):
                last = size - length
                skipped = last if start == "latest" else last * index // (stretches - 1) if stretches > 1 else 0
                rounds[index][number] = (begin + skipped, length)
        rounds = [stretches for stretches in rounds if stretches]
        # Both ends first: large records may fill the sample before all stretches are read.
        return [*rounds[:1], *rounds[1:][-1:], *rounds[1:-1]]

    def _read(self, stretches: Mapping[int, tuple[int, int]]) -> Iterator[Record]:
        self._assign({number: offset for number, (offset, _) in stretches.items()})
        missing = {number: count for number, (_, count) in stretches.items()}
        answered_at = time.monotonic()
        while missing:
            event = self._poll()
            if event is None:
                if time.monotonic() - answered_at > SILENCE_SECONDS_MAX:
                    raise TransientError(
                        f"Kafka at {self._spec.bootstrap} sent no record of {self._topic}",
                        detail=f"for {SILENCE_SECONDS_MAX:g} s",
                        hint="can every broker of the cluster be reached from here?",
                    )
                continue
            answered_at = time.monotonic()
            number = event.partition() or 0
            if event.error() is not None:
                missing.pop(number, None)
            elif number in missing:
                yield _record(event)
                missing[number] -= 1
                if not missing[number]:
                    del missing[number]
                    # Not paused: a paused partition is fetched again only a second after it is assigned elsewhere.
                    self._consumer.incremental_unassign([TopicPartition(self._topic, number)])

    def _assign(self, offsets: Mapping[int, int]) -> None:
        self._consumer.assign([TopicPartition(self._topic, number, offset) for number, offset in offsets.items()])

    def _poll(self) -> Message | None:
        """A record, or the end of a partition; None if neither came in a moment."""
        event = self._consumer.poll(_POLL_SECONDS)
        return event if event is not None and is_answer(event, self._spec.bootstrap) else None


def _record(message: Message) -> Record:
    kind, at_ms = message.timestamp()
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return Record(
        message.partition() or 0,
        message.offset() or 0,
        None if kind == TIMESTAMP_NOT_AVAILABLE else at_ms,
        message.key(),
        message.value(),
        tuple(headers),
    )
