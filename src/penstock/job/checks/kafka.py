"""What cannot be right inside `log.kafka`: topics, start offsets, client settings and security that contradict.

The checks of a cluster's address, client settings and security serve every section that has them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath, key_text, kind_of, nearest, shown
from penstock.job.sections.models import KafkaSection, SecuritySection
from penstock.job.sections.section import stated
from penstock.job.spec import KafkaSecurity, StartAt

AT: KeyPath = ("log", "kafka")

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,8}")
OFFSET_MAX = 2**63 - 1

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

_FORBIDDEN_CLIENT = {
    "group.id": "the consumer group is log.kafka.group",
    "bootstrap.servers": "the brokers are log.kafka.bootstrap",
    "enable.auto.commit": "positions live in the table and are mirrored after each commit",
    "enable.auto.offset.store": "positions live in the table and are mirrored after each commit",
    "auto.offset.reset": "where to begin is log.kafka.start; a lost offset follows on.gap",
    "isolation.level": "Penstock always reads committed records only",
    "key.deserializer": "records are read as bytes, see decode",
    "value.deserializer": "records are read as bytes, see decode",
}


def kafka_findings(kafka: KafkaSection, document: Document) -> Iterator[Finding]:
    yield from bootstrap_findings(kafka.bootstrap, AT)
    yield from _topic_findings(kafka, document)
    yield from _start_findings(kafka, document)
    yield from client_findings(kafka.client, AT, CLIENT_NUMBERS, CLIENT_WORDS, _FORBIDDEN_CLIENT)
    if kafka.security is not None:
        yield from security_findings(kafka.security, document, (*AT, "security"))


def start_offsets(kafka: KafkaSection) -> StartAt | Mapping[str, Mapping[int, int]] | None:
    """`start` with its short form spelled out; the section has been checked before."""
    start = kafka.start
    if not isinstance(start, dict):
        return start
    if all(isinstance(value, dict) for value in start.values()):
        return {topic: {int(part): offset for part, offset in offsets.items()} for topic, offsets in start.items()}
    only = (kafka.topics or [""])[0]
    return {only: {int(part): offset for part, offset in start.items()}}


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


def _topic_findings(kafka: KafkaSection, document: Document) -> Iterator[Finding]:
    has_topics, has_pattern = (document.has(*AT, "topics"), document.has(*AT, "topic_pattern"))
    if has_topics and has_pattern:
        yield Finding((*AT, "topic_pattern"), "contradicts topics: give one of both", on_key=True)
    if not has_topics and not has_pattern:
        yield Finding((*AT, "topics"), "required key is missing", "name the topics, or give a topic_pattern")
    if kafka.topics is not None and not kafka.topics:
        yield Finding((*AT, "topics"), "names no topic")
    for index, topic in enumerate(kafka.topics or ()):
        at = (*AT, "topics", index)
        yield from topic_name_findings(topic, at)
        if topic in (kafka.topics or ())[:index]:
            yield Finding(at, f"{shown(topic)} is named twice")
    if kafka.topic_pattern is not None and _compiled(kafka.topic_pattern) is None:
        yield Finding((*AT, "topic_pattern"), f"{shown(kafka.topic_pattern)} is no regular expression")
    if kafka.group is not None and len(kafka.group) > 249:
        yield Finding((*AT, "group"), "longer than 249 characters")


def topic_name_findings(topic: str, at: KeyPath) -> Iterator[Finding]:
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        yield Finding(at, f"{shown(topic)} is no topic name", "letters, digits, . _ - up to 249")


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def reads_topic(kafka: KafkaSection, topic: str) -> bool:
    """Whether a topic is among those of the section."""
    pattern = _compiled(kafka.topic_pattern) if kafka.topic_pattern is not None else None
    return topic in (kafka.topics or ()) or (pattern is not None and pattern.fullmatch(topic) is not None)


def _start_findings(kafka: KafkaSection, document: Document) -> Iterator[Finding]:
    at = (*AT, "start")
    if not isinstance(kafka.start, dict):
        return
    if not kafka.start:
        yield Finding(at, "names no partition", "write earliest, latest or {0: 1500}")
        return
    nested = [isinstance(value, dict) for value in kafka.start.values()]
    if all(nested):
        for topic, offsets in kafka.start.items():
            yield from _start_topic_findings(topic, kafka, (*at, topic))
            yield from _offset_findings(offsets, (*at, topic))
    elif any(nested):
        yield Finding(at, "mixes topics and partitions", "write {topic: {partition: offset}}")
    else:
        if document.has(*AT, "topic_pattern") or len(kafka.topics or [""]) != 1:
            yield Finding(at, "several topics: say which", "write {topic: {partition: offset}}")
        yield from _offset_findings(kafka.start, at)


def _start_topic_findings(topic: str, kafka: KafkaSection, at: KeyPath) -> Iterator[Finding]:
    if kafka.topics and topic not in kafka.topics:
        yield Finding(at, "is not among the topics", nearest(topic, kafka.topics), on_key=True)
    pattern = _compiled(kafka.topic_pattern) if kafka.topic_pattern is not None else None
    if pattern is not None and not pattern.fullmatch(topic):
        yield Finding(at, "does not match topic_pattern", on_key=True)


def _offset_findings(offsets: Mapping[str, object], at: KeyPath) -> Iterator[Finding]:
    if not offsets:
        yield Finding(at, "names no partition")
    for partition, offset in offsets.items():
        if not _PARTITION.fullmatch(partition):
            yield Finding((*at, partition), "is no partition number", on_key=True)
        if isinstance(offset, bool) or not isinstance(offset, int):
            yield Finding((*at, partition), f"expected an offset, found {kind_of(offset)}")
        elif not 0 <= offset <= OFFSET_MAX:
            yield Finding((*at, partition), "an offset is a whole number from 0 on")


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
        elif name.startswith(("ssl.", "sasl.", "security.")):
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
