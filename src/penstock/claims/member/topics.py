"""The two topics of coordination, the log of records and its snapshots: created if absent, checked if present."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin import ConfigResource, ResourceType

from penstock.errors import TransientError, UserError
from penstock.logs.kafka.admin import BoundedAdmin
from penstock.logs.kafka.creation import create_topic
from penstock.logs.kafka.faults import Fault

DEFAULT_TOPIC = "__penstock"
DEFAULT_PARTITIONS = 8
SNAPSHOT_SUFFIX = "_snapshots"
KIND = "coordination topic"
RETENTION_MS = 7 * 24 * 3600 * 1000
RETENTION_MS_MIN = 3600 * 1000
"""Less would delete records that a member still needs before a snapshot holds them."""
SNAPSHOT_BYTES_MAX = 8 * 1024 * 1024
_APPEARS_SECONDS_MAX = 5.0
_APPEARS_POLL_SECONDS = 0.05

_LOG_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": str(RETENTION_MS),
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
}
_SNAPSHOT_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": "3600000",
    "max.message.bytes": str(SNAPSHOT_BYTES_MAX),
    "unclean.leader.election.enable": "false",
}
Faults = Callable[[Mapping[str, str]], list[str]]

_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


class MissingTopicError(TransientError):
    """The coordination topic does not exist, not yet or no longer."""


@dataclass(frozen=True, slots=True)
class CoordinationTopic:
    """The log of records as it is now: a recreated topic has another id."""

    name: str
    topic_id: str
    partitions: int

    @property
    def snapshots(self) -> str:
        return f"{self.name}{SNAPSHOT_SUFFIX}"


def open_topic(admin: BoundedAdmin, name: str, partitions: int = DEFAULT_PARTITIONS) -> CoordinationTopic:
    """Find the coordination topics, create those that are missing, and refuse settings that break the protocol."""
    if _describe(admin, name) is None:
        create_topic(admin, KIND, name, partitions, _LOG_SETTINGS)
    found = _appeared(admin, name)
    if _describe(admin, found.snapshots) is None:
        create_topic(admin, KIND, found.snapshots, found.partitions, _SNAPSHOT_SETTINGS)
    snapshots = _appeared(admin, found.snapshots)
    if snapshots.partitions != found.partitions:
        raise UserError(
            f"{found.snapshots} has {snapshots.partitions} partitions, {name} has {found.partitions}",
            hint=f"delete {found.snapshots} while no process of this coordination topic runs; it is created again",
        )
    _check(admin, name, _log_faults)
    _check(admin, found.snapshots, _snapshot_faults)
    return found


def describe_surely(admin: BoundedAdmin, name: str) -> CoordinationTopic:
    """The topic as it is now; MissingTopicError if the broker does not know it."""
    found = _describe(admin, name)
    if found is None:
        raise MissingTopicError(f"coordination topic {name} is not there")
    return found


def _appeared(admin: BoundedAdmin, name: str) -> CoordinationTopic:
    """A topic that was just created: a broker may learn of it a little later."""
    deadline = time.monotonic() + _APPEARS_SECONDS_MAX
    while time.monotonic() < deadline:
        found = _describe(admin, name)
        if found is not None:
            return found
        time.sleep(_APPEARS_POLL_SECONDS)
    return describe_surely(admin, name)


def find_topic(admin: BoundedAdmin, name: str) -> CoordinationTopic:
    """The topic for a reader: it is not created."""
    found = _describe(admin, name)
    if found is None:
        raise UserError(
            f"there is no coordination topic {name} at {admin.bootstrap}",
            hint="the first process of a job with claims creates it; name another topic with --topic",
        )
    return found


def _describe(admin: BoundedAdmin, name: str) -> CoordinationTopic | None:
    collection = TopicCollection([name])
    [result] = admin.try_each(
        lambda client, seconds: client.describe_topics(collection, request_timeout=seconds)
    ).values()
    if not isinstance(result, Fault):
        return CoordinationTopic(name, str(result.topic_id), len(result.partitions))
    if result.code in _MISSING:
        return None
    raise admin.error(result, f"coordination topic {name}")


def _check(admin: BoundedAdmin, name: str, faults_of: Faults) -> None:
    """UserError with everything that is wrong; skipped without permission to read the settings."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    [result] = admin.try_each(
        lambda client, seconds: client.describe_configs([resource], request_timeout=seconds)
    ).values()
    if isinstance(result, Fault):
        return
    faults = faults_of({key: str(entry.value) for key, entry in result.items()})
    if faults:
        raise UserError(
            f"the settings of coordination topic {name} break the claims protocol",
            detail="; ".join(faults),
            hint="alter them with kafka-configs, or name another topic: `claims.topic`",
        )


def _log_faults(settings: Mapping[str, str]) -> list[str]:
    found = [
        f"{key} is {settings.get(key)}, must be {wanted}"
        for key, wanted in _LOG_SETTINGS.items()
        if not key.startswith("retention") and settings.get(key) != wanted
    ]
    retention_ms = int(settings.get("retention.ms", "-1"))
    if 0 <= retention_ms < RETENTION_MS_MIN:
        found.append(f"retention.ms is {retention_ms}, must be at least {RETENTION_MS_MIN}")
    return found


def _snapshot_faults(settings: Mapping[str, str]) -> list[str]:
    policy = settings.get("cleanup.policy")
    return [] if policy == "compact" else [f"cleanup.policy is {policy}, must be compact"]
