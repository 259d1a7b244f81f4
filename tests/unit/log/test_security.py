"""One security section of a job file drives both Kafka clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.job.spec import KafkaLogSpec, KafkaSecurity, Secret
from penstock.logs.kafka.security import java_settings, librdkafka_settings

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
CHAIN = "-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"
PKCS1_KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n"


def log_of(security: KafkaSecurity, **client_settings: str) -> KafkaLogSpec:
    settings = {name.replace("_", "."): value for name, value in client_settings.items()}
    return KafkaLogSpec("k1:9092,k2:9092", topics=("t",), security=security, client_settings=settings)


def test_a_plain_cluster_needs_nothing_but_its_address() -> None:
    spec = log_of(KafkaSecurity())
    assert librdkafka_settings(spec) == {"bootstrap.servers": "k1:9092,k2:9092", "security.protocol": "PLAINTEXT"}
    assert java_settings(spec) == {
        "kafka.bootstrap.servers": "k1:9092,k2:9092",
        "kafka.security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "org.apache.kafka.common.security.plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "org.apache.kafka.common.security.scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "org.apache.kafka.common.security.scram.ScramLoginModule"),
    ],
)
def test_a_password_reaches_both_clients_in_their_own_words(mechanism: str, module: str) -> None:
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
    assert java_settings(spec) == {
        "kafka.bootstrap.servers": "k1:9092,k2:9092",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f'{module} required username="ann" password="pw";',
    }


def test_quotes_backslashes_and_line_ends_of_a_password_are_escaped_for_java_only() -> None:
    password = Secret("a\"b\\c;d'e\nf\rg")
    spec = log_of(KafkaSecurity("SASL_SSL", "PLAIN", 'dom\\"ann"', password))
    assert librdkafka_settings(spec)["sasl.password"] == password
    assert java_settings(spec)["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="dom\\\\\\"ann\\"" password="a\\"b\\\\c;d\'e\\nf\\rg";'
    )


def test_certificates_go_to_librdkafka_as_paths_and_to_java_as_text(tmp_path: Path) -> None:
    ca, chain, key = tmp_path / "ca.pem", tmp_path / "client.pem", tmp_path / "client.key"
    ca.write_text(CERTIFICATE)
    chain.write_text(CHAIN)
    key.write_text(KEY)
    security = KafkaSecurity(
        "SSL",
        ssl_ca_path=str(ca),
        ssl_certificate_path=str(chain),
        ssl_key_path=str(key),
        ssl_key_password=Secret("kpw"),
    )
    assert librdkafka_settings(log_of(security)) == {
        "bootstrap.servers": "k1:9092,k2:9092",
        "security.protocol": "SSL",
        "ssl.ca.location": str(ca),
        "ssl.certificate.location": str(chain),
        "ssl.key.location": str(key),
        "ssl.key.password": "kpw",
    }
    assert java_settings(log_of(security)) == {
        "kafka.bootstrap.servers": "k1:9092,k2:9092",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": CERTIFICATE,
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": CHAIN,
        "kafka.ssl.keystore.key": KEY,
        "kafka.ssl.key.password": "kpw",
    }


def test_secrets_are_never_printed(tmp_path: Path) -> None:
    key = tmp_path / "client.key"
    key.write_text(KEY)
    (tmp_path / "client.pem").write_text(CHAIN)
    security = KafkaSecurity(
        "SASL_SSL",
        "SCRAM-SHA-512",
        "ann",
        Secret("hunter2"),
        ssl_certificate_path=str(tmp_path / "client.pem"),
        ssl_key_path=str(key),
        ssl_key_password=Secret("hunter3"),
    )
    spec = log_of(security)
    printed = repr(librdkafka_settings(spec)) + repr(java_settings(spec)) + repr(spec)
    for secret in ("hunter2", "hunter3", "MIIE"):
        assert secret not in printed


def test_a_key_that_java_cannot_read_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    key = tmp_path / "old.key"
    key.write_text(PKCS1_KEY)
    (tmp_path / "client.pem").write_text(CHAIN)
    security = KafkaSecurity("SSL", ssl_certificate_path=str(tmp_path / "client.pem"), ssl_key_path=str(key))
    with pytest.raises(UserError) as raised:
        java_settings(log_of(security))
    assert str(key) in raised.value.primary
    assert "openssl pkcs8" in raised.value.hint
    assert "MIIE" not in str(raised.value)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00"])
def test_a_certificate_file_that_is_missing_or_not_pem_is_named(tmp_path: Path, content: bytes | None) -> None:
    ca = tmp_path / "ca.pem"
    if content is not None:
        ca.write_bytes(content)
    with pytest.raises(UserError) as raised:
        java_settings(log_of(KafkaSecurity("SSL", ssl_ca_path=str(ca))))
    assert raised.value.primary.startswith(f"ssl_ca_path {ca} ")


def test_client_settings_reach_both_clients() -> None:
    spec = log_of(KafkaSecurity(), fetch_max_bytes="1000")
    assert librdkafka_settings(spec)["fetch.max.bytes"] == "1000"
    assert java_settings(spec)["kafka.fetch.max.bytes"] == "1000"


def test_the_host_name_check_is_switched_off_in_the_words_of_each_client() -> None:
    spec = log_of(KafkaSecurity("SSL"), ssl_endpoint_identification_algorithm="none")
    assert librdkafka_settings(spec)["ssl.endpoint.identification.algorithm"] == "none"
    assert java_settings(spec)["kafka.ssl.endpoint.identification.algorithm"] == ""


@pytest.mark.parametrize("name", ["isolation.level", "enable.auto.commit", "group.id", "sasl.password"])
def test_settings_that_would_break_the_promise_are_refused_for_both_clients(name: str) -> None:
    spec = KafkaLogSpec("k1:9092", topics=("t",), client_settings={name: "value"})
    for translate in (librdkafka_settings, java_settings):
        with pytest.raises(UserError) as raised:
            translate(spec)
        assert name in raised.value.primary
        assert "value" not in str(raised.value)
