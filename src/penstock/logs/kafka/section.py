"""Kafka in a job file: checks of the section `log.kafka`, and of client settings in other sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.job.faults import KeyPath
from penstock.job.reader import SpecReader
from penstock.job.spec import JobSpec, KafkaLogSpec
from penstock.job.topics import complete_topics
from penstock.logs.kafka.settings import OWNED_SETTINGS


def complete_kafka(log: KafkaLogSpec, job: JobSpec, reader: SpecReader) -> KafkaLogSpec:
    check_client(log.client_settings, ("log", "kafka", "client"), reader)
    return replace(complete_topics(log, reader), group=log.group or job.name)


def check_client(settings: Mapping[str, str], at: KeyPath, reader: SpecReader) -> None:
    """Note client settings that Penstock decides; librdkafka refuses what it does not know."""
    for name in settings.keys() & OWNED_SETTINGS.keys():
        reader.note((*at, name), f"cannot be set here: {OWNED_SETTINGS[name]}", on_key=True)
