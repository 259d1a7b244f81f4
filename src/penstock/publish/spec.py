"""Where a job publishes the rows of its table, and in which format."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeAlias

from penstock.errors import UserError
from penstock.job.spec import KafkaLogSpec, KafkaSecurity, LogSpec
from penstock.job.texts import TOPIC_NAME, servers
from penstock.job.values import Key, Parsed, Part, Settings, positive, within

PublishFormat: TypeAlias = Literal["opentsdb", "json", "avro"]
LostPositions: TypeAlias = Literal["fail", "continue"]
Topic: TypeAlias = Annotated[str, TOPIC_NAME]
DEFAULT_POSITIONS_TOPIC = "__penstock_published"
PRODUCER_SETTINGS = frozenset({"linger.ms", "compression.type"})
"""Client settings that a reader of the topic does not have."""


@dataclass(frozen=True, slots=True)
class PublishSpec:
    """The topic, its cluster, and the settings of the clients."""

    topic: Topic
    format: PublishFormat = "opentsdb"
    bootstrap: Annotated[str | None, Parsed(servers)] = None
    """None: the cluster of the log."""
    security: Annotated[KafkaSecurity | None, Part.SECTION] = None
    """None: as the log's in the same cluster, nothing in another."""
    positions_topic: Topic = DEFAULT_POSITIONS_TOPIC
    buckets: Annotated[int, within(positive, "more than 256: each has a producer of its own", most=256)] = 8
    """How many producers share the rows; fixed for the life of the table."""
    lost_positions: LostPositions = "fail"
    """What to do if the positions topic lost a position that the table remembers."""
    client_settings: Annotated[Settings, Key("client")] = field(default_factory=dict)

    def cluster(self, log: LogSpec) -> KafkaLogSpec:
        """How clients reach the topic. Credentials of the log's cluster never go to another one."""
        topics = (self.topic, self.positions_topic)
        if self.bootstrap is not None:
            security = self.security or KafkaSecurity()
            return KafkaLogSpec(self.bootstrap, topics, security=security, client_settings=self.client_settings)
        if not isinstance(log, KafkaLogSpec):
            raise UserError("the job does not read Kafka, and publish states no bootstrap")
        return KafkaLogSpec(
            log.bootstrap,
            topics,
            group=log.group,
            security=self.security or log.security,
            client_settings={**log.client_settings, **self.client_settings},
        )

    def reading(self, log: LogSpec) -> KafkaLogSpec:
        """How a reader of the topic reaches it."""
        cluster = self.cluster(log)
        settings = {name: value for name, value in cluster.client_settings.items() if name not in PRODUCER_SETTINGS}
        return replace(cluster, topics=(self.topic,), client_settings=settings)
