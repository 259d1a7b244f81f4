"""The two topics of coordination, the log of records and its snapshots: created if absent, checked if present."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin import ConfigResource, ResourceType

from penstock.errors import TransientError, UserError
from penstock.logs.kafka.admin import BoundedAdmin, create_topic
from penstock.logs.kafka.faults import Fault

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

_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


class MissingTopicError(TransientError):
    """The coordination topic does not exist, not yet or no longer."""


class GrownTopicError(UserError):
    """The topic got another number of partitions, so every group is looked for where it is not."""

    def __init__(self, topic: str, found: str) -> None:
        super().__init__(
            f"coordination topic {topic} got another number of partitions: {found}",
            detail="groups are placed by that number, so it must never change",
            hint="stop every process and name a new coordination topic in all of them: `claims.topic` "
            "(library: `CoordinationOptions(topic=...)`); tables keep their tokens and positions, a group of the "
            "library begins where `start` says",
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


def open_topic(admin: BoundedAdmin, name: str, partitions: int = DEFAULT_PARTITIONS) -> CoordinationTopic:
    """Find the coordination topics, create those that are missing, and refuse settings that break the protocol."""
    kept = f"{name}{SNAPSHOT_SUFFIX}"
    known = _describe(admin, name, kept)
    if name not in known:
        count = known[kept].partitions if kept in known else partitions
        known[name] = _created(admin, name, count, _LOG_SETTINGS)
    if kept not in known:
        known[kept] = _created(admin, kept, known[name].partitions, _SNAPSHOT_SETTINGS)
    checked = {key: _LOG_SETTINGS[key] for key in _CHECKED}
    _check(admin, {name: checked, kept: {"cleanup.policy": _SNAPSHOT_SETTINGS["cleanup.policy"]}})
    return _matching(known, name)


def _matching(known: Mapping[str, CoordinationTopic], name: str) -> CoordinationTopic:
    topic = known[name]
    count = known.get(topic.snapshots, topic).partitions
    if count != topic.partitions:
        raise GrownTopicError(name, f"it has {topic.partitions}, {topic.snapshots} has {count}")
    return topic


def describe_surely(admin: BoundedAdmin, name: str) -> CoordinationTopic:
    """The topic as it is now; MissingTopicError if the broker does not know it."""
    found = _describe(admin, name)
    if name not in found:
        raise MissingTopicError(f"coordination topic {name} is not there")
    return found[name]


def _created(admin: BoundedAdmin, name: str, partitions: int, settings: Mapping[str, str]) -> CoordinationTopic:
    create_topic(admin, "coordination topic", name, partitions, settings)
    # A broker may learn of it a little later.
    deadline = time.monotonic() + _APPEARS_SECONDS_MAX
    while time.monotonic() < deadline:
        found = _describe(admin, name)
        if name in found:
            return found[name]
        time.sleep(_APPEARS_POLL_SECONDS)
    return describe_surely(admin, name)


def find_topic(admin: BoundedAdmin, name: str) -> CoordinationTopic:
    """The topic for a reader: it is not created."""
    found = _describe(admin, name, f"{name}{SNAPSHOT_SUFFIX}")
    if name not in found:
        raise UserError(
            f"there is no coordination topic {name} at {admin.bootstrap}",
            hint="the first process of a job with claims creates it; name another topic with --topic",
        )
    return _matching(found, name)


def _describe(admin: BoundedAdmin, *names: str) -> dict[str, CoordinationTopic]:
    """Those of the topics that exist."""
    collection = TopicCollection(list(names))
    results = admin.try_each(lambda client, seconds: client.describe_topics(collection, request_timeout=seconds))
    found = {}
    for name, result in results.items():
        if not isinstance(result, Fault):
            found[name] = CoordinationTopic(name, str(result.topic_id), len(result.partitions))
        elif result.code not in _MISSING:
            raise admin.error(result, f"coordination topic {name}")
    return found


def _check(admin: BoundedAdmin, wanted: Mapping[str, Mapping[str, str]]) -> None:
    """UserError with everything that is wrong; skipped without permission to read the settings."""
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in wanted}
    results = admin.try_each(
        lambda client, seconds: client.describe_configs(list(resources.values()), request_timeout=seconds)
    )
    for name, resource in resources.items():
        result = results[resource]
        if isinstance(result, Fault):
            continue
        settings = {key: str(entry.value) for key, entry in result.items()}
        faults = [
            f"{key} is {settings.get(key)}, must be {expected}"
            for key, expected in wanted[name].items()
            if settings.get(key) != expected
        ]
        retention_ms = int(settings.get("retention.ms", "-1"))
        # Snapshots are kept by compaction, whatever the retention says.
        if wanted[name]["cleanup.policy"] == "delete" and 0 <= retention_ms < RETENTION_MS_MIN:
            faults.append(f"retention.ms is {retention_ms}, must be at least {RETENTION_MS_MIN}")
        if faults:
            raise UserError(
                f"the settings of coordination topic {name} break the claims protocol",
                detail="; ".join(faults),
                hint="alter them with kafka-configs, or name another topic: `claims.topic`",
            )
