"""The part of a job file that says where rows are published; a room puts it into its own section."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args

from penstock.job.checks.topics import reads_topic, topic_name_findings
from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath
from penstock.job.sections.models import JobFile
from penstock.job.sections.scalars import Positive, Settings, Text, one_of
from penstock.job.sections.section import Section, stated
from penstock.logs.kafka.section import (
    CLIENT_NUMBERS,
    CLIENT_WORDS,
    KafkaLogSection,
    SecuritySection,
    bootstrap_findings,
    client_findings,
    security_findings,
    security_spec,
)
from penstock.publish.spec import (
    DEFAULT_POSITIONS_TOPIC,
    PRODUCER_NUMBERS,
    PRODUCER_WORDS,
    LostPositions,
    PublishFormat,
    PublishSpec,
)

BUCKETS_MAX = 256
_FORBIDDEN_CLIENT = {
    "acks": "a record counts once all replicas in sync have it",
    "bootstrap.servers": "the brokers are publish.bootstrap",
    "enable.idempotence": "without it a record could be there twice",
    "isolation.level": "Penstock always reads committed records only",
    "partitioner": "keys find their partitions as with Kafka's Java client",
    "transactional.id": "it is made of the job's name and the bucket",
    "transaction.timeout.ms": "it fits the time that Penstock waits for a transaction",
}


class PublishSection(Section):
    REQUIRED = ("topic",)

    topic: Text = None
    format: Annotated[PublishFormat | None, one_of(get_args(PublishFormat))] = None
    bootstrap: Text = None
    security: SecuritySection | None = None
    positions_topic: Text = None
    buckets: Positive = None
    lost_positions: Annotated[LostPositions | None, one_of(get_args(LostPositions))] = None
    client: Settings = None


def publish_findings(section: PublishSection, document: Document, at: KeyPath) -> Iterator[Finding]:
    """What cannot be right in the section under this key path."""
    for name in ("topic", "positions_topic"):
        stated_name = getattr(section, name)
        if stated_name is not None:
            yield from topic_name_findings(stated_name, (*at, name))
    if section.topic is not None and section.topic == (section.positions_topic or DEFAULT_POSITIONS_TOPIC):
        yield Finding((*at, "topic"), "is the topic of the positions: readers would see them among the records")
    if (section.buckets or 0) > BUCKETS_MAX:
        yield Finding((*at, "buckets"), f"more than {BUCKETS_MAX}: each has a producer of its own")
    if document.has("log") and not document.has("log", KafkaLogSection.name) and not document.has(*at, "bootstrap"):
        yield Finding((*at, "bootstrap"), "required key is missing: the job does not read Kafka", "as in kafka-1:9092")
    yield from bootstrap_findings(section.bootstrap, at)
    numbers, words = CLIENT_NUMBERS | PRODUCER_NUMBERS, {**CLIENT_WORDS, **PRODUCER_WORDS}
    yield from client_findings(section.client, at, numbers, words, _FORBIDDEN_CLIENT)
    if section.security is not None:
        yield from security_findings(section.security, document, (*at, "security"))


def loop_findings(section: PublishSection, file: JobFile, at: KeyPath) -> Iterator[Finding]:
    """Whether the job would read what it publishes."""
    log = file.logs.get(KafkaLogSection.name)
    if section.topic is None or log is None or section.bootstrap not in (None, getattr(log, "bootstrap", None)):
        return
    if reads_topic(log, section.topic):
        yield Finding((*at, "topic"), "is a topic that the job reads: it would read what it publishes")


def publish_spec(section: PublishSection, folder: Path) -> PublishSpec:
    """The spec of a section without a fault; relative paths begin in the folder of the job file."""
    return replace(
        PublishSpec(section.topic or ""),
        **stated(
            format=section.format,
            bootstrap=section.bootstrap,
            security=security_spec(section.security, folder) if section.security is not None else None,
            positions_topic=section.positions_topic,
            buckets=section.buckets,
            lost_positions=section.lost_positions,
            client_settings=section.client,
        ),
    )
