"""A Kafka topic as an output: one transactional producer per bucket (RULES U1)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.errors import FencedError, PenstockError, TransientError, UserError
from penstock.failpoints import AtStep, noop
from penstock.job.spec import LogSpec
from penstock.logs.kafka.admin import open_client
from penstock.logs.kafka.faults import KafkaFault, error_of, fault_of
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.settings import librdkafka_settings
from penstock.publish.output import OutputRecord, PublishBucket, PublishPosition, decode_position, encode_position
from penstock.publish.positions_topic import open_positions_topic, read_position
from penstock.publish.spec import PublishSpec

INIT_SECONDS_MAX = 30.0
TRANSACTION_SECONDS_MAX = 60.0
"""For one whole transaction; after it the broker aborts a transaction whose process has died."""
ABORT_SECONDS_MAX = 10.0
LINGER_MS = 5
QUEUED_RECORDS_MAX = 100_000
QUEUED_KIB_MAX = 64 * 1024
BATCH_BYTES_MAX = 1_000_000
_POLL_SECONDS = 0.05
KEY_CHARACTERS_SHOWN_MAX = 200
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""Errors of records whose transaction failed before they were sent; its commit states the reason."""
_DENIED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


@dataclass(slots=True)
class Reports:
    """Reports of librdkafka on records that were not delivered: the first failure is the cause of the others."""

    undelivered: KafkaError | None = None
    too_large: UserError | None = None

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None or self.undelivered is not None or error.code() in _PURGED:
            return
        self.undelivered = error
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self.too_large = too_large(message.topic() or "", message.key() or b"", message.value() or b"", error)


