"""The Kafka client's settings of a job file's security section."""

from __future__ import annotations

import pytest

from penstock.errors import UserError
from penstock.job.spec import KafkaLogSpec, KafkaSecurity, Secret
from penstock.logs.kafka.log import record_times
from penstock.logs.kafka.security import librdkafka_settings
from penstock.logs.log import Partition


def log_of(security: KafkaSecurity, **client_settings: str) -> KafkaLogSpec:
    settings = {name.replace("_", "."): value for name, value in client_settings.items()}
    return KafkaLogSpec("k1:9092,k2:9092", topics=("t",), security=security, client_settings=settings)


def test_a_cluster_without_security_needs_only_its_address() -> None:
    spec = log_of(KafkaSecurity())
    assert librdkafka_settings(spec) == {"bootstrap.servers": "k1:9092,k2:9092", "security.protocol": "PLAINTEXT"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_password_is_passed_to_the_client_unchanged(mechanism: str) -> None:
    spec = log_of(
        KafkaSecurity("SASL_PLAINTEXT", mechanism, "ann", Secret("pw")),  # type: ignore[arg-type]
    )
    assert librdkafka_settings(spec) == {
        "bootstrap.servers": "k1:9092,k2:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
        "sasl.username": "ann",
        "sasl.password": "pw",
    }


def test_a_password_with_special_characters_is_passed_unchanged() -> None:
    password = Secret("a\"b\\c;d'e\nf\rg")
    spec = log_of(KafkaSecurity("SASL_SSL", "PLAIN", 'dom\\"ann"', password))
    assert librdkafka_settings(spec)["sasl.password"] == password


def test_certificates_and_keys_reach_the_client_as_paths() -> None:
    security = KafkaSecurity(
        "SSL",
        ssl_ca_path="/ca.pem",
        ssl_certificate_path="/client.pem",
        ssl_key_path="/client.key",
        ssl_key_password=Secret("kpw"),
    )
    assert librdkafka_settings(log_of(security)) == {
        "bootstrap.servers": "k1:9092,k2:9092",
        "security.protocol": "SSL",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/client.pem",
        "ssl.key.location": "/client.key",
        "ssl.key.password": "kpw",
    }


def test_secrets_are_never_printed() -> None:
    password, key_password = Secret("hunter2"), Secret("hunter3")
    security = KafkaSecurity("SASL_SSL", "SCRAM-SHA-512", "ann", password, ssl_key_password=key_password)
    spec = log_of(security)
    printed = repr(librdkafka_settings(spec)) + repr(spec)
    for secret in ("hunter2", "hunter3"):
        assert secret not in printed


def test_client_settings_reach_the_client() -> None:
    spec = log_of(KafkaSecurity(), fetch_max_bytes="1000")
    assert librdkafka_settings(spec)["fetch.max.bytes"] == "1000"


def test_the_host_name_check_can_be_disabled_by_the_client_setting() -> None:
    spec = log_of(KafkaSecurity("SSL"), ssl_endpoint_identification_algorithm="none")
    assert librdkafka_settings(spec)["ssl.endpoint.identification.algorithm"] == "none"


@pytest.mark.parametrize("name", ["isolation.level", "enable.auto.commit", "group.id", "sasl.password"])
def test_settings_that_would_break_exactly_once_are_refused(name: str) -> None:
    spec = KafkaLogSpec("k1:9092", topics=("t",), client_settings={name: "value"})
    with pytest.raises(UserError) as raised:
        librdkafka_settings(spec)
    assert name in raised.value.primary
    assert "value" not in str(raised.value)


def test_other_login_methods_can_be_configured_in_python() -> None:
    settings = {"sasl.kerberos.keytab": "/etc/keytab", "sasl.oauthbearer.method": "oidc"}
    result = librdkafka_settings(KafkaLogSpec("k1:9092", topics=("t",), client_settings=settings))
    assert settings.items() <= result.items()


def test_settings_refused_by_the_client_are_a_user_error() -> None:
    """As a job's status meets them, which asks for the times of records."""
    spec = KafkaLogSpec("k1:9092", topics=("t",), client_settings={"fetch.max.bytes": "500000"})
    with pytest.raises(UserError) as raised:
        record_times(spec, {Partition("t", "id", 0): 0}, 1.0)
    assert "fetch.max.bytes" in raised.value.detail
