"""What an error of librdkafka means for the job: fix it, try again, or (outside this module) ignore it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from penstock.errors import PenstockError, TransientError, UnreachableError, UserError, did_you_mean

_PASSING_TEXTS = ("transport failure", "disconnected", "timed out", "connection closed", "connection reset")
_CONNECTION_NOISE = re.compile(r"^\S+/\w+: | \(after \d+ms.*")
"""The broker's name, which the error begins with anyway, and durations."""
_GRANTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant Read and Describe on the topic, or Write if the job publishes to it",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant Describe on the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant Describe on the cluster",
}

TOPIC_DENIED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
OUT_OF_RANGE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
"""Errors of a consumer whose offset the log does not have: of its broker, or of its own client."""
UNUSED_GROUP_DENIED = KafkaError.GROUP_AUTHORIZATION_FAILED
"""Errors of a client that may not use its group. Readers join none: only showing positions needs it (RULES P5)."""


@dataclass(frozen=True, slots=True)
class KafkaFault:
    """One error of librdkafka, without its types."""

    code: int
    name: str
    text: str


def fault_of(error: KafkaError | KafkaException) -> KafkaFault:
    kafka_error: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    return KafkaFault(kafka_error.code(), kafka_error.name(), kafka_error.str())


def refused_for_good(fault: KafkaFault) -> bool:
    """Whether the broker (or its certificate) rejected this client, so that waiting longer is useless.

    A broker that dies during the handshake is reported under the same codes and is only down for a while.
    """
    if fault.code not in (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED):
        return False
    return not any(text in fault.text.lower() for text in _PASSING_TEXTS)


def error_of(fault: KafkaFault, bootstrap: str, subject: str, connection: KafkaFault | None = None) -> PenstockError:
    """The error to raise for a failed call about `subject`; `connection` is the last error of the connection."""
    for candidate in (fault, connection):
        if candidate is not None and refused_for_good(candidate):
            return _rejected(candidate, bootstrap)
    if fault.code in _GRANTS:
        return UserError(f"not allowed: {subject}", detail=fault.text, hint=_GRANTS[fault.code])
    if fault.code in (KafkaError._INVALID_ARG, KafkaError.TOPIC_EXCEPTION):
        return UserError(f"Kafka does not accept {subject}", detail=fault.text)
    hint = "check that the broker is up, can be reached from here, and listens with this security protocol"
    if connection is not None:
        reason = _CONNECTION_NOISE.sub("", connection.text)
        detail = f"asked about {subject} ({fault.name})"
        return UnreachableError(f"Kafka at {bootstrap} does not answer: {reason}", detail=detail, hint=hint)
    branch = UnreachableError if fault.code == KafkaError._TIMED_OUT else TransientError
    detail = f"{fault.text} ({fault.name})"
    return branch(f"Kafka at {bootstrap} does not answer about {subject}", detail=detail, hint=hint)


def unknown_topic(topic: str, bootstrap: str, existing: Iterable[str]) -> UserError:
    """The error for a topic that is not there, with the name that was probably meant."""
    hint = did_you_mean(topic, sorted(existing)) or "create the topic, or correct its name in the job file"
    return UserError(f"topic {topic} does not exist on {bootstrap}", hint=hint)


def _rejected(fault: KafkaFault, bootstrap: str) -> UserError:
    if fault.code == KafkaError._SSL:
        primary, hint = f"Kafka at {bootstrap}: no secure connection", "check protocol and certificates in the job file"
    else:
        primary, hint = f"Kafka at {bootstrap} rejects these credentials", "check mechanism, user name and password"
    return UserError(primary, detail=fault.text, hint=hint)
