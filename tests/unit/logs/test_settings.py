"""The Kafka client's settings of a job file."""

from __future__ import annotations

from contextlib import closing

import pytest

from penstock.errors import UserError
from penstock.job.spec import KafkaLogSpec, Secret
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.settings import librdkafka_settings
from penstock.logs.log import Partition


def log_of(settings: dict[str, str]) -> KafkaLogSpec:
    return KafkaLogSpec("k1:9092,k2:9092", topics=("t",), client_settings=settings)


def test_client_settings_reach_the_client_unchanged() -> None:
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": 'dom\\"ann"',
        "sasl.password": Secret("a\"b\\c;d'e\nf\rg"),
        "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "fetch.max.bytes": "1000",
    }
    assert librdkafka_settings(log_of(settings)) == {"bootstrap.servers": "k1:9092,k2:9092", **settings}


def test_secrets_are_never_printed() -> None:
    spec = log_of({"sasl.password": Secret("hunter2"), "ssl.key.password": Secret("hunter3")})
    printed = repr(librdkafka_settings(spec)) + repr(spec)
    for secret in ("hunter2", "hunter3"):
        assert secret not in printed


@pytest.mark.parametrize("name", ["isolation.level", "enable.auto.commit", "group.id", "bootstrap.servers"])
def test_settings_that_would_break_exactly_once_are_refused(name: str) -> None:
    spec = KafkaLogSpec("k1:9092", topics=("t",), client_settings={name: "value"})
    with pytest.raises(UserError) as raised:
        librdkafka_settings(spec)
    assert name in raised.value.primary
    assert "value" not in str(raised.value)


def test_settings_refused_by_the_client_are_a_user_error() -> None:
    """As a job's status meets them, which asks for the times of records."""
    spec = KafkaLogSpec("k1:9092", topics=("t",), client_settings={"fetch.max.bytes": "500000"})
    with closing(KafkaLog(spec)) as log, pytest.raises(UserError) as raised:
        log.record_times({Partition("t", "id", 0): 0}, 1.0)
    assert "fetch.max.bytes" in raised.value.detail
