"""Whether a log still has the records that were read from it, by the epochs of their leaders.

A log that lost its tail in an unclean election and grew again shows nothing in its bounds. Its leader knows where each
epoch ended; librdkafka asks it for that, before it fetches from an offset that is assigned with an epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, Message, TopicPartition

from penstock.errors import TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.admin import CALL_SECONDS_MAX
from penstock.logs.kafka.first_events import first_events
from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import EpochMark, LostTail, Partition

_SETTINGS = {
    "auto.offset.reset": "error",
    # Any record tells that the offset before it was found valid, also one of an aborted transaction.
    "isolation.level": "read_uncommitted",
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
    places = {
        each: TopicPartition(each.topic, each.number, mark.end, leader_epoch=mark.epoch) for each, mark in asked.items()
    }
    answers = dict(first_events(spec, _SETTINGS, places, CALL_SECONDS_MAX))
    if silent := sorted(asked.keys() - answers.keys()):
        names = ", ".join(map(str, silent))
        raise TransientError(f"Kafka at {spec.bootstrap} does not answer about the leader epochs of {names}")
    lost: list[LostTail] = []
    for partition, event in answers.items():
        text = _truncation(event)
        if text is not None:
            found = _EPOCH_END.search(text)
            lost.append(LostTail(partition, asked[partition], int(found["end"]) if found else None))
    return lost


def _truncation(event: Message) -> str | None:
    """What the client says of a log that was cut; None for other resets: retention took what comes after the mark."""
    error = event.error()
    return None if error is None or _TRUNCATED not in error.str() else error.str()
