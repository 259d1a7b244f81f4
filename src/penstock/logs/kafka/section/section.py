"""Kafka in a job file: from its section to its spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from penstock.job.checks.topics import start_offsets
from penstock.job.document import Document
from penstock.job.faults import Finding
from penstock.job.sections.log_section import LogSection, Reader
from penstock.job.sections.section import stated
from penstock.job.spec import KafkaLogSpec, KafkaSecurity
from penstock.logs.kafka.section.checks import kafka_findings
from penstock.logs.kafka.section.models import KafkaSection, SecuritySection


class KafkaLogSection(LogSection[KafkaSection]):
    name = "kafka"
    phrase = "a Kafka cluster"
    section = KafkaSection

    def findings(self, section: KafkaSection, document: Document) -> Iterator[Finding]:
        return kafka_findings(section, document)

    def build(self, section: KafkaSection, reader: Reader) -> KafkaLogSpec:
        topics = tuple(section.topics or ())
        return replace(
            KafkaLogSpec(section.bootstrap or "", topics, section.topic_pattern, group=section.group or reader.job),
            **stated(
                start=start_offsets(section),
                transactional=section.transactional,
                security=security_spec(section.security, reader.folder) if section.security is not None else None,
                client_settings=section.client,
            ),
        )


def security_spec(security: SecuritySection, folder: Path) -> KafkaSecurity:
    """The section as a spec; its relative paths begin in the folder of the job file."""
    values = stated(**{name: getattr(security, name) for name in type(security).model_fields})
    for name in values:
        if name.endswith("_path"):
            values[name] = str(folder / values[name])
    return KafkaSecurity(**values)
