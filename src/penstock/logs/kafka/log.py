"""Kafka as a log: the topics of one job with everything that jobs and `verify` ask of them.

Consumers that join no group answer which offsets have records, when records were made, and whether the log still has
what was read. The tasks' reader is not used for this: `verify` would miss the records that it skips.

The bounds of a log that lost its tail in an unclean election and grew again look normal. Its leader knows where each
epoch ended; librdkafka asks it for that, before it fetches from an offset that is assigned with an epoch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from penstock.errors import TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.batches import RECORDS_BATCH_BYTES
from penstock.logs.kafka.admin import CALL_SECONDS_MAX, open_client
from penstock.logs.kafka.faults import UNUSED_GROUP_DENIED, error_of, fault_of
from penstock.logs.kafka.mirror import mirror, mirrored
from penstock.logs.kafka.reader import PieceReader
from penstock.logs.kafka.settings import reading_settings
from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import Bounds, EpochMark, LostTail, OffsetProgress, Offsets, Partition, Slice

LOST_TAIL_ASKED_AGAIN = 2
LOST_TAIL_PAUSE_SECONDS = 0.5
SILENCE_SECONDS_MAX = 30.0
"""How long the broker may send nothing before reading is given up."""
MESSAGES_PER_CALL = 20_000
QUEUED_KIB_MAX = 32 * 1024
_CALL_SECONDS = 0.5
_POLL_SECONDS = 0.1
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, UNUSED_GROUP_DENIED)
_OFFSET_SETTINGS = {
    "enable.auto.offset.store": "false",
    # Retention may pass the start while we read: the caller asks for the first offset afterwards.
    "auto.offset.reset": "earliest",
    "queued.max.messages.kbytes": str(QUEUED_KIB_MAX),
}
_EPOCH_SETTINGS = {
    "auto.offset.reset": "error",
    # Any record shows that the offset before it was found valid, also one of an aborted transaction.
    "isolation.level": "read_uncommitted",
    "fetch.message.max.bytes": str(64 * 1024),
    "fetch.wait.max.ms": "10",
    "queued.min.messages": "1",
}
# The client reports it under the code of a reset that is not configured; only the text holds the cause.
_TRUNCATED = KafkaError(KafkaError._LOG_TRUNCATION).str()
_EPOCH_END = re.compile(r"broker end offset is (?P<end>\d+)")


class KafkaLog(KafkaTopics):
    """The topics of one job. Joins no group; only `show` commits offsets to one."""

    def __init__(self, spec: KafkaLogSpec, call_seconds_max: float = CALL_SECONDS_MAX) -> None:
        super().__init__(spec, call_seconds_max)
        self._consumer: Consumer | None = None

    def lost_tails(self, marks: Mapping[Partition, Iterable[EpochMark]]) -> Sequence[LostTail]:
        lost = lost_tails(self, marks)
        for _ in range(LOST_TAIL_ASKED_AGAIN):
            if not lost:
                break
            # A new leader may show an older end for a moment, and an old one not know a newer epoch.
            time.sleep(LOST_TAIL_PAUSE_SECONDS)
            lost = lost_tails(self, {tail.partition: [tail.mark] for tail in lost})
        return lost

    def source(self, slices: Sequence[Slice], tasks_min: int, batch_bytes: int) -> PieceReader:
        return PieceReader.of(self.spec, slices, tasks_min, batch_bytes)

    def records(self, partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        reader = self.source([Slice(partition, start, end, start)], 1, RECORDS_BATCH_BYTES)
        numbers = pa.RecordBatch.from_arrays([pa.array(range(len(reader.pieces)), pa.int64())], names=["number"])
        # Batches without rows are marks for a commit.
        return (batch for batch in reader([numbers]) if batch.num_rows)

    def offsets(self, partition: Partition, start: int, end: int, progress: OffsetProgress) -> Offsets:
        if start >= end:
            return np.empty(0, np.int64)
        if self._consumer is None:
            self._consumer = open_client(Consumer, {**reading_settings(self.spec), **_OFFSET_SETTINGS})
        self._consumer.assign([TopicPartition(partition.topic, partition.number, start)])
        parts: list[Offsets] = []
        done, answered_at = start, time.monotonic()
        try:
            while done < end:
                messages = self._consumer.consume(MESSAGES_PER_CALL, _CALL_SECONDS)
                offsets, ended = _offsets(messages, self.spec.bootstrap, partition)
                if offsets or ended:
                    answered_at = time.monotonic()
                elif time.monotonic() - answered_at > SILENCE_SECONDS_MAX:
                    raise TransientError(
                        f"Kafka at {self.spec.bootstrap} gave no record of {partition} for {SILENCE_SECONDS_MAX:g} s",
                        detail=f"offsets [{done}, {end}) were still to be read",
                    )
                if offsets:
                    parts.append(np.array([offset for offset in offsets if start <= offset < end], np.int64))
                reached = end if ended else min(end, offsets[-1] + 1) if offsets else done
                progress(reached - done)
                done = reached
        finally:
            self._consumer.unassign()
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def record_times(self, offsets: Mapping[Partition, int], seconds_max: float) -> Mapping[Partition, float]:
        if not offsets:
            return {}
        places = {key: TopicPartition(key.topic, key.number, offset) for key, offset in offsets.items()}
        times: dict[Partition, float] = {}
        # Retention may pass an offset meanwhile.
        for partition, event in _first_events(self.spec, {"auto.offset.reset": "earliest"}, places, seconds_max):
            kind, at_ms = event.timestamp()
            if event.error() is None and kind != TIMESTAMP_NOT_AVAILABLE:
                times[partition] = at_ms / 1000
        return times

    def offset_at(self, partition: Partition, at: float, bounds: Bounds) -> int:
        listed = self._listed((partition,), OffsetSpec.for_timestamp(round(at * 1000)))[partition].offset
        return bounds.end if listed < 0 else min(max(listed, bounds.first), bounds.end)

    def show(self, positions: Mapping[Partition, int]) -> Mapping[Partition, str]:
        return mirror(self, self.spec.group, positions)

    def shown(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        return mirrored(self, self.spec.group, partitions) if self.spec.group else {}

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        super().close()


def _offsets(messages: list[Message], bootstrap: str, partition: Partition) -> tuple[list[int], bool]:
    """The offsets of records among the messages, and whether the end of the partition was met."""
    offsets: list[int] = []
    ended = False
    for message in messages:
        error = message.error()
        if error is None:
            offsets.append(message.offset() or 0)
        elif error.code() == KafkaError._PARTITION_EOF:
            ended = True
        elif error.code() not in _PASSING:
            raise error_of(fault_of(error), bootstrap, f"partition {partition}")
    return offsets, ended


# the first event after an offset


def _first_events(
    spec: KafkaLogSpec, settings: Mapping[str, str], places: Mapping[Partition, TopicPartition], seconds_max: float
) -> Iterator[tuple[Partition, Message]]:
    """A record, the end of the log, or a reset for any cause; a partition that does not answer in time is absent."""
    waiting = {(partition.topic, partition.number): partition for partition in places}
    deadline = time.monotonic() + seconds_max
    consumer = open_client(Consumer, {**reading_settings(spec), **settings})
    try:
        consumer.assign(list(places.values()))
        while waiting and time.monotonic() < deadline:
            event = consumer.poll(_POLL_SECONDS)
            if event is None or not is_answer(event, spec.bootstrap):
                continue
            partition = waiting.pop((event.topic() or "", event.partition() or 0), None)
            if partition is not None:
                # Its further records would only fill the queue.
                consumer.pause([TopicPartition(partition.topic, partition.number)])
                yield partition, event
    except KafkaException as error:
        raise error_of(fault_of(error), spec.bootstrap, "first records") from error
    finally:
        consumer.close()


def is_answer(event: Message, bootstrap: str) -> bool:
    """Whether the event is a record or the end of what can be read; raises for errors that do not pass."""
    error = event.error()
    if error is None or error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
        return True
    if error.code() != UNUSED_GROUP_DENIED and (not error.retriable() or error.fatal()):
        raise error_of(fault_of(error), bootstrap, f"topic {event.topic()}")
    return False


# leader epochs


def lost_tails(log: KafkaTopics, marks: Mapping[Partition, Iterable[EpochMark]]) -> tuple[LostTail, ...]:
    """The marks whose records the log has lost otherwise than by retention or compaction."""
    present = log.leader_epochs(marks)
    # A leader truncates nothing while it leads: mostly this one request is enough.
    older = {
        partition: [mark for epoch, mark in last_by_epoch.items() if epoch != present[partition]]
        for partition, read in marks.items()
        if (last_by_epoch := {mark.epoch: mark for mark in sorted(read)})
    }
    lost: list[LostTail] = []
    while asked := {partition: unchecked.pop() for partition, unchecked in older.items() if unchecked}:
        lost += _validated(log.spec, asked)
    return tuple(sorted(lost, key=lambda tail: (tail.partition, tail.mark)))


def _validated(spec: KafkaLogSpec, asked: Mapping[Partition, EpochMark]) -> list[LostTail]:
    """Let the client compare one mark of each partition with its leader's epochs."""
    places = {
        key: TopicPartition(key.topic, key.number, mark.end, leader_epoch=mark.epoch) for key, mark in asked.items()
    }
    answers = dict(_first_events(spec, _EPOCH_SETTINGS, places, CALL_SECONDS_MAX))
    if silent := sorted(asked.keys() - answers.keys()):
        names = ", ".join(map(str, silent))
        raise TransientError(f"Kafka at {spec.bootstrap} does not answer about the leader epochs of {names}")
    lost: list[LostTail] = []
    for partition, event in answers.items():
        error = event.error()
        # Other resets are not losses: retention deleted what comes after the mark.
        if error is not None and _TRUNCATED in error.str():
            epoch_end = _EPOCH_END.search(error.str())
            lost.append(LostTail(partition, asked[partition], int(epoch_end["end"]) if epoch_end else None))
    return lost
