"""The compacted topic with the positions of all buckets: created if absent, checked if present, read once per open.

A bucket's position is always in the partition of the bucket's number: adding partitions moves none.
"""

from __future__ import annotations

import time
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import OffsetSpec

from penstock.errors import TransientError, UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.admin import BoundedAdmin, QuietLog, create_topic, logger
from penstock.logs.kafka.faults import UNUSED_GROUP_DENIED, Fault, error_of, fault_of
from penstock.logs.kafka.security import reading_settings
from penstock.logs.kafka.topics import KafkaTopics
from penstock.publish.output import PublishBucket

PARTITIONS_MIN = 8
STABLE_SECONDS_MAX = 30.0
"""How long other producers' open transactions may hold back reading before it is given up."""
KIND = "positions topic"
_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": "3600000",
    "unclean.leader.election.enable": "false",
}
_READ_AT_ONCE_MAX = 1_000
_READ_SECONDS = 0.2
_FETCH_WAIT_MS = 20
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_LEADER_SECONDS_MAX = 5.0
_LEADER_PAUSE_SECONDS = 0.1
_LEADERLESS = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, UNUSED_GROUP_DENIED)


def open_positions_topic(topics: KafkaTopics, name: str, buckets: int) -> None:
    """Create the topic if need be; UserError if it would lose positions or has too few partitions."""
    if name not in topics.topic_ids([name]):
        create_topic(topics.admin, KIND, name, max(PARTITIONS_MIN, buckets), _SETTINGS)
    partitions = [partition for partition in topics.partitions() if partition.topic == name]
    if len(partitions) < buckets:
        raise UserError(
            f"{KIND} {name} has {len(partitions)} partitions, publish.buckets is {buckets}",
            hint=f"add partitions up to {buckets}: positions stay where they are",
        )
    settings = topics.settings(name) or _SETTINGS
    if settings["cleanup.policy"] != "compact":
        raise UserError(
            f"{KIND} {name} is not compacted: its retention would delete positions",
            detail=f"cleanup.policy is {settings['cleanup.policy']}, must be compact",
            hint="alter it with kafka-configs, or name another topic: publish.positions_topic",
        )


def read_position(
    topics: KafkaTopics, name: str, bucket: PublishBucket, seconds_max: float = STABLE_SECONDS_MAX
) -> bytes | None:
    """The newest committed record of the bucket, up to the end that the partition has now.

    Open transactions of others hold committed reading back; what they hold back may be ours, so it is waited for.
    """
    end = _end(topics.admin, name, bucket.number)
    if end == 0:
        return None
    with closing(_reader(topics.spec)) as reader:
        reader.assign([TopicPartition(name, bucket.number, OFFSET_BEGINNING)])
        return _last_value(reader, topics.spec.bootstrap, name, bucket, end, seconds_max)


def _end(admin: BoundedAdmin, name: str, partition: int) -> int:
    """Where the partition ends, whether or not what is there is committed."""
    request = {TopicPartition(name, partition): _LATEST}
    deadline = time.monotonic() + _LEADER_SECONDS_MAX
    while True:
        [result] = admin.try_each(
            lambda client, seconds: client.list_offsets(
                request, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=seconds
            )
        ).values()
        if not isinstance(result, Fault):
            return int(result.offset)
        if result.code not in _LEADERLESS or time.monotonic() > deadline:
            raise admin.error(result, f"{KIND} {name}")
        # A topic that was just created has its leaders a moment later.
        time.sleep(_LEADER_PAUSE_SECONDS)


def _reader(cluster: KafkaLogSpec) -> Consumer:
    settings = {
        **reading_settings(cluster),
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        # The end of the partition is only known after a fetch that found nothing.
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
    }
    return Consumer(settings, logger=QuietLog(logger))


def _last_value(
    reader: Consumer, bootstrap: str, name: str, bucket: PublishBucket, end: int, seconds_max: float
) -> bytes | None:
    key, result, deadline = bucket.key.encode(), None, time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        for message in reader.consume(_READ_AT_ONCE_MAX, _READ_SECONDS):
            event = message.error()
            if event is None:
                result = message.value() if message.key() == key else result
            elif event.code() == KafkaError._PARTITION_EOF:
                # What comes after the end that was asked for is not ours: older producers are fenced.
                if (message.offset() or 0) >= end:
                    return result
            elif event.code() not in _PASSING:
                raise error_of(fault_of(event), bootstrap, f"{KIND} {name}")
    raise TransientError(
        f"the published position of {bucket} could not be read within {seconds_max:g} s",
        detail=f"{KIND} {name} is not stable up to offset {end}: another transaction is open, or the broker is slow",
    )
