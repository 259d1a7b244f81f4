"""Kafka in a job file: what cannot be right under `log.kafka`.

The checks of client settings and security serve every section that has them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from penstock.job.faults import KeyPath, key_text, nearest
from penstock.job.reader import Reader
from penstock.job.sections import LogSection, complete_topics
from penstock.job.spec import JobSpec, KafkaLogSpec, KafkaSecurity
from penstock.logs.kafka.security import OWNED_SETTINGS, SECURITY_PREFIXES

AT: KeyPath = ("log", "kafka")

CLIENT_NUMBERS = frozenset({
    "connections.max.idle.ms", "fetch.max.bytes", "fetch.min.bytes", "max.partition.fetch.bytes", "metadata.max.age.ms",
    "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.max.ms", "retry.backoff.ms",
    "socket.connection.setup.timeout.ms",
})  # fmt: skip
CLIENT_WORDS: dict[str, tuple[str, ...]] = {
    "check.crcs": ("true", "false"),
    "client.dns.lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "client.id": (),
    "client.rack": (),
    "ssl.endpoint.identification.algorithm": ("https", "none"),
}
"""Settings with words; an empty tuple allows any text."""


class KafkaLogSection(LogSection[KafkaLogSpec]):
    name = "kafka"
    phrase = "a Kafka cluster"
    spec = KafkaLogSpec
    shared = True

    def complete(self, log: KafkaLogSpec, job: JobSpec, reader: Reader) -> KafkaLogSpec:
        check_client(log.client_settings, AT, CLIENT_NUMBERS, CLIENT_WORDS, OWNED_SETTINGS, reader)
        check_security(log.security, (*AT, "security"), reader)
        completed: KafkaLogSpec = complete_topics(log, AT, reader)
        return replace(completed, group=log.group or job.name)


def check_client(
    settings: Mapping[str, str],
    section: KeyPath,
    numbers: Collection[str],
    words: Mapping[str, tuple[str, ...]],
    forbidden: Mapping[str, str],
    reader: Reader,
) -> None:
    """Note what is wrong under `client` of a section with security of its own; `forbidden` gives the reasons."""
    known = sorted({*numbers, *words})
    for name, value in settings.items():
        at = (*section, "client", name)
        if name in numbers:
            if not re.fullmatch(r"[0-9]{1,10}", value):
                reader.note(at, "expected a whole number")
        elif name in words:
            if words[name] and value not in words[name]:
                reader.note(at, f"expected one of {', '.join(words[name])}")
        elif name in forbidden:
            reader.note(at, f"cannot be set here: {forbidden[name]}", on_key=True)
        elif name.startswith(("ssl.", *SECURITY_PREFIXES)):
            own = key_text((*section, "security"))
            reader.note(at, f"cannot be set here: security has its own section, {own}", on_key=True)
        else:
            hint = nearest(name, known) or f"known: {', '.join(known)}"
            reader.note(at, "is not a setting that can be made here", hint, on_key=True)


def check_security(security: KafkaSecurity | None, at: KeyPath, reader: Reader) -> None:
    """Note keys that the protocol lacks or has no use for."""
    if security is None or reader.misstates(*at, "protocol"):
        return
    protocol = security.protocol
    for name in ("sasl_mechanism", "sasl_username", "sasl_password"):
        stated, needed = reader.has(*at, name), protocol.startswith("SASL")
        if stated and not needed:
            reader.note((*at, name), f"needs a SASL protocol, not {protocol}", "protocol: SASL_SSL", on_key=True)
        if needed and not stated:
            reader.note((*at, name), f"required key is missing: protocol {protocol} needs it")
    for name in ("ssl_ca_path", "ssl_certificate_path", "ssl_key_path", "ssl_key_password"):
        if reader.has(*at, name) and not protocol.endswith("SSL"):
            reader.note((*at, name), f"needs a protocol with SSL, not {protocol}", on_key=True)
    for name, other in (
        ("ssl_certificate_path", "ssl_key_path"),
        ("ssl_key_path", "ssl_certificate_path"),
        ("ssl_key_password", "ssl_key_path"),
    ):
        if reader.has(*at, name) and not reader.has(*at, other):
            reader.note((*at, name), f"needs {other} beside it", on_key=True)
