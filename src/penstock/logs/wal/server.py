"""The HTTP server of a WAL: plain ASGI on uvicorn, everything bounded.

Requests are checked before their bodies are read: host, origin, token, length, and the bytes of all requests together.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.errors import PenstockError, UserError
from penstock.failpoints import AtStep, noop
from penstock.logs.log import Partition, SliceShrankError
from penstock.logs.wal.records import Appended, WalFullError, WalRefusedError, read_body
from penstock.logs.wal.store import Append, WalStore

STEP = "wal_answering"
"""The append is durable, and its client has no answer yet."""
TRIM_SECONDS = 10
STOP_SECONDS_MAX = 10
"""How long a stop waits for requests that are being answered."""
REQUEST_SECONDS_MAX = 60
"""From the first byte of a request to the last of its answer, and between requests of a connection."""
CONNECTIONS_MAX = 256
PIPELINED_MAX = 16
HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 16 * 1024 * 1024
INLINE_BYTES_MAX = 32 * 1024
"""Larger bodies are decoded in a thread, one at a time: they neither delay others nor add up in memory."""
ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""Of an answer with records, which holds at least one append."""
IN_FLIGHT_BYTES_MAX = 256 * 1024 * 1024
"""Of all requests that are being answered: their bodies, and the records that they are sent."""

