"""The positions of the table, shown as offsets of a consumer group, so that every lag tool works.

Nobody reads them back as truth (RULES P5): what cannot be mirrored is reported and the job goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

from penstock.log.faults import Fault, fault_of
from penstock.log.kafka import KafkaLog
from penstock.log.offsets import Partition

_REASONS = {
    KafkaError.UNKNOWN_MEMBER_ID: "somebody consumes with this group: its offsets belong to its members",
    KafkaError.NON_EMPTY_GROUP: "somebody consumes with this group: its offsets belong to its members",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "not allowed to use this group: grant Read on it",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "not allowed to read this topic: grant Read on it",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the topic is gone",
}


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What became of the positions: those that moved the group, and why others did not; equal ones are in neither."""

    moved: Mapping[Partition, int] = field(default_factory=dict)
    refused: Mapping[Partition, str] = field(default_factory=dict)


def mirror(log: KafkaLog, group: str, positions: Mapping[Partition, int]) -> MirrorReport:
    """Move the group's offsets up to the positions, never down; TransientError if the broker does not answer."""
    found = _committed(log, group, positions)
    if isinstance(found, Fault):
        return _all_refused(log, group, positions, found)
    refused = {
        each: f"the group is already at {found[each]}"
        for each, position in positions.items()
        if found.get(each, 0) > position
    }
    moving = {
        each: position for each, position in positions.items() if each not in refused and found.get(each) != position
    }
    if not moving:
        return MirrorReport(refused=refused)
    request = [TopicPartition(each.topic, each.number, position) for each, position in moving.items()]
    answer = _ask(log, group, "alter_consumer_group_offsets", request)
    if isinstance(answer, Fault):
        denied = _all_refused(log, group, moving, answer)
        return MirrorReport(refused={**refused, **denied.refused})
    errors = {(each.topic, each.partition): each.error for each in answer if each.error is not None}
    failed = {
        each: _reason(fault_of(errors[each.topic, each.number]))
        for each in moving
        if (each.topic, each.number) in errors
    }
    moved = {each: position for each, position in moving.items() if each not in failed}
    return MirrorReport(moved=moved, refused={**refused, **failed})


def mirrored(log: KafkaLog, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The offsets that the group has now; a partition without one is absent."""
    found = _committed(log, group, partitions)
    if isinstance(found, Fault):
        raise log.admin.error(found, f"consumer group {group}")
    return found


def _committed(log: KafkaLog, group: str, partitions: Iterable[Partition]) -> dict[Partition, int] | Fault:
    wanted = {(each.topic, each.number): each for each in partitions}
    if not wanted:
        return {}
    request = [TopicPartition(topic, number) for topic, number in wanted]
    answer = _ask(log, group, "list_consumer_group_offsets", request)
    if isinstance(answer, Fault):
        return answer
    # Kafka answers a negative offset where the group has none.
    return {
        wanted[each.topic, each.partition]: each.offset for each in answer if each.error is None and each.offset >= 0
    }


def _ask(log: KafkaLog, group: str, method: str, request: list[TopicPartition]) -> list[TopicPartition] | Fault:
    wanted = [ConsumerGroupTopicPartitions(group, request)]
    results = log.admin.try_each(lambda client, seconds: getattr(client, method)(wanted, request_timeout=seconds))
    result = results[group]
    if isinstance(result, Fault):
        return result
    answered: list[TopicPartition] = result.topic_partitions
    return answered


def _all_refused(log: KafkaLog, group: str, positions: Iterable[Partition], fault: Fault) -> MirrorReport:
    if fault.code not in _REASONS:
        raise log.admin.error(fault, f"consumer group {group}")
    return MirrorReport(refused=dict.fromkeys(positions, _reason(fault)))


def _reason(fault: Fault) -> str:
    return _REASONS.get(fault.code, f"{fault.text} ({fault.name})")
