"""Serves the console: alone until a signal, or in a thread of a process that runs jobs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from penstock.console.access import Access
from penstock.console.app import create_app
from penstock.console.history import History
from penstock.console.poller import Poller
from penstock.console.state import ConsoleState, WatchedJob
from penstock.errors import UserError
from penstock.spark.jars import home

CONNECTIONS_MAX = 1_000
STOP_SECONDS_MAX = 1
HISTORY = "console.sqlite"


class _Server(uvicorn.Server):
    """Ends the streams of open pages first: a stop would wait for them."""

    def __init__(self, config: uvicorn.Config, state: ConsoleState) -> None:
        super().__init__(config)
        self._state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.live.close()
        await super().shutdown(sockets)


@dataclass(frozen=True, slots=True)
class Served:
    """A console that answers at `url` while its block runs; `run` lets it answer in the caller's thread."""

    url: str
    state: ConsoleState
    server: uvicorn.Server
    socket: socket.socket

    def run(self) -> None:
        self.server.run([self.socket])


@contextmanager
def opened(
    jobs: dict[str, WatchedJob], access: Access, certificate: tuple[str, str] | None = None, history: Path | None = None
) -> Iterator[Served]:
    """A console that listens, and reads its jobs while the block runs. Port 0 is any that is free."""
    listening = _listen(access)
    access.port = listening.getsockname()[1]
    state = ConsoleState(jobs, History(history or home() / HISTORY), access)
    config = uvicorn.Config(
        create_app(state),
        loop="asyncio",
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        log_level="error",
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_SECONDS_MAX,
        ssl_certfile=certificate and certificate[0],
        ssl_keyfile=certificate and certificate[1],
    )
    try:
        config.load()
    except OSError as error:
        raise UserError("the certificate cannot be used", detail=str(error), hint="check it and its key") from None
    host = f"[{access.host}]" if ":" in access.host else access.host
    url = f"http{'s' if access.tls else ''}://{host}:{access.port}/"
    try:
        with Poller(state):
            yield Served(url, state, _Server(config, state), listening)
    finally:
        state.children.close()
        state.history.close()
        listening.close()


@contextmanager
def served(jobs: dict[str, WatchedJob], access: Access, history: Path | None = None) -> Iterator[Served]:
    """The same, answering in a thread while the block runs."""
    with opened(jobs, access, history=history) as console:
        thread = threading.Thread(name="console", target=console.run, daemon=True)
        thread.start()
        try:
            yield console
        finally:
            console.server.should_exit = True
            thread.join(2 * STOP_SECONDS_MAX)


def _listen(access: Access) -> socket.socket:
    family = socket.AF_INET6 if ":" in access.host else socket.AF_INET
    try:
        listening = socket.create_server((access.host, access.port), family=family)
    except OSError as error:
        hint = "choose another port with --listen HOST:PORT"
        raise UserError(f"cannot serve {access.host}:{access.port}", detail=str(error), hint=hint) from error
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