_HEADERS = {401: [(b"www-authenticate", b"Bearer")], 503: [(b"retry-after", b"5")]}
"""Further headers of an answer, by its status."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9.]+|(?P<name>[^:]*))(:[0-9]*)?")
"""A Host header: an address or a name, and perhaps a port."""

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _Head:
    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.method: str = scope["method"]
        self.path: list[str] = scope["path"].strip("/").split("/")
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        self.body_bytes = int(self.headers.get("content-length", "0"))

    def number(self, name: str, default: int) -> int:
        text = self.query.get(name, str(default))
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise WalRefusedError(f"{name} is a whole number, not {text!r}", status=400)
        return int(text)


class WalServer:
    """Answers for a store until it is stopped; the store stays open."""

    def __init__(
        self,
        store: WalStore,
        host: str,
        port: int,
        at_step: AtStep = noop,
        tokens: Collection[str] = (),
        hosts: Collection[str] = (),
        certificate: tuple[str, str] | None = None,
    ) -> None:
        self.store = store
        self._at_step = at_step
        self._tokens = [token.encode() for token in tokens]
        """If there are any, every request except that for health has to carry one of them."""
        self._hosts = {host, "localhost", socket.gethostname(), *hosts, None}
        """Names that a Host header may have, and None for addresses: requests of web pages have others."""
        self._waiting: list[Append] = []
        self._group: asyncio.Task[list[Appended | PenstockError]] | None = None
        """The task that appends everything in `_waiting` in the next turn of the event loop."""
        self._free_bytes = IN_FLIGHT_BYTES_MAX
        self._decoding = asyncio.Lock()
        config = uvicorn.Config(
            self._application,
            http=_Connection,
            interface="asgi3",
            loop="asyncio",
            ws="none",
            lifespan="off",
            proxy_headers=False,
            access_log=False,
            log_config=None,
            log_level="error",
            callback_notify=self._trim,
            timeout_notify=TRIM_SECONDS,
            timeout_keep_alive=REQUEST_SECONDS_MAX + 1,
            timeout_graceful_shutdown=STOP_SECONDS_MAX,
            ssl_certfile=certificate and certificate[0],
            ssl_keyfile=certificate and certificate[1],
        )
        try:
            config.load()
            self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            hint = "check the address, and the certificate and its key if there are any"
            raise UserError(f"cannot serve {host}:{port}", detail=str(error), hint=hint) from error
        # Connections inherit it: Nagle's algorithm would delay each answer by 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name, bound_port = self._socket.getsockname()[:2]
        self.url = f"http{'s' if certificate else ''}://{f'[{name}]' if ':' in name else name}:{bound_port}"
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Answer until `stop`, or until a signal if this is the main thread."""
        self._server.run([self._socket])

    def stop(self) -> None:
        """Accept no more connections, and end `run` once what has arrived is answered."""
        self._server.should_exit = True

    async def _trim(self) -> None:
        with suppress(PenstockError):
            await asyncio.to_thread(self.store.trim)

    async def _application(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        head = _Head(scope)
        held = head.body_bytes + (ANSWER_BYTES_MAX if head.method == "GET" else 0)
        refusal = self._refusal(head, held)
        held = 0 if refusal else held
        status = 200
        self._free_bytes -= held
        try:
            # A connection that is closed while its body is still being sent would lose the answer.
            body = b"" if refusal and "expect" in head.headers else await _read(receive, kept=refusal is None)
            if body is None:
                return
            if refusal:
                raise refusal
            match head.method, head.path:
                case "POST", ["topics", topic, "append"]:
                    answer = await self._append(topic, head, body)
                case _:
                    answer = await asyncio.to_thread(self._answer, head, body)
        except PenstockError as error:
            status = 410 if isinstance(error, SliceShrankError) else getattr(error, "status", 500)
            answer = msgspec.json.encode({"primary": error.primary, "detail": error.detail, "hint": error.hint})
        finally:
            self._free_bytes += held
        kind = b"application/msgpack" if head.path[-1] == "records" and status == 200 else b"application/json"
        length = str(len(answer)).encode()
        headers = [(b"content-type", kind), (b"content-length", length), *_HEADERS.get(status, ())]
        if refusal:
            headers.append((b"connection", b"close"))
        self._at_step(STEP)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _refusal(self, head: _Head, held: int) -> PenstockError | None:
        """What is wrong with a request before its body is read."""
        host = head.headers.get("host", "")
        match = _HOST.fullmatch(host)
        if match is None or match["name"] not in self._hosts:
            hint = "start the server with --allow-host NAME, or use its address"
            return WalRefusedError(f"the server is not called {host[:200]!r}", hint=hint, status=403)
        origin = head.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return WalRefusedError(f"pages of {origin[:200]!r} may not use the WAL", status=403)
        if self._tokens and head.path != ["health"] and not self._is_valid(head.headers.get("authorization", "")):
            hint = "send the header Authorization: Bearer TOKEN; commands take --token-file, jobs log.wal.token"
            return WalRefusedError("the WAL server does not know this token", hint=hint, status=401)
        if "transfer-encoding" in head.headers:
            return WalRefusedError("send the body with a Content-Length, not in chunks", status=411)
        if head.headers.get("content-encoding", "identity") != "identity":
            return WalRefusedError("send the body as it is, not compressed", status=415)
        if head.body_bytes > BODY_BYTES_MAX:
            return WalRefusedError(f"a body has at most {BODY_BYTES_MAX} bytes", status=413)
        if held > self._free_bytes:
            return WalFullError("too many bytes are being sent", hint="send again in a moment")
        return None

    def _is_valid(self, authorization: str) -> bool:
        kind, _, token = authorization.partition(" ")
        sent = token.strip().encode("latin-1")
        # Every token is compared, and each in constant time: how long it takes reveals nothing.
        return sum(hmac.compare_digest(sent, token) for token in self._tokens) > 0 and kind.lower() == "bearer"

    async def _append(self, topic: str, head: _Head, body: bytes) -> bytes:
        key, content_type = head.query.get("key", ""), head.headers.get("content-type", "")
        if len(body) <= INLINE_BYTES_MAX:
            count, records = read_body(body, content_type)
        else:
            async with self._decoding:
                count, records = await asyncio.to_thread(read_body, body, content_type)
        number = head.number("partition", 0) if "partition" in head.query else None
        if self._group is None:
            self._group = asyncio.create_task(self._append_group())
        place = len(self._waiting)
        self._waiting.append((topic, count, records, head.headers.get("idempotency-key", ""), key, number))
        # Shielded: a client that disconnects does not cancel the appends of others.
        result = (await asyncio.shield(self._group))[place]
        if isinstance(result, PenstockError):
            raise result
        return msgspec.json.encode(result)

    async def _append_group(self) -> list[Appended | PenstockError]:
        """Append everything that has arrived until this runs, with one fsync."""
        group, self._waiting, self._group = self._waiting, [], None
        return self.store.append_all(group)

    def _answer(self, head: _Head, body: bytes) -> bytes:
        """The answer to a request that is not an append."""
        store = self.store
        answer: object = None
        match head.method, head.path:
            case "GET", ["health"]:
                answer = {"ok": True}
            case "GET", ["topics"]:
                answer = store.partitions()
            case "GET", ["topics", name]:
                answer = store.partitions(name)
            case "PUT", ["topics", name]:
                answer = store.create_topic(name, head.number("partitions", 1))
            case "DELETE", ["topics", name]:
                store.delete_topic(name)
            case "GET", ["topics", name, "records"]:
                start, end = head.number("start", 0), head.number("end", 2**62)
                return store.read(name, head.number("partition", 0), start, end, ANSWER_BYTES_MAX)
            case "PUT", ["jobs", job]:
                try:
                    positions = msgspec.json.decode(body, type=list[tuple[Partition, int]])
                except msgspec.DecodeError as error:
                    raise WalRefusedError("the body holds no positions", detail=str(error), status=400) from None
                answer = store.report(job, positions, "reset" in head.query)
            case "DELETE", ["jobs", job]:
                store.forget_job(job)
            case method, path:
                raise WalRefusedError(f"there is nothing at {method} /{'/'.join(path)[:300]}", status=404)
        return msgspec.json.encode(answer)


class _Connection(HttpToolsProtocol):
    """A connection with a deadline and a bounded head. If there are too many, an idle one is closed."""

    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        idle = [other for other in self.connections if isinstance(other, _Connection) and other.is_idle]
        is_full = len(self.connections) >= CONNECTIONS_MAX
        super().connection_made(transport)
        self._renew()
        if is_full:
            # Those without any request are closed first. If no connection is idle, the new one is closed.
            min(idle, key=lambda other: (other.cycle is not None, other.idle_since), default=self).transport.abort()

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _renew(self) -> None:
        self.idle_since = self.loop.time()
        self._deadline = self.loop.call_later(REQUEST_SECONDS_MAX, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self.is_idle else 0
        if self._head_bytes > HEAD_BYTES_MAX or len(self.pipeline) > PIPELINED_MAX:
            self.transport.abort()

    def on_response_complete(self) -> None:
        self._deadline.cancel()
        self._renew()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)


async def _read(receive: Receive, kept: bool) -> bytes | None:
    """The body of a request, empty if it is not `kept`; None if the client disconnects."""
    chunks, more = [], True
    # What is not kept may be longer than any body; the connection has a deadline.
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        more = message["more_body"]
        if kept:
            chunks.append(message["body"])
    return b"".join(chunks)
