"""What cannot be right in `claims` and `delivery`: options that contradict each other or the protocol."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath, shown
from penstock.job.sections.models import JobFile
from penstock.job.spec import HEARTBEAT_SECONDS_MIN, Delivery

AT: KeyPath = ("claims",)
CLIENT_ID_CHARACTERS_MAX = 255
PARTITIONS_MAX = 1000
WORK_TIMEOUT_SECONDS_MIN = 60.0

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,230}")


def with_claims(file: JobFile) -> bool:
    """Whether the processes of the job share its partitions: by default if it names a group."""
    if file.claims is not None:
        return file.claims.mode != "static"
    return any(log.SHARED and log.group for log in file.logs.values())


def claims_findings(file: JobFile, document: Document) -> Iterator[Finding]:
    if file.delivery is Delivery.AT_MOST_ONCE and not with_claims(file):
        hint = "name log.kafka.group, or write claims: group"
        yield Finding(("delivery",), "at_most_once needs claims: messages are claimed before they are written", hint)
    for name, log in file.logs.items():
        if with_claims(file) and not log.SHARED:
            message = f"log.{name} cannot be shared: the processes of a job meet in a topic of Kafka"
            yield Finding(AT, message, "remove claims, and run one process for the job", on_key=True)
    claims = file.claims
    if claims is None:
        return
    if claims.mode == "static":
        for name in type(claims).model_fields:
            if name != "mode" and document.has(*AT, name):
                yield Finding((*AT, name), "has no meaning with static claims", "remove mode: static", on_key=True)
    if claims.heartbeat is not None and claims.heartbeat < HEARTBEAT_SECONDS_MIN:
        yield Finding((*AT, "heartbeat"), "too short to be kept over a network", f"at least {HEARTBEAT_SECONDS_MIN} s")
    if claims.work_timeout is not None and claims.work_timeout < WORK_TIMEOUT_SECONDS_MIN:
        yield Finding(
            (*AT, "work_timeout"),
            "a batch may take longer without being stuck",
            f"at least {WORK_TIMEOUT_SECONDS_MIN:.0f} s, and longer than the longest Spark task",
        )
    if claims.topic is not None and not _TOPIC.fullmatch(claims.topic):
        yield Finding((*AT, "topic"), f"{shown(claims.topic)} is no topic name", "A-Z a-z 0-9 . _ -")
    if claims.client_id is not None and not 0 < len(claims.client_id) <= CLIENT_ID_CHARACTERS_MAX:
        yield Finding((*AT, "client_id"), f"must have 1 to {CLIENT_ID_CHARACTERS_MAX} characters")
    if (claims.partitions or 0) > PARTITIONS_MAX:
        yield Finding((*AT, "partitions"), f"more than {PARTITIONS_MAX}: every process reads them all")
