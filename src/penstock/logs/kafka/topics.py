"""A Kafka cluster as a log: its partitions with their identity, what they hold now, and where reading begins."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import IsolationLevel, KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource, ListOffsetsResultInfo, OffsetSpec, ResourceType, TopicDescription

from penstock.errors import TransientError, UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.batches import RECORD_BYTES_MAX
from penstock.logs.kafka.admin import CALL_SECONDS_MAX, BoundedAdmin
from penstock.logs.kafka.faults import TOPIC_DENIED, KafkaFault, unknown_topic
from penstock.logs.log import Bounds, Partition, start_offset

UNKNOWN_SECONDS_MAX = 2.0
UNKNOWN_PAUSE_SECONDS = 0.2

_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
_LEADER_MOVED = (KafkaError.FENCED_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION)
_INTERNAL_PREFIX = "__"
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class KafkaTopics:
    """The part of a `Log` that an admin client can answer, for the topics of one job; used by one thread."""

    def __init__(self, spec: KafkaLogSpec, call_seconds_max: float = CALL_SECONDS_MAX) -> None:
        self.spec = spec
        self._pattern = _compiled(spec.topic_pattern)
        self.admin = BoundedAdmin(spec, call_seconds_max)

    def partitions(self) -> tuple[Partition, ...]:
        described = self._described_surely() if self._pattern is None else self.describe(self._topic_names())
        return tuple(
            sorted(
                Partition(topic, url_safe(description.topic_id), partition.id)
                for topic, description in described.items()
                if description is not None and not (self._pattern and description.is_internal)
                for partition in description.partitions
            )
        )

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        described = self.describe(sorted(set(topics)))
        return {name: url_safe(topic.topic_id) for name, topic in described.items() if topic is not None}

    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, Bounds]:
        asked = tuple(partitions)
        # The beginning is read first: both only grow, so no end can come out below its beginning.
        firsts, ends = self._listed(asked, _EARLIEST), self._listed(asked, _LATEST)
        return {key: Bounds(firsts[key].offset, max(firsts[key].offset, ends[key].offset)) for key in asked}

    def leader_epochs(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        return {key: listed.leader_epoch for key, listed in self._listed(tuple(partitions), _LATEST).items()}

    def compacted(self, topic: str) -> bool | None:
        settings = self.settings(topic)
        return None if settings is None else "compact" in settings["cleanup.policy"]

    def retention_seconds(self, topic: str) -> float | None:
        settings = self.settings(topic)
        if settings is None or "delete" not in settings["cleanup.policy"] or int(settings["retention.ms"]) < 0:
            return None
        return int(settings["retention.ms"]) / 1000

    def record_bytes_max(self, topic: str) -> int:
        """The limit for a record as it is sent; Kafka's default if this client may not read it."""
        settings = self.settings(topic)
        return RECORD_BYTES_MAX if settings is None else int(settings["max.message.bytes"])

    def settings(self, topic: str) -> dict[str, str] | None:
        """The configuration of a topic; None if this client may not read it."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        results = self.admin.try_each(
            lambda client, seconds: client.describe_configs([resource], request_timeout=seconds)
        )
        [result] = results.values()
        if not isinstance(result, KafkaFault):
            return {name: str(entry.value) for name, entry in result.items()}
        if result.code in TOPIC_DENIED:
            return None
        if result.code in _MISSING:
            raise unknown_topic(topic, self.spec.bootstrap, self.admin.topic_names())
        raise self.admin.error(result, f"the configuration of topic {topic}")

    def start_offsets(
        self, partitions: Iterable[Partition], bounds: Mapping[Partition, Bounds]
    ) -> dict[Partition, int]:
        return {partition: start_offset(self.spec.start, partition, bounds[partition]) for partition in partitions}

    def close(self) -> None:
        self.admin.close()

    def _topic_names(self) -> list[str]:
        if self._pattern is None:
            return sorted(set(self.spec.topics))
        names = self.admin.topic_names()
        return sorted(name for name in names if self._pattern.fullmatch(name) and not name.startswith(_INTERNAL_PREFIX))

    def _described_surely(self) -> dict[str, TopicDescription | None]:
        """The named topics' descriptions; UserError for one that is still unknown after a moment."""
        # A broker may learn of a new topic a little after its creation was acknowledged.
        deadline = time.monotonic() + UNKNOWN_SECONDS_MAX
        while True:
            described = self.describe(self._topic_names())
            unknown = [topic for topic, description in described.items() if description is None]
            if not unknown:
                return described
            if time.monotonic() > deadline:
                raise unknown_topic(unknown[0], self.spec.bootstrap, self.admin.topic_names())
            time.sleep(UNKNOWN_PAUSE_SECONDS)

    def describe(self, topics: list[str]) -> dict[str, TopicDescription | None]:
        """The topics' descriptions, None for one that does not exist."""
        if not topics:
            return {}
        collection = TopicCollection(topics)
        results = self.admin.try_each(
            lambda client, seconds: client.describe_topics(collection, request_timeout=seconds)
        )
        described: dict[str, TopicDescription | None] = {}
        for topic, result in results.items():
            if not isinstance(result, KafkaFault):
                described[topic] = result
            elif result.code in _MISSING:
                described[topic] = None
            else:
                raise self.admin.error(result, f"topic {topic}")
        return described

    def _listed(self, partitions: tuple[Partition, ...], which: OffsetSpec) -> dict[Partition, ListOffsetsResultInfo]:
        if not partitions:
            return {}
        answers = self._ask_offsets(partitions, which)
        if any(isinstance(answer, KafkaFault) and answer.code in _LEADER_MOVED for answer in answers.values()):
            # The client asks the leaders that it remembers, and looks for others only when topics are described.
            self.describe(sorted({partition.topic for partition in partitions}))
            answers = self._ask_offsets(partitions, which)
        return {key: self._answer(key, answers[key.topic, key.number]) for key in partitions}

    def _ask_offsets(
        self, partitions: tuple[Partition, ...], which: OffsetSpec
    ) -> dict[tuple[str, int], ListOffsetsResultInfo | KafkaFault]:
        request = {TopicPartition(partition.topic, partition.number): which for partition in partitions}
        results = self.admin.try_each(
            lambda client, seconds: client.list_offsets(
                request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=seconds
            )
        )
        return {(key.topic, key.partition): result for key, result in results.items()}

    def _answer(self, partition: Partition, result: ListOffsetsResultInfo | KafkaFault) -> ListOffsetsResultInfo:
        if not isinstance(result, KafkaFault):
            return result
        if result.code in _MISSING:
            raise TransientError(
                f"partition {partition} does not exist at {self.spec.bootstrap}",
                detail=result.text,
                hint="the topic was deleted or is being created; its id is checked before anything is written",
            )
        raise self.admin.error(result, f"partition {partition}")


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(f"topic_pattern {pattern} is not a regular expression", detail=str(error)) from None


def url_safe(topic_id: object) -> str:
    """The id in the alphabet of Kafka's own tools: the client's has `/` and `+`, which file names cannot hold."""
    return str(topic_id).replace("/", "_").replace("+", "-")
