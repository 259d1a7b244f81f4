"""What librdkafka's errors mean for a job."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.errors import UnreachableError, UserError
from penstock.logs.kafka.faults import KafkaFault, error_of, fault_of, refused_for_good, unknown_topic

TIMED_OUT = KafkaFault(KafkaError._TIMED_OUT, "_TIMED_OUT", "Failed while waiting for controller: Local: Timed out")
REFUSED = KafkaFault(KafkaError._TRANSPORT, "_TRANSPORT", "k1:9092/bootstrap: Connect failed: Connection refused")
WRONG_PASSWORD = KafkaFault(
    KafkaError._AUTHENTICATION, "_AUTHENTICATION", "SASL authentication error: Authentication failed"
)


def test_an_error_keeps_code_name_and_text() -> None:
    error = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no"))
    assert fault_of(error) == KafkaFault(29, "TOPIC_AUTHORIZATION_FAILED", "no")
    assert fault_of(error.args[0]) == fault_of(error)


def test_an_unreachable_broker_is_reported_with_its_reason_in_the_first_line() -> None:
    error = error_of(TIMED_OUT, "k1:9092", "topic orders", REFUSED)
    assert isinstance(error, UnreachableError)
    assert error.primary == "Kafka at k1:9092 does not answer: Connect failed: Connection refused"
    assert "topic orders" in error.detail


def test_a_timeout_caused_by_wrong_credentials_is_reported_as_such() -> None:
    error = error_of(TIMED_OUT, "k1:9092", "topic orders", WRONG_PASSWORD)
    assert isinstance(error, UserError)
    assert error.detail == WRONG_PASSWORD.text


@pytest.mark.parametrize(
    ("code", "subject"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "topic orders"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "consumer group shop"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "the cluster"),
    ],
)
def test_a_missing_permission_stops_the_job_and_names_what_it_is_for(code: int, subject: str) -> None:
    error = error_of(KafkaFault(code, "X", "denied"), "k1:9092", subject)
    assert isinstance(error, UserError)
    assert subject in error.primary
    assert error.hint.startswith("grant ")


@pytest.mark.parametrize(
    ("code", "text", "for_good"),
    [
        (KafkaError._AUTHENTICATION, "SASL authentication error: Authentication failed", True),
        (KafkaError._AUTHENTICATION, "SaslHandshake failed: Local: Broker transport failure", False),
        (KafkaError._SSL, "SSL handshake failed: certificate verify failed", True),
        (KafkaError._SSL, "SSL handshake failed: Disconnected", False),
        (KafkaError._TRANSPORT, "Connection refused", False),
    ],
)
def test_only_a_clear_rejection_ends_the_retries(code: int, text: str, for_good: bool) -> None:
    assert refused_for_good(KafkaFault(code, "X", text)) is for_good


def test_an_unknown_topic_suggests_the_name_that_was_meant() -> None:
    error = unknown_topic("web_request", "k1:9092", {"orders", "web_requests", "payments"})
    assert "web_request" in error.primary
    assert error.hint == "did you mean web_requests?"


def test_an_unknown_topic_without_a_similar_name_suggests_nothing() -> None:
    assert "did you mean" not in unknown_topic("web_requests", "k1:9092", {"x"}).hint
