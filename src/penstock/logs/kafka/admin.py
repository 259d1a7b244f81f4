"""An admin client whose calls end within a deadline and raise Penstock errors; how Penstock creates its topics."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import PenstockError, UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.faults import TOPIC_DENIED, KafkaFault, error_of, fault_of, refused_for_good
from penstock.logs.kafka.settings import librdkafka_settings

CALL_SECONDS_MAX = 15.0
POLL_SECONDS = 0.05
FIRST_ANSWER_SECONDS_MAX = 3.0
"""Until a broker has answered once: a wrong address is reported soon."""
GRACE_SECONDS = 2.0
"""What a call may take beyond its own request timeout before it is given up."""
GROUP_ASK_SECONDS = 2.0
RECENT_LINES = 10
"""Lines of librdkafka's log that are not repeated."""
RECONNECT_MS = 250
RECONNECT_MS_MAX = 2_000

logger = logging.getLogger("penstock.kafka")

T = TypeVar("T")
K = TypeVar("K")
C = TypeVar("C", AdminClient, Consumer, Producer)
REPLICAS = 3


class BoundedAdmin:
    """Librdkafka's admin client with deadlines, its log in Python's, and its connection errors kept for error texts."""

    def __init__(self, spec: KafkaLogSpec, call_seconds_max: float = CALL_SECONDS_MAX) -> None:
        self.bootstrap = spec.bootstrap
        self._call_seconds_max = call_seconds_max
        self._connection_fault: KafkaFault | None = None
        self._group_readers: dict[str, Consumer] = {}
        self._settings: dict[str, Any] = {
            "reconnect.backoff.ms": RECONNECT_MS,
            "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
            **librdkafka_settings(spec),
            "error_cb": self._on_error,
        }
        self._has_answered = self._answered = self._disconnected = False
        self._client: AdminClient | None = open_client(AdminClient, self._settings)

    def try_each(self, start: Callable[[AdminClient, float], Mapping[K, Future[T]]]) -> dict[K, T | KafkaFault]:
        """Run one request about several resources: each gets a result or its own fault."""
        client = self._open_client()
        seconds = min(self._call_seconds_max, CALL_SECONDS_MAX if self._has_answered else FIRST_ANSWER_SECONDS_MAX)
        deadline = time.monotonic() + seconds + GRACE_SECONDS
        before, self._connection_fault = self._connection_fault, None
        futures = start(client, seconds)
        results: dict[K, T | KafkaFault] = {}
        for key, future in futures.items():
            answer = self._answer(client, future, deadline)
            results[key] = answer
        failed = any(isinstance(result, KafkaFault) for result in results.values())
        answered = not all(isinstance(result, KafkaFault) for result in results.values())
        self._answered |= answered
        self._has_answered |= answered
        if failed and self._connection_fault is None:
            # Librdkafka does not report every failed reconnection: the last error still explains this failure.
            self._connection_fault = before
        return results

    def cluster(self) -> Any:
        """The brokers, and the id that a cluster never changes."""
        [cluster] = self.try_each(
            lambda client, seconds: {0: client.describe_cluster(request_timeout=seconds)}
        ).values()
        if isinstance(cluster, KafkaFault):
            raise self.error(cluster, "the cluster")
        return cluster

    def topic_names(self) -> frozenset[str]:
        """Every topic that this client may see."""
        # The metadata call blocks and ignores rejected credentials, so a cheap request goes before it.
        self.cluster()
        try:
            metadata = self._open_client().list_topics(timeout=self._call_seconds_max)
        except KafkaException as error:
            raise self.error(fault_of(error), "the list of topics") from None
        return frozenset(metadata.topics)

    def committed(self, group: str, partitions: list[TopicPartition]) -> list[TopicPartition] | KafkaFault:
        """The committed offsets of a consumer group, read by a consumer that never joins it.

        Librdkafka's admin request for this dereferences null where the coordinator is still loading (its issue 5040)
        and crashes the process; a consumer has the group handle that the admin client lacks.
        """
        self._open_client()
        reader = self._group_reader(group)
        deadline = time.monotonic() + self._call_seconds_max
        while True:
            seconds = max(POLL_SECONDS, min(GROUP_ASK_SECONDS, deadline - time.monotonic()))
            try:
                return reader.committed(partitions, timeout=seconds)
            except KafkaException as error:
                fault = fault_of(error)
            # A denied group never gets a coordinator: the call only times out, the reason comes as an event.
            event = reader.poll(0)
            reason = None if event is None else event.error()
            if reason is not None and reason.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                return fault_of(reason)
            if fault.code != KafkaError._TIMED_OUT or time.monotonic() >= deadline:
                return fault

    def error(self, fault: KafkaFault, subject: str) -> PenstockError:
        return error_of(fault, self.bootstrap, subject, self._connection_fault)

    def close(self) -> None:
        for reader in self._group_readers.values():
            reader.close()
        self._group_readers.clear()
        # The C client has no close: it ends with its last reference.
        self._client = None

    def _group_reader(self, group: str) -> Consumer:
        if group not in self._group_readers:
            settings = {**self._settings, "group.id": group, "enable.auto.commit": False}
            self._group_readers[group] = open_client(Consumer, settings)
        return self._group_readers[group]

    def _open_client(self) -> AdminClient:
        """The client of the next request: a new one if a connection broke that had worked before.

        A client that lost a broker never asks again for a group's coordinator; one that loses it twice keeps two
        threads busy until the broker is back (librdkafka 2.16, measured: 0.7 cores).
        """
        if self._client is None:
            raise ValueError("this Kafka client is closed")
        self._client.poll(0)
        if self._answered and self._disconnected:
            self._answered = self._disconnected = False
            self._client = open_client(AdminClient, self._settings)
        return self._client

    def _answer(self, client: AdminClient, future: Future[T], deadline: float) -> T | KafkaFault:
        """Serve the client until the future is done, or a fault makes further waiting useless."""
        # The answer comes on a thread of the client's own; its poll would sleep on although the answer is there.
        while not wait([future], POLL_SECONDS).done:
            client.poll(0)
            if self._connection_fault is not None and refused_for_good(self._connection_fault):
                return self._connection_fault
            if time.monotonic() > deadline:
                return KafkaFault(KafkaError._TIMED_OUT, "_TIMED_OUT", "no answer within the bound")
        client.poll(0)
        # Not raised and caught: its traceback would keep this frame alive, and with it a client that was replaced.
        error = future.exception()
        return fault_of(error) if isinstance(error, KafkaException) else future.result()

    def _on_error(self, error: KafkaError) -> None:
        self._disconnected = True
        # "All brokers down" only repeats that the connection before it failed.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._connection_fault = fault_of(error)


