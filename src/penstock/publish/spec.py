"""Where a job publishes the rows of its table, and in which format; a kind of table puts it into its own section."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from penstock.errors import UserError
from penstock.job.faults import KeyPath
from penstock.job.reader import SpecReader
from penstock.job.spec import JobSpec, KafkaLogSpec, LogSpec
from penstock.job.texts import TOPIC_NAME, servers
from penstock.job.values import Key, Parsed, Settings, positive, within
from penstock.logs.kafka.settings import check_client

PublishFormat: TypeAlias = Literal["opentsdb", "json"]
Topic: TypeAlias = Annotated[str, TOPIC_NAME]
DEFAULT_POSITIONS_TOPIC = "__penstock_published"
READER_SETTINGS = frozenset({"check.crcs", "fetch.max.bytes", "fetch.min.bytes", "max.partition.fetch.bytes"})
"""Client settings that producers do not accept."""


@dataclass(frozen=True, slots=True)
class PublishSpec:
    """The topic and its cluster."""

    topic: Topic
    format: PublishFormat = "opentsdb"
    bootstrap: Annotated[str | None, Parsed(servers)] = None
    """None: the cluster of the log."""
    client_settings: Annotated[Settings | None, Key("client")] = None
    """None: those of the log in the same cluster, none in another."""
    positions_topic: Topic = DEFAULT_POSITIONS_TOPIC
    buckets: Annotated[int, within(positive, "more than 256: each has a producer of its own", most=256)] = 8
    """How many producers share the rows; fixed as long as the table exists."""

    def cluster(self, log: LogSpec) -> KafkaLogSpec:
        """Connection settings of the topic. Credentials of the log's cluster are never sent to another one."""
        topics = (self.topic, self.positions_topic)
        if self.bootstrap is not None:
            return KafkaLogSpec(self.bootstrap, topics=topics, client_settings=self.client_settings or {})
        if not isinstance(log, KafkaLogSpec):
            raise UserError("the job does not read Kafka, and publish states no bootstrap")
        settings = log.client_settings if self.client_settings is None else self.client_settings
        of_producers = {name: value for name, value in settings.items() if name not in READER_SETTINGS}
        return KafkaLogSpec(log.bootstrap, topics=topics, group=log.group, client_settings=of_producers)


def check_publish(publish: PublishSpec, job: JobSpec, at: KeyPath, reader: SpecReader) -> None:
    """Report faults of the section under this key path, and a job that would read the topic that it publishes to."""
    if publish.topic and publish.topic == publish.positions_topic:
        reader.note((*at, "topic"), "is the topic of the positions: readers would see them among the records")
    if reader.has("log") and not reader.has("log", "kafka") and not reader.has(*at, "bootstrap"):
        reader.note((*at, "bootstrap"), "required key is missing: the job does not read Kafka", "as in kafka-1:9092")
    check_client(publish.client_settings or {}, (*at, "client"), reader)
    log = job.log
    same_cluster = isinstance(log, KafkaLogSpec) and publish.bootstrap in (None, log.bootstrap)
    matches = log.topic_pattern is not None and re.fullmatch(log.topic_pattern, publish.topic or "")
    if publish.topic and same_cluster and (matches or publish.topic in log.topics):
        reader.note((*at, "topic"), "is a topic that the job reads: it would read what it publishes")
