"""What an error of a transactional producer means for whoever publishes."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import KafkaError, Message

from penstock.errors import FencedError, PenstockError, UserError
from penstock.logs.kafka.faults import Fault, error_of
from penstock.publish.output import PublishBucket
from penstock.publish.spec import PublishSpec

KEY_CHARACTERS_SHOWN_MAX = 200
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""Of records whose transaction had failed before they were sent; its commit says why."""
_DENIED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


@dataclass(slots=True)
class Reports:
    """What librdkafka tells of records that were not delivered: the first failure is the cause of the others."""

    undelivered: KafkaError | None = None
    too_large: UserError | None = None

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None or self.undelivered is not None or error.code() in _PURGED:
            return
        self.undelivered = error
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self.too_large = too_large(message.topic() or "", message.key() or b"", message.value() or b"", error)


def too_large(topic: str, key: str | bytes, value: str | bytes, error: KafkaError) -> UserError:
    name = key if isinstance(key, str) else key.decode(errors="replace")
    return UserError(
        f"a record of {len(key) + len(value)} bytes is too large for topic {topic}",
        detail=f"{error.str()}; its key is {name[:KEY_CHARACTERS_SHOWN_MAX]}",
        hint="raise max.message.bytes of the topic",
    )


def publish_error(cause: Fault, spec: PublishSpec, bootstrap: str, bucket: PublishBucket) -> PenstockError:
    """The error to raise for a transaction that failed for this cause."""
    if cause.code in FENCED:
        return FencedError(
            f"another producer publishes {bucket}",
            detail=cause.text,
            hint="it took over; two jobs of one name cannot publish to the same cluster",
        )
    if cause.code in _DENIED:
        return UserError(
            f"not allowed: publishing {bucket} to topic {spec.topic}",
            detail=cause.text,
            hint=f"grant Write and Describe on {spec.topic} and {spec.positions_topic} (there Read too), "
            f"and on the transactional ids that begin with penstock/{bucket.job}/",
        )
    if cause.code in _MISSING:
        return UserError(
            f"topic {spec.topic} or {spec.positions_topic} has gone from {bootstrap}",
            detail=cause.text,
            hint="create it again; what was published to it is not sent again",
        )
    return error_of(cause, bootstrap, f"publishing {bucket} to topic {spec.topic}")
