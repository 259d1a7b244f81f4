"""One security section for both Kafka clients: librdkafka, and Java inside Spark where a job says `reader: spark`.

Certificates and keys travel to Java as text, not as paths: Spark's executors may not have the files, and Java wants
certificate and key in one file where librdkafka wants two.
"""

from __future__ import annotations

from pathlib import Path

from penstock.errors import UserError
from penstock.job.spec import KafkaLogSpec, KafkaSecurity, Secret

OWNED_SETTINGS = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "group.id",
        "isolation.level",
        "key.deserializer",
        "sasl.jaas.config",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "value.deserializer",
    }
)
"""Settings that Penstock decides: another value of these would break exactly-once or contradict the job file."""

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_HOSTNAME_CHECK = "ssl.endpoint.identification.algorithm"


def librdkafka_settings(spec: KafkaLogSpec) -> dict[str, str]:
    """The settings of a librdkafka client of this log; secrets stay `Secret`, so printing the result hides them."""
    security = spec.security
    optional = {
        "sasl.mechanisms": security.sasl_mechanism,
        "sasl.username": security.sasl_username,
        "sasl.password": security.sasl_password,
        "ssl.ca.location": security.ssl_ca_path,
        "ssl.certificate.location": security.ssl_certificate_path,
        "ssl.key.location": security.ssl_key_path,
        "ssl.key.password": security.ssl_key_password,
    }
    return {
        **_client_settings(spec),
        "bootstrap.servers": spec.bootstrap,
        "security.protocol": security.protocol,
        **{name: value for name, value in optional.items() if value is not None},
    }


def java_settings(spec: KafkaLogSpec) -> dict[str, str]:
    """The same for Spark's Kafka source: Java's names, each with the prefix `kafka.`."""
    settings = _client_settings(spec)
    if settings.get(_HOSTNAME_CHECK) == "none":
        # Java switches the check off with an empty text, librdkafka with the word.
        settings[_HOSTNAME_CHECK] = ""
    settings["bootstrap.servers"] = spec.bootstrap
    settings["security.protocol"] = spec.security.protocol
    settings |= _java_sasl(spec.security)
    settings |= _java_tls(spec.security)
    return {f"kafka.{name}": value for name, value in settings.items()}


def _client_settings(spec: KafkaLogSpec) -> dict[str, str]:
    owned = sorted(OWNED_SETTINGS & spec.client_settings.keys())
    if owned:
        raise UserError(
            f"client settings that Penstock decides itself: {', '.join(owned)}",
            hint="remove them; bootstrap, group and security have their own keys in the job file",
        )
    return dict(spec.client_settings)


def _java_sasl(security: KafkaSecurity) -> dict[str, str]:
    if security.sasl_mechanism is None:
        return {}
    module = _LOGIN_MODULES[security.sasl_mechanism]
    username = _jaas_quoted(security.sasl_username or "")
    password = _jaas_quoted(security.sasl_password or "")
    return {
        "sasl.mechanism": security.sasl_mechanism,
        "sasl.jaas.config": Secret(f"{module} required username={username} password={password};"),
    }


def _jaas_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _java_tls(security: KafkaSecurity) -> dict[str, str]:
    settings: dict[str, str] = {}
    if security.ssl_ca_path is not None:
        settings["ssl.truststore.type"] = "PEM"
        settings["ssl.truststore.certificates"] = _pem_text(security.ssl_ca_path, "ssl_ca_path")
    if security.ssl_certificate_path is not None and security.ssl_key_path is not None:
        settings["ssl.keystore.type"] = "PEM"
        settings["ssl.keystore.certificate.chain"] = _pem_text(security.ssl_certificate_path, "ssl_certificate_path")
        settings["ssl.keystore.key"] = _private_key(security.ssl_key_path)
        if security.ssl_key_password is not None:
            settings["ssl.key.password"] = security.ssl_key_password
    return settings


def _private_key(path: str) -> Secret:
    text = _pem_text(path, "ssl_key_path")
    if "-----BEGIN PRIVATE KEY-----" in text or "-----BEGIN ENCRYPTED PRIVATE KEY-----" in text:
        return Secret(text)
    raise UserError(
        f"ssl_key_path {path} is not a PKCS #8 key, the only form that Spark's Kafka client reads",
        hint="convert it: openssl pkcs8 -topk8 -in OLD.key -out NEW.key (add -nocrypt for no password)",
    )


def _pem_text(path: str, name: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UserError(f"{name} {path} cannot be read: {reason}", hint="it must be a PEM file") from None
    if "-----BEGIN " not in text:
        raise UserError(f"{name} {path} holds nothing in PEM form", hint="it must be a PEM file")
    return text
