"""Whether a log still has the records that were read from it, by the epochs of their leaders.

A log that lost its tail in an unclean election and grew again shows nothing in its bounds. Its leader knows where each
epoch ended; librdkafka asks it for that, before it fetches from an offset that is assigned with an epoch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.admin import CALL_SECONDS_MAX, QuietLog, logger
from penstock.logs.kafka.faults import UNUSED_GROUP_DENIED, error_of, fault_of
from penstock.logs.kafka.security import reading_settings
from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import EpochMark, LostTail, Partition

_POLL_SECONDS = 0.1
_SETTINGS = {
    "auto.offset.reset": "error",
    # Any record tells that the offset before it was found valid, also one of an aborted transaction.
    "isolation.level": "read_uncommitted",
}
_TUNING = {
    "fetch.message.max.bytes": str(64 * 1024),
    "fetch.wait.max.ms": "10",
    "queued.min.messages": "1",
}
# The client reports it under the code of a reset that is not wanted; only the text holds the cause.
_TRUNCATED = KafkaError(KafkaError._LOG_TRUNCATION).str()
_EPOCH_END = re.compile(r"broker end offset is (?P<end>\d+)")


def lost_tails(log: KafkaTopics, marks: Mapping[Partition, Iterable[EpochMark]]) -> tuple[LostTail, ...]:
    """The marks whose records the log has lost otherwise than by retention or compaction."""
    present = log.leader_epochs(marks)
    # A leader cuts nothing off while it leads: mostly this one request tells.
    doubtful = {
        partition: [each for epoch, each in last_by_epoch.items() if epoch != present[partition]]
        for partition, found in marks.items()
        if (last_by_epoch := {each.epoch: each for each in sorted(found)})
    }
    lost: list[LostTail] = []
    while asked := {partition: found.pop() for partition, found in doubtful.items() if found}:
        lost += _validated(log.spec, asked)
    return tuple(sorted(lost, key=lambda each: (each.partition, each.mark)))


def _validated(spec: KafkaLogSpec, asked: Mapping[Partition, EpochMark]) -> list[LostTail]:
    """Let the client compare one mark of each partition with its leader's epochs."""
    lost: list[LostTail] = []
    waiting = {(partition.topic, partition.number): partition for partition in asked}
    deadline = time.monotonic() + CALL_SECONDS_MAX
    consumer = Consumer({**_TUNING, **reading_settings(spec), **_SETTINGS}, logger=QuietLog(logger))
    try:
        consumer.assign(
            [TopicPartition(each.topic, each.number, mark.end, leader_epoch=mark.epoch) for each, mark in asked.items()]
        )
        while waiting:
            event = consumer.poll(_POLL_SECONDS)
            if event is not None and _is_answer(event, spec.bootstrap):
                partition = waiting.pop((event.topic() or "", event.partition() or 0), None)
                if partition is None:
                    continue
                consumer.pause([TopicPartition(partition.topic, partition.number)])
                text = _truncation(event)
                if text is not None:
                    found = _EPOCH_END.search(text)
                    lost.append(LostTail(partition, asked[partition], int(found["end"]) if found else None))
            if time.monotonic() > deadline:
                names = ", ".join(map(str, sorted(waiting.values())))
                raise TransientError(f"Kafka at {spec.bootstrap} does not answer about the leader epochs of {names}")
    except KafkaException as error:
        raise error_of(fault_of(error), spec.bootstrap, "leader epochs") from error
    finally:
        consumer.close()
    return lost


def _is_answer(event: Message, bootstrap: str) -> bool:
    """Whether the event ends the wait for its partition: a record, the end of the log, or a reset for any cause."""
    error = event.error()
    if error is None or error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
        return True
    if error.code() != UNUSED_GROUP_DENIED and (not error.retriable() or error.fatal()):
        raise error_of(fault_of(error), bootstrap, f"topic {event.topic()}")
    return False


def _truncation(event: Message) -> str | None:
    """What the client says of a log that was cut; None for other resets: retention took what comes after the mark."""
    error = event.error()
    return None if error is None or _TRUNCATED not in error.str() else error.str()
