"""Kafka in a job file: the keys under `log.kafka`, what cannot be right there, and how its spec is built.

The checks of a cluster's address, client settings and security serve every section that has them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args

from penstock.job.checks.topics import start_offsets
from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath, key_text, nearest
from penstock.job.sections.log_section import LogSection, Reader
from penstock.job.sections.models import TopicsSection
from penstock.job.sections.scalars import Flag, Hidden, Settings, Text, one_of
from penstock.job.sections.section import Section, stated
from penstock.job.spec import KafkaLogSpec, KafkaSecurity, SaslMechanism, SecurityProtocol
from penstock.logs.kafka.security import OWNED_SETTINGS, SECURITY_PREFIXES

AT: KeyPath = ("log", "kafka")

_SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")

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


class SecuritySection(Section):
    protocol: Annotated[SecurityProtocol | None, one_of(get_args(SecurityProtocol))] = None
    sasl_mechanism: Annotated[SaslMechanism | None, one_of(get_args(SaslMechanism))] = None
    sasl_username: Text = None
    sasl_password: Hidden = None
    ssl_ca_path: Text = None
    ssl_certificate_path: Text = None
    ssl_key_path: Text = None
    ssl_key_password: Hidden = None


class KafkaSection(TopicsSection):
    REQUIRED = ("bootstrap",)
    REMOVED = {"reader": "it was removed: librdkafka reads in every task; remove the key"}  # noqa: RUF012, inherited
    SHARED = True

    bootstrap: Text = None
    transactional: Flag = None
    security: SecuritySection | None = None
    client: Settings = None


class KafkaLogSection(LogSection[KafkaSection]):
    name = "kafka"
    phrase = "a Kafka cluster"
    section = KafkaSection

    def findings(self, section: KafkaSection, document: Document) -> Iterator[Finding]:
        yield from bootstrap_findings(section.bootstrap, AT)
        yield from client_findings(section.client, AT, CLIENT_NUMBERS, CLIENT_WORDS, OWNED_SETTINGS)
        if section.security is not None:
            yield from security_findings(section.security, document, (*AT, "security"))

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


def bootstrap_findings(bootstrap: str | None, at: KeyPath) -> Iterator[Finding]:
    for server in bootstrap.split(",") if bootstrap is not None else ():
        found = _SERVER.fullmatch(server.strip())
        if found is None or not 1 <= int(found[1]) <= 65535:
            yield Finding((*at, "bootstrap"), "expected host:port, several with commas between", "as in kafka-1:9092")
            return


def client_findings(
    client: Mapping[str, str] | None,
    section: KeyPath,
    numbers: Collection[str],
    words: Mapping[str, tuple[str, ...]],
    forbidden: Mapping[str, str],
) -> Iterator[Finding]:
    """What is wrong under `client` of a section with security of its own; `forbidden` gives the reasons."""
    known = sorted({*numbers, *words})
    for name, value in (client or {}).items():
        at = (*section, "client", name)
        if name in numbers:
            if not re.fullmatch(r"[0-9]{1,10}", value):
                yield Finding(at, "expected a whole number")
        elif name in words:
            if words[name] and value not in words[name]:
                yield Finding(at, f"expected one of {', '.join(words[name])}")
        elif name in forbidden:
            yield Finding(at, f"cannot be set here: {forbidden[name]}", on_key=True)
        elif name.startswith(("ssl.", *SECURITY_PREFIXES)):
            own = key_text((*section, "security"))
            yield Finding(at, f"cannot be set here: security has its own section, {own}", on_key=True)
        else:
            hint = nearest(name, known) or f"known: {', '.join(known)}"
            yield Finding(at, "is not a setting that can be made here", hint, on_key=True)


def security_findings(security: SecuritySection, document: Document, at: KeyPath) -> Iterator[Finding]:
    if document.has(*at, "protocol") and security.protocol is None:
        return
    protocol = security.protocol or "PLAINTEXT"
    needed = ("sasl_mechanism", "sasl_username", "sasl_password")
    for name in needed:
        stated = document.has(*at, name)
        if stated and not protocol.startswith("SASL"):
            yield Finding((*at, name), f"needs a SASL protocol, not {protocol}", "protocol: SASL_SSL", on_key=True)
        if not stated and protocol.startswith("SASL"):
            yield Finding((*at, name), f"required key is missing: protocol {protocol} needs it")
    for name in ("ssl_ca_path", "ssl_certificate_path", "ssl_key_path", "ssl_key_password"):
        if document.has(*at, name) and not protocol.endswith("SSL"):
            yield Finding((*at, name), f"needs a protocol with SSL, not {protocol}", on_key=True)
    for name, other in (
        ("ssl_certificate_path", "ssl_key_path"),
        ("ssl_key_path", "ssl_certificate_path"),
        ("ssl_key_password", "ssl_key_path"),
    ):
        if document.has(*at, name) and not document.has(*at, other):
            yield Finding((*at, name), f"needs {other} beside it", on_key=True)
