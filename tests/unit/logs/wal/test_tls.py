"""A server with a certificate: clients that trust it append, and others do not."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.errors import TransientError
from penstock.logs.wal.client import WalClient
from tests.support.wal import served
from tests.unit.logs.wal.stores import TOPIC


def certificate_for_loopback(folder: Path) -> tuple[str, str]:
    """A certificate that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return str(certificate_file), str(key_file)


def test_records_are_appended_over_tls_by_clients_that_trust_the_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = certificate_for_loopback(tmp_path)
    with served(tmp_path / "wal", certificate=certificate) as server:
        assert server.url.startswith("https://")
        with WalClient(server.url, tries_max=1) as untrusting, pytest.raises(TransientError) as refused:
            untrusting.create_topic(TOPIC)
        assert "certificate verify failed" in refused.value.detail
        monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
        with WalClient(server.url, tries_max=1) as client:
            client.create_topic(TOPIC)
            appended = client.append(TOPIC, [b"one", b"two"])
            assert (appended.start, appended.end) == (0, 2)
