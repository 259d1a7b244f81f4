"""An admin client whose every call ends within a bound and fails with an error of ours."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.errors import PenstockError, UserError
from penstock.job.spec import KafkaLogSpec
from penstock.log.faults import Fault, error_of, fault_of, refused_for_good
from penstock.log.security import librdkafka_settings

CALL_SECONDS_MAX = 15.0
POLL_SECONDS = 0.05
GRACE_SECONDS = 2.0
"""What a call may take beyond its own request timeout before it is given up."""
RECONNECT_MS = 250
RECONNECT_MS_MAX = 2_000

logger = logging.getLogger("penstock.kafka")

T = TypeVar("T")
K = TypeVar("K")


class BoundedAdmin:
    """Librdkafka's admin client with deadlines, its log in Python's, and its connection errors kept for error texts."""

    def __init__(self, spec: KafkaLogSpec, call_seconds_max: float = CALL_SECONDS_MAX) -> None:
        self.bootstrap = spec.bootstrap
        self._call_seconds_max = call_seconds_max
        self._connection_fault: Fault | None = None
        settings: dict[str, Any] = {
            "reconnect.backoff.ms": RECONNECT_MS,
            "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
            **librdkafka_settings(spec),
            "error_cb": self._on_error,
        }
        try:
            self._client: AdminClient | None = AdminClient(settings, logger=_QuietLog(logger))
        except KafkaException as error:
            raise UserError("Kafka client settings are not accepted", detail=fault_of(error).text) from None

    def call(self, subject: str, start: Callable[[AdminClient, float], Future[T]]) -> T:
        """Run one request and wait for its answer; `subject` names it in errors."""
        result = self.try_each(lambda client, seconds: {subject: start(client, seconds)})[subject]
        if isinstance(result, Fault):
            raise self.error(result, subject)
        return result

    def try_each(self, start: Callable[[AdminClient, float], Mapping[K, Future[T]]]) -> dict[K, T | Fault]:
        """Run one request about many things: each has its answer or its own fault."""
        client = self._open_client()
        deadline = time.monotonic() + self._call_seconds_max + GRACE_SECONDS
        before, self._connection_fault = self._connection_fault, None
        futures = start(client, self._call_seconds_max)
        results: dict[K, T | Fault] = {}
        for key, future in futures.items():
            fault = self._wait(client, future, deadline)
            if fault is not None:
                results[key] = fault
                continue
            answer = _result(future)
            results[key] = answer
        failed = any(isinstance(result, Fault) for result in results.values())
        if failed and self._connection_fault is None:
            # Librdkafka does not repeat itself at every reconnection: the last word still explains this failure.
            self._connection_fault = before
        return results

    def topic_names(self) -> frozenset[str]:
        """Every topic that this client may see."""
        # The metadata call blocks and is deaf to rejected credentials, so a cheap request goes before it.
        self.call("the cluster", lambda client, seconds: client.describe_cluster(request_timeout=seconds))
        try:
            metadata = self._open_client().list_topics(timeout=self._call_seconds_max)
        except KafkaException as error:
            raise self.error(fault_of(error), "the list of topics") from None
        return frozenset(metadata.topics)

    def error(self, fault: Fault, subject: str) -> PenstockError:
        return error_of(fault, self.bootstrap, subject, self._connection_fault)

    def close(self) -> None:
        # The C client has no close: it ends with its last reference.
        self._client = None

    def _open_client(self) -> AdminClient:
        if self._client is None:
            raise ValueError("this Kafka client is closed")
        return self._client

    def _wait(self, client: AdminClient, future: Future[T], deadline: float) -> Fault | None:
        """Serve the client until the future is done; the fault that makes further waiting useless, if there is one."""
        while not future.done():
            client.poll(POLL_SECONDS)
            if self._connection_fault is not None and refused_for_good(self._connection_fault):
                return self._connection_fault
            if time.monotonic() > deadline:
                return Fault(KafkaError._TIMED_OUT, "_TIMED_OUT", "no answer within the bound")
        client.poll(0)
        return None

    def _on_error(self, error: KafkaError) -> None:
        # "All brokers down" only repeats that the connection before it failed.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._connection_fault = fault_of(error)


def _result(future: Future[T]) -> T | Fault:
    try:
        return future.result()
    except KafkaException as error:
        return fault_of(error)


class _QuietLog:
    """Takes librdkafka's log lines: what fails a call is raised by that call, so a line alone is never an ERROR."""

    def __init__(self, target: logging.Logger) -> None:
        self._target = target
        self._last = ""

    def log(self, level: int, message: str, *arguments: object) -> None:
        text = message % arguments
        # A broker that is away fails every reconnection with the same words and another duration.
        core = re.sub(r"\(after \d+ms.*", "", text)
        repeated, self._last = core == self._last, core
        self._target.log(logging.DEBUG if repeated else min(level, logging.WARNING), "librdkafka: %s", text)
