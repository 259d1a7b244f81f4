"""The two topics of coordination, the log of records and its snapshots: created if absent, checked if present."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import TransientError, UserError
from penstock.logs.kafka.admin import create_topic
from penstock.logs.kafka.topics import KafkaTopics

DEFAULT_TOPIC = "__penstock"
DEFAULT_PARTITIONS = 8
SNAPSHOT_SUFFIX = "_snapshots"
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
_CHECKED = ("cleanup.policy", "message.timestamp.type", "unclean.leader.election.enable")


class MissingTopicError(TransientError):
    """The coordination topic does not exist, not yet or no longer."""


class GrownTopicError(UserError):
    """The topic got another number of partitions, so groups are looked for in the wrong partition."""

    def __init__(self, topic: str, change: str) -> None:
        super().__init__(
            f"coordination topic {topic} got another number of partitions: {change}",
            detail="groups are placed by that number, so it must never change",
            hint="stop every process and name a new coordination topic in all of them: `claims.topic` "
            "(library: `CoordinationOptions(topic=...)`); tables keep their tokens and positions, a group of the "
            "library begins at `start`",
        )


@dataclass(frozen=True, slots=True)
class CoordinationTopic:
    """The log of records as it is now: a recreated topic has another id."""

    name: str
    topic_id: str
    partitions: int

    @property
    def snapshots(self) -> str:
        return f"{self.name}{SNAPSHOT_SUFFIX}"


def open_topic(topics: KafkaTopics, name: str, partitions: int = DEFAULT_PARTITIONS) -> CoordinationTopic:
    """Find the coordination topics, create those that are missing, and refuse settings that break the protocol."""
    snapshots = f"{name}{SNAPSHOT_SUFFIX}"
    existing = _describe(topics, name, snapshots)
    if name not in existing:
        count = existing[snapshots].partitions if snapshots in existing else partitions
        existing[name] = _created(topics, name, count, _LOG_SETTINGS)
    if snapshots not in existing:
        existing[snapshots] = _created(topics, snapshots, existing[name].partitions, _SNAPSHOT_SETTINGS)
    _check(topics, name, {key: _LOG_SETTINGS[key] for key in _CHECKED})
    _check(topics, snapshots, {"cleanup.policy": _SNAPSHOT_SETTINGS["cleanup.policy"]})
    return _matching(existing, name)


def _matching(existing: Mapping[str, CoordinationTopic], name: str) -> CoordinationTopic:
    topic = existing[name]
    count = existing.get(topic.snapshots, topic).partitions
    if count != topic.partitions:
        raise GrownTopicError(name, f"it has {topic.partitions}, {topic.snapshots} has {count}")
    return topic


def describe_topic(topics: KafkaTopics, name: str) -> CoordinationTopic:
    """The topic as it is now; MissingTopicError if the broker does not know it."""
    existing = _describe(topics, name)
    if name not in existing:
        raise MissingTopicError(f"coordination topic {name} does not exist")
    return existing[name]


def _created(topics: KafkaTopics, name: str, partitions: int, settings: Mapping[str, str]) -> CoordinationTopic:
    create_topic(topics.admin, "coordination topic", name, partitions, settings)
    # A broker may learn of it a little later.
    deadline = time.monotonic() + _APPEARS_SECONDS_MAX
    while name not in _describe(topics, name) and time.monotonic() < deadline:
        time.sleep(_APPEARS_POLL_SECONDS)
    return describe_topic(topics, name)


def find_topic(topics: KafkaTopics, name: str) -> CoordinationTopic:
    """The topic for a reader: it is not created."""
    existing = _describe(topics, name, f"{name}{SNAPSHOT_SUFFIX}")
    if name not in existing:
        raise UserError(
            f"there is no coordination topic {name} at {topics.spec.bootstrap}",
            hint="the first process of a job with claims creates it; name another topic with --topic",
        )
    return _matching(existing, name)


def _describe(topics: KafkaTopics, *names: str) -> dict[str, CoordinationTopic]:
    """Those of the topics that exist."""
    return {
        name: CoordinationTopic(name, str(topic.topic_id), len(topic.partitions))
        for name, topic in topics.describe(list(names)).items()
        if topic is not None
    }


def _check(topics: KafkaTopics, name: str, required: Mapping[str, str]) -> None:
    """UserError with everything that is wrong; skipped without permission to read the settings."""
    try:
        settings = topics.settings(name)
    except UserError as error:
        # Just created: another broker may not know it yet.
        raise MissingTopicError(f"coordination topic {name} does not exist", detail=error.primary) from None
    if settings is None:
        return
    faults = [
        f"{key} is {settings.get(key)}, must be {value}"
        for key, value in required.items()
        if settings.get(key) != value
    ]
    retention_ms = int(settings.get("retention.ms", "-1"))
    # Compaction keeps snapshots, whatever the retention.
    if required["cleanup.policy"] == "delete" and 0 <= retention_ms < RETENTION_MS_MIN:
        faults.append(f"retention.ms is {retention_ms}, must be at least {RETENTION_MS_MIN}")
    if faults:
        raise UserError(
            f"the settings of coordination topic {name} break the claims protocol",
            detail="; ".join(faults),
            hint="alter them with kafka-configs, or name another topic: `claims.topic`",
        )
