"""The compacted topic with the positions of all buckets: created if absent, checked if present, read once per open.

A bucket's position is in the partition with the bucket's number, so added partitions do not move it.
"""

from __future__ import annotations

import time

from confluent_kafka import IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import OffsetSpec

from penstock.errors import TransientError, UserError
from penstock.logs.kafka.admin import BoundedAdmin, create_topic
from penstock.logs.kafka.faults import KafkaFault
from penstock.logs.kafka.log import KafkaLog
from penstock.publish.output import PublishBucket

PARTITIONS_MIN = 8
STABLE_SECONDS_MAX = 30.0
"""How long open transactions of other producers may block reading."""
KIND = "positions topic"
_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": "3600000",
    "unclean.leader.election.enable": "false",
}
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_LEADER_SECONDS_MAX = 5.0
_PAUSE_SECONDS = 0.1
_LEADERLESS = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)


def open_positions_topic(log: KafkaLog, name: str, buckets: int) -> None:
    """Create the topic if it is absent; UserError if it would lose positions or has too few partitions."""
    if name not in log.topic_ids([name]):
        create_topic(log.admin, KIND, name, max(PARTITIONS_MIN, buckets), _SETTINGS)
    partitions = [partition for partition in log.partitions() if partition.topic == name]
    if len(partitions) < buckets:
        raise UserError(
            f"{KIND} {name} has {len(partitions)} partitions, publish.buckets is {buckets}",
            hint=f"add partitions up to {buckets}: positions stay where they are",
        )
    settings = log.settings(name) or _SETTINGS
    if settings["cleanup.policy"] != "compact":
        raise UserError(
            f"{KIND} {name} is not compacted: its retention would delete positions",
            detail=f"cleanup.policy is {settings['cleanup.policy']}, must be compact",
            hint="alter it with kafka-configs, or name another topic: publish.positions_topic",
        )


def read_position(
    log: KafkaLog, name: str, bucket: PublishBucket, seconds_max: float = STABLE_SECONDS_MAX
) -> bytes | None:
    """The newest committed record of the bucket, up to the end that the partition has now.

    Open transactions of other producers block reading of committed records. The position of this bucket may be after
    them, so this waits for their end.
    """
    [partition] = [item for item in log.partitions() if (item.topic, item.number) == (name, bucket.number)]
    end, deadline = _end(log.admin, name, bucket.number), time.monotonic() + seconds_max
    while (bounds := log.bounds([partition])[partition]).end < end:
        if time.monotonic() > deadline:
            raise TransientError(
                f"the published position of {bucket} could not be read within {seconds_max:g} s",
                detail=f"{KIND} {name} is not stable up to offset {end}: another transaction is open",
            )
        time.sleep(_PAUSE_SECONDS)
    key, newest = bucket.key.encode(), None
    for batch in log.records(partition, bounds.first, end) if bounds.first < end else ():
        for record_key, value in zip(*(batch.column(column).to_pylist() for column in ("key", "value")), strict=True):
            newest = value if record_key == key else newest
    return newest


def _end(admin: BoundedAdmin, name: str, partition: int) -> int:
    """The end of the partition, open transactions included."""
    request = {TopicPartition(name, partition): _LATEST}
    deadline = time.monotonic() + _LEADER_SECONDS_MAX
    while True:
        [result] = admin.try_each(
            lambda client, seconds: client.list_offsets(
                request, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=seconds
            )
        ).values()
        if not isinstance(result, KafkaFault):
            return int(result.offset)
        if result.code not in _LEADERLESS or time.monotonic() > deadline:
            raise admin.error(result, f"{KIND} {name}")
        # A topic that was just created has its leaders a moment later.
        time.sleep(_PAUSE_SECONDS)
