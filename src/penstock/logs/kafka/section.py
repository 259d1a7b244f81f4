"""Kafka in a job file: checks of the section `log.kafka`.

The checks of client settings and security serve every section that has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.job.faults import KeyPath, key_text
from penstock.job.reader import SpecReader, known_keys
from penstock.job.sections import LogSection, complete_topics
from penstock.job.spec import JobSpec, KafkaLogSpec, KafkaSecurity
from penstock.logs.kafka.security import OWNED_SETTINGS, SECURITY_SETTINGS

AT: KeyPath = ("log", "kafka")


class KafkaLogSection(LogSection[KafkaLogSpec]):
    name = "kafka"
    spec = KafkaLogSpec
    shared = True

    def complete(self, log: KafkaLogSpec, job: JobSpec, reader: SpecReader) -> KafkaLogSpec:
        check_client(log.client_settings, AT, OWNED_SETTINGS, reader)
        check_security(log.security, (*AT, "security"), reader)
        completed: KafkaLogSpec = complete_topics(log, AT, reader)
        return replace(completed, group=log.group or job.name)


def check_client(settings: Mapping[str, str], section: KeyPath, owned: Mapping[str, str], reader: SpecReader) -> None:
    """Note settings under `client` that Penstock or another key decides; librdkafka refuses what it does not know."""
    for name in settings:
        reason = f"{key_text((*section, 'security'))} states it" if name in SECURITY_SETTINGS else owned.get(name)
        if reason is not None:
            reader.note((*section, "client", name), f"cannot be set here: {reason}", on_key=True)


def check_security(security: KafkaSecurity | None, at: KeyPath, reader: SpecReader) -> None:
    """Note keys that the protocol lacks or has no use for."""
    if security is None or reader.misstates(*at, "protocol"):
        return
    protocol = security.protocol
    for name in known_keys(KafkaSecurity):
        stated, sasl = reader.has(*at, name), name.startswith("sasl")
        used = protocol.startswith("SASL") if sasl else protocol.endswith("SSL") or name == "protocol"
        if stated and not used:
            reader.note((*at, name), f"has no meaning with protocol {protocol}", "remove it", on_key=True)
        if sasl and used and not stated:
            reader.note((*at, name), f"required key is missing: protocol {protocol} needs it")
    if reader.has(*at, "ssl_certificate_path") != reader.has(*at, "ssl_key_path"):
        reader.note(at, "ssl_certificate_path and ssl_key_path need each other", on_key=True)
