"""The positions of the table, shown as offsets of a consumer group, so that every lag tool works.

They are never read back as truth (RULES P5): what cannot be mirrored is reported and the job goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

from penstock.logs.kafka.faults import KafkaFault, fault_of
from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import Partition

COORDINATOR_SECONDS_MAX = 5.0
COORDINATOR_PAUSE_SECONDS = 0.2

T = TypeVar("T")

_COORDINATOR_AWAY = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)
_REASONS = {
    KafkaError.UNKNOWN_MEMBER_ID: "another program consumes with this group: its offsets belong to its members",
    KafkaError.NON_EMPTY_GROUP: "another program consumes with this group: its offsets belong to its members",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "not allowed to use this group: grant Read on it",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "not allowed to read this topic: grant Read on it",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the topic was deleted",
}


def mirror(log: KafkaTopics, group: str, positions: Mapping[Partition, int]) -> dict[Partition, str]:
    """Move the group's offsets up to the positions, never down; returns why some did not move.

    TransientError if the broker does not answer.
    """
    before = _committed(log, group, positions)
    if isinstance(before, KafkaFault):
        return _all_refused(log, group, positions, before)
    ahead = [partition for partition, to in positions.items() if before.get(partition, 0) > to]
    refused = {partition: f"the group is already at {before[partition]}" for partition in ahead}
    moving = {key: to for key, to in positions.items() if key not in refused and before.get(key) != to}
    faults = _alter(log, group, moving) if moving else {}
    if isinstance(faults, KafkaFault):
        refused |= _all_refused(log, group, moving, faults)
    else:
        places = {(partition.topic, partition.number): partition for partition in moving}
        refused |= {places[place]: _reason(fault) for place, fault in faults.items()}
    return refused


def mirrored(log: KafkaTopics, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The offsets that the group has now; a partition without one is absent."""
    result = _committed(log, group, partitions)
    if isinstance(result, KafkaFault):
        raise log.admin.error(result, f"consumer group {group}")
    return result


def _committed(log: KafkaTopics, group: str, partitions: Iterable[Partition]) -> dict[Partition, int] | KafkaFault:
    places = {(partition.topic, partition.number): partition for partition in partitions}
    if not places:
        return {}
    request = [TopicPartition(topic, number) for topic, number in places]
    answer = _patiently(lambda: log.admin.committed(group, request))
    if isinstance(answer, KafkaFault):
        return answer
    # Kafka answers a negative offset where the group has none.
    return {places[place.topic, place.partition]: place.offset for place in answer if place.offset >= 0}


def _alter(
    log: KafkaTopics, group: str, positions: Mapping[Partition, int]
) -> dict[tuple[str, int], KafkaFault] | KafkaFault:
    """Commit the positions; returns the faults of single partitions, or one for all."""
    places = [TopicPartition(partition.topic, partition.number, at) for partition, at in positions.items()]
    request = [ConsumerGroupTopicPartitions(group, places)]

    def attempt() -> dict[tuple[str, int], KafkaFault] | KafkaFault:
        results = log.admin.try_each(
            lambda client, seconds: client.alter_consumer_group_offsets(request, request_timeout=seconds)
        )
        result = results[group]
        if isinstance(result, KafkaFault):
            return result
        faults = {
            (partition.topic, partition.partition): fault_of(partition.error)
            for partition in result.topic_partitions
            if partition.error is not None
        }
        # Committing the others again is harmless, and simpler than tracking which ones a moving coordinator accepted.
        return next((fault for fault in faults.values() if fault.code in _COORDINATOR_AWAY), faults)

    return _patiently(attempt)


def _patiently(attempt: Callable[[], T | KafkaFault]) -> T | KafkaFault:
    """Try while the group's coordinator starts or moves: after a restart that is normal and short."""
    deadline = time.monotonic() + COORDINATOR_SECONDS_MAX
    while True:
        answer = attempt()
        away = isinstance(answer, KafkaFault) and answer.code in _COORDINATOR_AWAY
        if not away or time.monotonic() > deadline:
            return answer
        time.sleep(COORDINATOR_PAUSE_SECONDS)


def _all_refused(
    log: KafkaTopics, group: str, positions: Iterable[Partition], fault: KafkaFault
) -> dict[Partition, str]:
    if fault.code not in _REASONS:
        raise log.admin.error(fault, f"consumer group {group}")
    return dict.fromkeys(positions, _reason(fault))


def _reason(fault: KafkaFault) -> str:
    return _REASONS.get(fault.code, f"{fault.text} ({fault.name})")
