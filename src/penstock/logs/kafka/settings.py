"""Kafka in a job file: checks of the section `log.kafka`, and the librdkafka settings of this and other sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import UserError
from penstock.job.spec import JobSpec, KafkaLogSpec
from penstock.job.topics import complete_topics

if TYPE_CHECKING:
    from penstock.job.faults import KeyPath
    from penstock.job.reader import SpecReader

OWNED_SETTINGS = {
    "group.id": "the consumer group is log.kafka.group",
    "bootstrap.servers": "the brokers are log.kafka.bootstrap",
    "enable.auto.commit": "positions live in the table and are mirrored after each commit",
    "enable.auto.offset.store": "positions live in the table and are mirrored after each commit",
    "auto.offset.reset": "where to begin is log.kafka.start; a lost offset follows on.gap",
    "isolation.level": "Penstock always reads committed records only",
    "key.deserializer": "records are read as bytes, see decode",
    "value.deserializer": "records are read as bytes, see decode",
}
"""Client settings that Penstock decides, and why: another value would break exactly-once or contradict the job file."""


def complete_kafka(log: KafkaLogSpec, job: JobSpec, reader: SpecReader) -> KafkaLogSpec:
    check_client(log.client_settings, ("log", "kafka", "client"), reader)
    return replace(complete_topics(log, reader), group=log.group or job.name)


def check_client(settings: Mapping[str, str], at: KeyPath, reader: SpecReader) -> None:
    """Note client settings that Penstock decides; librdkafka refuses what it does not know."""
    for name in settings.keys() & OWNED_SETTINGS.keys():
        reader.note((*at, name), f"cannot be set here: {OWNED_SETTINGS[name]}", on_key=True)


def librdkafka_settings(spec: KafkaLogSpec) -> dict[str, str]:
    """The settings of a librdkafka client of this log; secrets stay `Secret`, so printing the result hides them."""
    owned = sorted(spec.client_settings.keys() & OWNED_SETTINGS.keys())
    if owned:
        raise UserError(
            f"client settings that Penstock decides itself: {', '.join(owned)}",
            hint="remove them; bootstrap and group have their own keys in the job file",
        )
    return {**spec.client_settings, "bootstrap.servers": spec.bootstrap}


def reading_settings(spec: KafkaLogSpec) -> dict[str, str]:
    """The settings of a consumer that joins no group and commits nothing; clusters with ACLs need the group's name."""
    return {
        **librdkafka_settings(spec),
        "group.id": spec.group or "penstock",
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
        "isolation.level": "read_committed",
    }
