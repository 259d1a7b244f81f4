"""A cluster whose users may do only what an ACL grants, on a listener that asks for their passwords.

Its plain listener may do everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.embedded.broker import Cluster
from penstock.embedded.kafka import HOST, new_broker, new_cluster_id
from penstock.job.spec import Secret
from tests.support.certificates import Certificate, certificates


@dataclass(frozen=True, slots=True)
class Guarded:
    cluster: Cluster
    sasl_bootstrap: str
    tls_bootstrap: str
    """The listener of clients that have a certificate, such as `client`."""
    client: Certificate

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap


def sasl_settings(user: str, password: str, mechanism: str = "PLAIN") -> dict[str, str]:
    """The client settings of a user of the guarded listener."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
        "sasl.username": user,
        "sasl.password": Secret(password),
    }


@contextmanager
def guarded_cluster(folder: Path, users: Mapping[str, str], settings: Mapping[str, str]) -> Iterator[Guarded]:
    """One broker for users by name and password; `settings` win."""
    broker, spare = new_broker(), new_broker()
    tls_address = f"{HOST}:{spare.controller_port}"
    own, client = certificates("broker", "client")
    Cluster(folder, new_cluster_id(), broker).save()
    plain, guarded = f"PLAIN://{broker.address}", f"SASL://{spare.address},TLS://{tls_address}"
    passwords = " ".join(f"user_{name}={_quote(password)}" for name, password in users.items())
    guards = {
        "listeners": f"{plain},CONTROLLER://{HOST}:{broker.controller_port},{guarded}",
        "advertised.listeners": f"{plain},{guarded}",
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL",
        "listener.name.tls.ssl.client.auth": "required",
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.key": own.key,
        "listener.name.tls.ssl.keystore.certificate.chain": own.certificate,
        "listener.name.tls.ssl.truststore.type": "PEM",
        "listener.name.tls.ssl.truststore.certificates": own.authority,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {passwords};"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The plain listener is the administrator's: only users of the SASL listener need an ACL.
        "super.users": "User:ANONYMOUS;User:CN=client",
    }
    with Cluster.start(folder, settings={**guards, **settings}) as cluster:
        yield Guarded(cluster, spare.address, tls_address, client)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