def open_client(kind: type[C], settings: dict[str, Any]) -> C:
    """A client of librdkafka, its log in Python's; UserError for settings that it does not accept."""
    try:
        return kind(settings, logger=_QuietLog())
    except KafkaException as error:
        raise UserError("Kafka client settings are not accepted", detail=fault_of(error).text) from None


class _QuietLog:
    """Takes librdkafka's log lines: what fails a call is raised by that call, so a line alone is never an ERROR."""

    def __init__(self) -> None:
        self._recent: deque[str] = deque(maxlen=RECENT_LINES)

    def log(self, level: int, message: str, *arguments: object) -> None:
        text = message % arguments
        # A broker that is away fails every reconnection with the same few texts and other durations.
        core = re.sub(r"\(after \d+ms.*", "", text)
        level = logging.DEBUG if core in self._recent else min(level, logging.WARNING)
        self._recent.append(core)
        logger.log(level, "librdkafka: %s", text)


def create_topic(admin: BoundedAdmin, kind: str, name: str, partitions: int, settings: Mapping[str, str]) -> None:
    """Create a topic with up to three replicas, as the cluster allows, unless another process has created it.

    `kind` names its purpose in errors. A broker may learn of the topic a little later.
    """
    replicas = min(REPLICAS, len(admin.cluster().nodes))
    durable = {"min.insync.replicas": "2"} if replicas == REPLICAS else {}
    config = {**settings, **durable}
    topic = NewTopic(name, partitions, replicas, config=config)
    [result] = admin.try_each(lambda client, seconds: client.create_topics([topic], request_timeout=seconds)).values()
    if not isinstance(result, KafkaFault) or result.code == KafkaError.TOPIC_ALREADY_EXISTS:
        return
    if result.code in TOPIC_DENIED:
        options = " ".join(f"--config {key}={setting}" for key, setting in config.items())
        raise UserError(
            f"not allowed to create the {kind} {name}",
            detail=result.text,
            hint=f"grant Create, or create it with {partitions} partitions and: {options}",
        )
    raise admin.error(result, f"{kind} {name}")
