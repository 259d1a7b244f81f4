"""The server of a WAL: HTTP/1.1 with a thread per connection, everything bounded (`WalLimits`)."""

from __future__ import annotations

import hmac
import socket
import socketserver
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

import structlog

from penstock.errors import UserError
from penstock.failpoints import Reach, noop
from penstock.logs.wal.errors import WalDeniedError, WalFullError
from penstock.logs.wal.server.answers import Answer, Answers, Request
from penstock.logs.wal.server.bodies import BadBodyError
from penstock.logs.wal.server.connections import Connections
from penstock.logs.wal.server.metrics import WalMetrics
from penstock.logs.wal.store.store import WalStore, end_process

TRIM_SECONDS = 10.0
"""How often segments are looked for whose retention is over."""
POLL_SECONDS = 0.2
STOP_SECONDS_MAX = 10.0
"""How long a stop waits for requests that are being answered."""
DISCARDED_BYTES_MAX = 64 * 1024 * 1024
"""Of a body that was refused."""
CHUNK_BYTES = 64 * 1024
STEP = "wal_answering"
"""Everything is durable, and the client does not know it yet."""

_LATER = "send again in a moment"

logger = structlog.get_logger("penstock.wal")


class WalServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Answers for a store until it is stopped; the store stays open."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, store: WalStore, host: str, port: int, reach: Reach = noop, tokens: Collection[str] = ()
    ) -> None:
        limits = store.limits
        self.store = store
        self.tokens = [each.encode() for each in tokens]
        """If there are any, every request but that for health has to bring one of them."""
        self.reach = reach
        self.answers = Answers(store)
        self.connections = Connections(limits.connections_max, limits.request_seconds_max, limits.in_flight_bytes_max)
        self.metrics = WalMetrics(store, self.answers, self.connections)
        self._trimmed_at = time.monotonic()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port}", detail=str(error)) from error

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def start(self) -> threading.Thread:
        """Answer in a thread of its own."""
        thread = threading.Thread(target=self._serve, name="wal server", daemon=True)
        thread.start()
        return thread

    def _serve(self) -> None:
        try:
            self.serve_forever(POLL_SECONDS)
        except BaseException as error:  # noqa: BLE001, the top of a thread: a server that hears nobody must not look alive
            end_process(error)

    def stop(self) -> None:
        """Take no more connections, answer what has arrived, and let the port go."""
        self.shutdown()
        self.connections.drain(STOP_SECONDS_MAX)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.connections.admit(request):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.setblocking(False)
            request.send(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self.connections.leave(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Between connections: cut off the overdue, and trim now and then."""
        self.connections.end_overdue()
        if time.monotonic() - self._trimmed_at > TRIM_SECONDS:
            self.store.trim()
            self._trimmed_at = time.monotonic()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no event; anything else is a bug of ours."""
        logger.exception("a request failed", client=str(client_address))


class _Handler(BaseHTTPRequestHandler):
    """One connection: requests one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: WalServer
    error_content_type = "application/json"
    error_message_format = '{"error": "WalRefusedError", "primary": "%(message)s", "detail": "", "hint": ""}'

    def handle(self) -> None:
        # A client that goes away, or that was cut off because it took too long.
        with suppress(ConnectionError, TimeoutError, ValueError):
            super().handle()

    def finish(self) -> None:
        with suppress(OSError, ValueError):
            super().finish()

    def handle_one_request(self) -> None:
        if self.server.connections.waiting(self.connection):
            super().handle_one_request()
        else:
            self.close_connection = True

    def _handle(self) -> None:
        self.server.connections.busy(self.connection)
        refusal = self._refusal()
        if refusal is not None:
            self.close_connection = True
            self._send(refusal)
            self._discard()
            return
        size = int(self.headers.get("Content-Length", "0"))
        held = size + (self.server.store.limits.response_bytes_max if self.command == "GET" else 0)
        if not self.server.connections.take(held):
            self.close_connection = True
            self._send(self.server.answers.failure(WalFullError("too many bytes are on their way", hint=_LATER)))
            self._discard()
            return
        try:
            self._send(self._answer(size))
        finally:
            self.server.connections.give_back(held)

    do_GET = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815, the names that the library looks for

    def _answer(self, size: int) -> Answer:
        body = self.rfile.read(size) if size else b""
        if len(body) < size:
            self.close_connection = True
            return self.server.answers.failure(BadBodyError(f"the body ended after {len(body)} of {size} bytes"))
        headers = {name.lower(): value for name, value in self.headers.items()}
        if self.command == "GET" and self.path.partition("?")[0] == "/metrics":
            return Answer(200, self.server.metrics.text(), "text/plain; version=0.0.4")
        return self.server.answers.answer(Request(self.command, self.path, headers, body))

    def _refusal(self) -> Answer | None:
        """Why the body is not read."""
        failure = self.server.answers.failure
        limits = self.server.store.limits
        if self.server.tokens and self.path.partition("?")[0] != "/health" and not self._is_known():
            hint = "send the header Authorization: Bearer TOKEN; commands take --token-file, jobs log.wal.token"
            return failure(WalDeniedError("the WAL server does not know you", hint=hint))
        if self.headers.get("Transfer-Encoding"):
            return _with_status(411, failure(BadBodyError("send the body with a Content-Length, not in chunks")))
        if self.headers.get("Content-Encoding", "identity") != "identity":
            return _with_status(415, failure(BadBodyError("send the body as it is, not compressed")))
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            return failure(BadBodyError("the Content-Length is no number"))
        if int(text) > limits.body_bytes_max:
            return _with_status(413, failure(BadBodyError(f"a body has at most {limits.body_bytes_max} bytes")))
        return None

    def _is_known(self) -> bool:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        sent = token.strip().encode("latin-1", "replace")
        # Every token is compared, and each in constant time: how long it takes tells nothing.
        known = sum(hmac.compare_digest(sent, each) for each in self.server.tokens)
        return kind.lower() == "bearer" and known > 0

    def _discard(self) -> None:
        """Read what is still coming, up to a bound: a connection closed before that would take the answer with it."""
        left = DISCARDED_BYTES_MAX
        while left > 0 and (read := len(self.rfile.read1(min(left, CHUNK_BYTES)))):
            left -= read

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.server.reach(STEP)
        self.wfile.write(answer.body)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are counted, not logged."""


def _with_status(status: int, answer: Answer) -> Answer:
    return Answer(status, answer.body, answer.content_type, answer.headers)
