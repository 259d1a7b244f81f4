"""Certificates of an authority of the tests, as the texts of PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A key, its certificate, and that of the authority."""

    key: str
    certificate: str
    authority: str


def certificates(*names: str) -> list[Certificate]:
    """A certificate for each name, valid on loopback, by one new authority."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _signed("authority", authority_key, "authority", authority_key)
    result = []
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _signed(name, key, "authority", authority_key)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        result.append(Certificate(text.decode(), signed, authority))
    return result


def _signed(name: str, key: ec.EllipticCurvePrivateKey, by: str, signing: ec.EllipticCurvePrivateKey) -> str:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(by))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=name == by, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    )
    return builder.sign(signing, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