class KafkaOutput:
    """Publishes one bucket of a job to a topic; `log` is the cluster unless the spec states another."""

    def __init__(self, spec: PublishSpec, log: LogSpec, bucket: PublishBucket, at_step: AtStep = noop) -> None:
        self._spec = spec
        self._cluster = spec.cluster(log)
        self._bucket = bucket
        self._at_step = at_step
        self._producer: Producer | None = None
        self._reports = Reports()

    def check(self) -> None:
        with closing(KafkaLog(self._cluster)) as log:
            # An unknown topic is an error; settings that may not be read are not.
            log.settings(self._spec.topic)

    def open(self) -> PublishPosition | None:
        self.close()
        with closing(KafkaLog(self._cluster)) as log:
            open_positions_topic(log, self._spec.positions_topic, self._bucket.count)
            try:
                self._producer = self._new_producer(log.record_bytes_max(self._spec.topic))
                self._producer.init_transactions(INIT_SECONDS_MAX)
                # Read after `init_transactions`: an older producer could commit until it was fenced.
                content = read_position(log, self._spec.positions_topic, self._bucket)
                return decode_position(self._bucket, content)
            except KafkaException as error:
                raise self._given_up(error) from None
            except BaseException:
                self.close()
                raise

    def publish(self, records: Sequence[OutputRecord], position: PublishPosition) -> None:
        if self._producer is None:
            raise ValueError("this output is not open")
        deadline = time.monotonic() + TRANSACTION_SECONDS_MAX
        try:
            self._producer.begin_transaction()
            self._send(self._producer, records, position, deadline)
            self._at_step("publish_sent")
            self._producer.commit_transaction(_left(deadline))
            self._at_step("publish_committed")
        except KafkaException as error:
            raise self._given_up(error) from None
        except BaseException:
            self.close()
            raise

    def _send(
        self, producer: Producer, records: Sequence[OutputRecord], position: PublishPosition, deadline: float
    ) -> None:
        for record in records:
            self._produce(producer, self._spec.topic, record, -1, deadline)
        # Last: from here on the transaction blocks every reader of a position in this partition.
        record = OutputRecord(self._bucket.key.encode(), encode_position(self._bucket, position))
        self._produce(producer, self._spec.positions_topic, record, self._bucket.number, deadline)
        # Not `flush`: a fatal error has to end the call before the client gets further records.
        while (waiting := len(producer)) and time.monotonic() < deadline:
            # A record that was queued while its transaction failed is neither sent nor reported.
            failure = _transaction_failure(producer)
            if failure is not None:
                raise failure
            producer.poll(_POLL_SECONDS)
        if self._reports.too_large is not None:
            raise self._reports.too_large
        if self._reports.undelivered is not None:
            raise KafkaException(self._reports.undelivered)
        if waiting:
            raise TransientError(f"{waiting} records of {self._bucket} wait for {self._cluster.bootstrap}")

    def _produce(self, producer: Producer, topic: str, record: OutputRecord, partition: int, deadline: float) -> None:
        while True:
            try:
                producer.produce(topic, record.value, record.key, partition)
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise TransientError(f"records of {self._bucket} wait for {self._cluster.bootstrap}") from None
                producer.poll(_POLL_SECONDS)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise too_large(topic, record.key, record.value, error.args[0]) from None
                raise

    def _given_up(self, error: KafkaException) -> PenstockError:
        """The error to raise, after the transaction is aborted as far as that is possible."""
        # The failure of a record explains most, then that of its transaction, then that of the call.
        failed = _transaction_failure(self._producer) if self._producer is not None else None
        cause = fault_of(self._reports.undelivered or failed or error)
        return publish_error(self._abort() or cause, self._spec, self._cluster.bootstrap, self._bucket)

    def close(self) -> None:
        self._abort()

    def _abort(self) -> KafkaFault | None:
        """Drop the producer; returns the fault if the abort shows that it was fenced.

        If the abort does not reach the broker, the next `open` fences the transaction.
        """
        producer, self._producer = self._producer, None
        if producer is None:
            return None
        try:
            producer.abort_transaction(ABORT_SECONDS_MAX)
        except (KafkaException, SystemError) as error:
            # A fatal error between the reports on two records is the cause of a SystemError.
            cause = error if isinstance(error, KafkaException) else error.__cause__
            fault = fault_of(cause) if isinstance(cause, KafkaException) else None
            # Other faults, such as that no transaction is open, do not matter.
            return fault if fault is not None and fault.code in FENCED else None
        finally:
            producer.purge()
        return None

    def _new_producer(self, record_bytes_max: int) -> Producer:
        self._reports = Reports()
        settings = {
            "linger.ms": LINGER_MS,
            "compression.type": "lz4",
            **librdkafka_settings(self._cluster),
            # A job cannot override the settings below: exactly once, in order, within bounds.
            "transactional.id": self._bucket.transactional_id,
            "transaction.timeout.ms": int(TRANSACTION_SECONDS_MAX * 1000),
            "delivery.timeout.ms": int(TRANSACTION_SECONDS_MAX * 1000),
            "enable.idempotence": True,
            "acks": "all",
            # As in the Java client: other producers choose the same partition for a key.
            "partitioner": "murmur2_random",
            # The broker rejects a batch above the limit of a record, even if none of its records is too large.
            "message.max.bytes": record_bytes_max,
            "batch.size": min(BATCH_BYTES_MAX, record_bytes_max),
            "queue.buffering.max.messages": QUEUED_RECORDS_MAX,
            "queue.buffering.max.kbytes": QUEUED_KIB_MAX,
            "allow.auto.create.topics": False,
            "delivery.report.only.error": True,
            "on_delivery": self._reports.on_delivery,
        }
        return open_client(Producer, settings)


def too_large(topic: str, key: str | bytes, value: str | bytes, error: KafkaError) -> UserError:
    name = key if isinstance(key, str) else key.decode(errors="replace")
    return UserError(
        f"a record of {len(key) + len(value)} bytes is too large for topic {topic}",
        detail=f"{error.str()}; its key is {name[:KEY_CHARACTERS_SHOWN_MAX]}",
        hint="raise max.message.bytes of the topic",
    )


def publish_error(cause: KafkaFault, spec: PublishSpec, bootstrap: str, bucket: PublishBucket) -> PenstockError:
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
            f"topic {spec.topic} or {spec.positions_topic} no longer exists on {bootstrap}",
            detail=cause.text,
            hint="create it again; what was published to it is not sent again",
        )
    return error_of(cause, bootstrap, f"publishing {bucket} to topic {spec.topic}")


def _transaction_failure(producer: Producer) -> KafkaException | None:
    """Why the open transaction has failed; None if it has not.

    The client states the reason only when it refuses a call, and another `begin_transaction` is refused in any case.
    """
    try:
        producer.begin_transaction()
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        return error if reason.txn_requires_abort() or reason.fatal() else None
    return None


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
