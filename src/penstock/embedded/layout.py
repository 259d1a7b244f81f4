"""What an embedded cluster looks like: its brokers, their ports, and the files that make Kafka run so."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from penstock.errors import TransientError, UserError

HOST = "127.0.0.1"
# Below the range that systems hand to outgoing connections: a stopped broker finds its port free again.
PORTS = range(15_000, 32_000)
PORT_ATTEMPTS_MAX = 200
BROKER_COUNTS = (1, 3)
LOG_SIZE_MAX = "16MB"


@dataclass(frozen=True, slots=True)
class Broker:
    """One Kafka process, broker and controller at once."""

    number: int
    port: int
    controller_port: int

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

    def log_file(self, root: Path) -> Path:
        """What Kafka writes about itself."""
        return self.folder(root) / "server.log"


@dataclass(frozen=True, slots=True)
class Layout:
    """The brokers that form one cluster; it outlives their processes."""

    cluster_id: str
    brokers: tuple[Broker, ...]

    @property
    def bootstrap(self) -> str:
        """The plain listeners, for any client."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(port for broker in self.brokers for port in (broker.port, broker.controller_port))

    def broker(self, number: int) -> Broker:
        """The broker with this number, counted from 1."""
        return self.brokers[number - 1]


def new_brokers(count: int) -> tuple[Broker, ...]:
    """Brokers on ports that are free now."""
    if count not in BROKER_COUNTS:
        hint = "1 broker, or 3 for a cluster that survives the loss of one"
        raise UserError(f"{count} brokers are not offered", hint=hint)
    ports = iter(_free_ports(count * 2))
    return tuple(Broker(number, next(ports), next(ports)) for number in range(1, count + 1))


def server_properties(layout: Layout, broker: Broker, root: Path, settings: Mapping[str, str]) -> str:
    """The text of Kafka's settings file; `settings` come last and win."""
    plain = f"PLAIN://{broker.address}"
    copies, in_sync = str(len(layout.brokers)), str(2 if len(layout.brokers) > 1 else 1)
    entries = {
        "process.roles": "broker,controller",
        "node.id": str(broker.number),
        "controller.quorum.voters": ",".join(f"{one.number}@{HOST}:{one.controller_port}" for one in layout.brokers),
        "log.dirs": str(broker.data_folder(root)),
        "listeners": f"{plain},CONTROLLER://{HOST}:{broker.controller_port}",
        "advertised.listeners": plain,
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAIN",
        "controller.listener.names": "CONTROLLER",
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
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
    return _properties(entries)


def log4j_properties(broker: Broker, root: Path) -> str:
    """Kafka's own log goes to one file that cannot grow without end."""
    log = broker.log_file(root)
    entries = {
        "status": "error",
        "appender.file.type": "RollingFile",
        "appender.file.name": "file",
        "appender.file.fileName": str(log),
        "appender.file.filePattern": f"{log}.%i",
        "appender.file.layout.type": "PatternLayout",
        "appender.file.layout.pattern": "%d{ISO8601} %p %c{1} %m%n",
        "appender.file.policies.type": "Policies",
        "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
        "appender.file.policies.size.size": LOG_SIZE_MAX,
        "appender.file.strategy.type": "DefaultRolloverStrategy",
        "appender.file.strategy.max": "2",
        "rootLogger.level": "info",
        "rootLogger.appenderRef.file.ref": "file",
    }
    return _properties(entries)


def _properties(entries: Mapping[str, str]) -> str:
    escaped = {key: value.replace("\\", "\\\\").replace("\n", "\\n") for key, value in entries.items()}
    return "".join(f"{key}={value}\n" for key, value in escaped.items())


def _free_ports(count: int) -> list[int]:
    free = list(islice(filter(is_free, random.sample(PORTS, PORT_ATTEMPTS_MAX)), count))
    if len(free) < count:
        tried = f"tried {PORT_ATTEMPTS_MAX} of {PORTS.start} to {PORTS.stop}"
        raise TransientError("no free port was found", detail=tried)
    return free


def is_free(port: int) -> bool:
    """Whether a process could listen on this loopback port now."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True
