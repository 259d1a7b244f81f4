"""Relays between processes on loopback: traffic can be cut off without closing a connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.embedded import kafka, process
from penstock.embedded.broker import Cluster
from penstock.embedded.kafka import Broker, new_broker

HOST = "127.0.0.1"
_CHUNK_BYTES = 65_536


class Relay:
    """Passes bytes on to a port, until it is cut: then it keeps what arrives, as a network that drops packets does."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._flows = threading.Event()
        self._flows.set()
        self._server = socket.create_server((HOST, 0))
        self._sockets = [self._server]
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._flows.clear()

    def restore(self) -> None:
        self._flows.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for item in self._sockets:
            item.close()
        self.restore()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
                far = socket.create_connection((HOST, self._target_port))
            except OSError:
                return
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while chunk := source.recv(_CHUNK_BYTES):
                self._flows.wait()
                sink.sendall(chunk)
        except OSError:
            pass
        finally:
            sink.close()


@contextmanager
def broker_behind_relay(cluster: Cluster, folder: Path) -> Iterator[tuple[Broker, Relay, int]]:
    """One more broker for a cluster, with its relay and pid: it reaches the controller by this relay only.

    It is not a controller itself: those write to each other, and would give it an address that bypasses the relay.
    """
    controller = cluster.broker
    broker = replace(new_broker(), number=2)
    with Relay(controller.controller_port) as relay:
        settings = {
            "process.roles": "broker",
            "listeners": f"PLAIN://{broker.address}",
            "controller.quorum.voters": f"{controller.number}@{HOST}:{relay.port}",
        }
        kafka.prepare(cluster.cluster_id, broker, folder, settings)
        started = process.spawn(kafka.server_command(broker, folder), broker.output_file(folder))
        try:
            yield broker, relay, started.pid
        finally:
            process.kill(started)
