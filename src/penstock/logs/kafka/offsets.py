"""Reads which offsets of a partition have a record: the records pass through, only their offsets are kept.

Not by the reader of the tasks: `verify` would not notice what that one passes over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import TransientError, UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.admin import QuietLog, logger
from penstock.logs.kafka.faults import UNUSED_GROUP_DENIED, error_of, fault_of
from penstock.logs.kafka.security import reading_settings
from penstock.logs.log import Offsets, Partition, Told

SILENCE_SECONDS_MAX = 30.0
"""How long the broker may say nothing before reading is given up."""
MESSAGES_PER_CALL = 20_000
QUEUED_KIB_MAX = 32 * 1024
_CALL_SECONDS = 0.5
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, UNUSED_GROUP_DENIED)


_SETTINGS = {
    "enable.auto.offset.store": "false",
    # Retention may pass the start while we read: the caller asks for the first offset afterwards.
    "auto.offset.reset": "earliest",
    "queued.max.messages.kbytes": str(QUEUED_KIB_MAX),
}


def open_consumer(spec: KafkaLogSpec, settings: Mapping[str, str] = _SETTINGS) -> Consumer:
    """A consumer that joins no group and commits nothing; UserError for settings that the client does not take."""
    try:
        return Consumer({**reading_settings(spec), **settings}, logger=QuietLog(logger))
    except KafkaException as error:
        raise UserError("Kafka client settings are not accepted", detail=fault_of(error).text) from None


def record_offsets(
    consumer: Consumer, bootstrap: str, partition: Partition, start: int, end: int, told: Told
) -> Offsets:
    """The offsets of all records in `[start, end)`; `told` hears how many more of the range are done, now and then."""
    if start >= end:
        return np.empty(0, np.int64)
    consumer.assign([TopicPartition(partition.topic, partition.number, start)])
    parts: list[Offsets] = []
    done, heard_at = start, time.monotonic()
    try:
        while done < end:
            messages = consumer.consume(MESSAGES_PER_CALL, _CALL_SECONDS)
            offsets, ended = _offsets(messages, bootstrap, partition)
            if offsets or ended:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > SILENCE_SECONDS_MAX:
                raise TransientError(
                    f"Kafka at {bootstrap} gave no record of {partition} for {SILENCE_SECONDS_MAX:g} s",
                    detail=f"offsets [{done}, {end}) were still to be read",
                )
            if offsets:
                parts.append(np.array([each for each in offsets if start <= each < end], np.int64))
            reached = end if ended else min(end, offsets[-1] + 1) if offsets else done
            told(reached - done)
            done = reached
    finally:
        consumer.unassign()
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)


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
