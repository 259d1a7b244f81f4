"""An embedded Kafka: its broker, ports and settings, and the calls of Kafka's own programs."""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from penstock.errors import TransientError
from penstock.spark.jars import JarSet, java_command, resolve

HOST = "127.0.0.1"
# Below the range that systems hand to outgoing connections: a stopped broker finds its port free again.
PORTS = range(15_000, 32_000)
PORT_ATTEMPTS_MAX = 200
HEAP_MIB_MAX = 512
FORMAT_SECONDS_MAX = 120
LOG_LINES_SHOWN = 24


@dataclass(frozen=True, slots=True)
class Broker:
    """One Kafka process, broker and controller at once."""

    port: int
    controller_port: int
    number: int = 1

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def folder(self, root: Path) -> Path:
        """Where its data, its settings and its logs are."""
        return root / f"broker-{self.number}"

    def data_folder(self, root: Path) -> Path:
        return self.folder(root) / "data"

    def settings_file(self, root: Path) -> Path:
        return self.folder(root) / "server.properties"

    def output_file(self, root: Path) -> Path:
        """What Kafka prints: warnings and errors."""
        return self.folder(root) / "output.txt"

    def last_lines(self, root: Path) -> str:
        """The end of what it printed, for an error text."""
        path = self.output_file(root)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        return "\n    ".join(["its last lines:", *lines[-LOG_LINES_SHOWN:]]) if lines else "it printed nothing"


def new_broker(port: int | None = None) -> Broker:
    """A broker on ports that are free now, on this one if it is."""
    wished = [] if port is None else [port]
    free = list(islice(filter(is_free, [*wished, *random.sample(PORTS, PORT_ATTEMPTS_MAX)]), 2))
    if len(free) < 2:
        tried = f"tried {PORT_ATTEMPTS_MAX} of {PORTS.start} to {PORTS.stop}"
        raise TransientError("no port is free for the embedded broker", detail=tried)
    return Broker(*free)


def server_properties(broker: Broker, root: Path, settings: Mapping[str, str]) -> str:
    """The text of Kafka's settings file; `settings` come last and win."""
    plain = f"PLAIN://{broker.address}"
    entries = {
        "process.roles": "broker,controller",
        "node.id": str(broker.number),
        "controller.quorum.voters": f"{broker.number}@{HOST}:{broker.controller_port}",
        "log.dirs": str(broker.data_folder(root)),
        "listeners": f"{plain},CONTROLLER://{HOST}:{broker.controller_port}",
        "advertised.listeners": plain,
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAIN",
        "controller.listener.names": "CONTROLLER",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # A killed broker may register again only after its session: shorter than Kafka's 9 s, long for a busy machine.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "1000",
        "log.retention.check.interval.ms": "5000",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": "33554432",
        **settings,
    }
    escaped = {key: value.replace("\\", "\\\\").replace("\n", "\\n") for key, value in entries.items()}
    return "".join(f"{key}={value}\n" for key, value in escaped.items())


def is_free(port: int) -> bool:
    """Whether a process could listen on this loopback port now."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def new_cluster_id() -> str:
    """A random id in the form that Kafka expects: 16 bytes in URL-safe base 64, not beginning with a dash."""
    while (text := secrets.token_urlsafe(16)).startswith("-"):
        pass
    return text


def prepare(cluster_id: str, broker: Broker, root: Path, settings: Mapping[str, str]) -> None:
    """Write the settings of the broker, and format its storage if it has none."""
    broker.folder(root).mkdir(parents=True, exist_ok=True)
    properties = broker.settings_file(root)
    properties.touch(mode=0o600)
    properties.write_text(server_properties(broker, root, settings), encoding="utf-8")
    if not (broker.data_folder(root) / "meta.properties").exists():
        _format(cluster_id, broker, root)


def server_command(broker: Broker, root: Path) -> list[str]:
    return [*_java(), f"-Xmx{HEAP_MIB_MAX}m", "kafka.Kafka", str(broker.settings_file(root))]


def _format(cluster_id: str, broker: Broker, root: Path) -> None:
    arguments = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(broker.settings_file(root))]
    try:
        subprocess.run(
            [*_java(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=FORMAT_SECONDS_MAX,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise TransientError(
            "the storage of the embedded broker could not be formatted",
            detail=f"{error}: {(error.output or b'').decode(errors='replace').strip()}",
            hint=f"check that {root} can be written and has free space",
        ) from error


def tool(*arguments: str) -> list[str]:
    """The command of one of Kafka's own tools: its class, and its arguments."""
    return [*_java(), *arguments]


def _java() -> list[str]:
    jars = os.pathsep.join(str(jar) for jar in resolve(JarSet.BROKER))
    # A small broker on a shared machine: one collector thread, and warnings only, so that its output stays small.
    return [str(java_command()), "-XX:+UseSerialGC", "-Djava.awt.headless=true", "-Dlog4j2.level=WARN", "-cp", jars]
