"""Relays between processes on loopback: what goes through them can be cut off, and nobody is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from penstock.embedded.broker import Cluster

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

    def mend(self) -> None:
        self._flows.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for each in self._sockets:
            each.close()
        self.mend()

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
def controllers_behind_relays(cluster: Cluster, number: int) -> Iterator[list[Relay]]:
    """Start a broker of a cluster that does not run again: it reaches the other controllers by these relays only."""
    own = cluster.layout.broker(number)
    others = [each for each in cluster.layout.brokers if each != own]
    with ExitStack() as stack:
        relays = [stack.enter_context(Relay(each.controller_port)) for each in others]
        ports = {each.number: relay.port for each, relay in zip(others, relays, strict=True)}
        voters = ",".join(f"{each}@{HOST}:{port}" for each, port in {**ports, number: own.controller_port}.items())
        # What comes last in the file wins.
        with own.settings_file(cluster.folder).open("a") as settings:
            settings.write(f"controller.quorum.voters={voters}\n")
        cluster.restart(number)
        yield relays
