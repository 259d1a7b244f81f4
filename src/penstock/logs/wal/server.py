"""The server of a WAL: plain ASGI on uvicorn, everything bounded (`WalLimits`).

Requests are checked before their bodies are read: host, origin, token, length, and the bytes of all requests together.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
import uvicorn
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.errors import PenstockError, UserError
from penstock.failpoints import Reach, noop
from penstock.logs.log import SliceShrankError
from penstock.logs.wal.bodies import Fields, read_body
from penstock.logs.wal.database import end_process
from penstock.logs.wal.errors import BadBodyError, UnknownTopicError, WalDeniedError, WalFullError, WalRefusedError
from penstock.logs.wal.limits import WalLimits
from penstock.logs.wal.records import FRAMES_TYPE, JSON_TYPE, Appended, PositionsReport, TopicsView, decode_appends
from penstock.logs.wal.store import WalStore

STEP = "wal_answering"
"""Everything is durable, and the client does not know it yet."""
TRIM_SECONDS = 10
STOP_SECONDS_MAX = 10
"""How long a stop waits for requests that are being answered."""
INLINE_BYTES_MAX = 32 * 1024
"""Larger bodies are decoded in a thread, one at a time: they neither delay others nor add up in memory."""
THREADS = 8
HEAD_BYTES_MAX = 16 * 1024
PIPELINED_MAX = 16

_STATUS: Mapping[type[PenstockError], int] = {
    BadBodyError: 400, UnknownTopicError: 404, WalRefusedError: 409, SliceShrankError: 410, WalFullError: 503,
}  # fmt: skip
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Act = Callable[[], list[Appended]]


class _HeadError(Exception):
    """A refusal before the body is read."""

    def __init__(self, status: int, error: PenstockError) -> None:
        self.status, self.error = status, error


class _Head:
    """The head of a request."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.method: str = scope["method"]
        self.path = [unquote(part) for part in scope["raw_path"].decode("latin-1").strip("/").split("/")]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.body_bytes = int(self.headers.get("content-length", "0"))
        query = scope["query_string"].decode("latin-1")
        self._query: Mapping[str, list[str]] = parse_qs(query, keep_blank_values=True) if query else {}

    def text(self, name: str) -> str:
        return self._query.get(name, [""])[-1]

    def number(self, name: str, default: int) -> int:
        text = self.text(name)
        if text and not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise BadBodyError(f"{name} is a whole number, not {text!r}")
        return int(text) if text else default


class WalServer:
    """Answers for a store until it is stopped; the store stays open."""

    def __init__(
        self,
        store: WalStore,
        host: str,
        port: int,
        reach: Reach = noop,
        tokens: Collection[str] = (),
        hosts: Collection[str] = (),
        certificate: tuple[str, str] | None = None,
    ) -> None:
        self.store = store
        self._reach = reach
        self._tokens = [token.encode() for token in tokens]
        """If there are any, every request but that for health has to bring one of them."""
        self._hosts = {host, "localhost", socket.gethostname(), *hosts}
        """Names that a Host header may have, besides addresses: a page that a browser shows has another."""
        self._waiting: list[tuple[Act, asyncio.Future[list[Appended]]]] = []
        self._free_bytes = store.limits.in_flight_bytes_max
        self._appended_records = 0
        self._threads = ThreadPoolExecutor(THREADS, "wal request")
        self._decoder = ThreadPoolExecutor(1, "wal decoder")
        self._socket = _listen(host, port)
        name, bound_port = self._socket.getsockname()[:2]
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://[{name}]:{bound_port}" if ":" in name else f"{scheme}://{name}:{bound_port}"
        config = uvicorn.Config(
            self._application,
            http=partial(_Connection, store.limits),  # type: ignore[arg-type]
            interface="asgi3",
            loop="asyncio",
            ws="none",
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            access_log=False,
            log_config=None,
            log_level="error",
            callback_notify=self._trim,
            timeout_notify=TRIM_SECONDS,
            timeout_keep_alive=int(store.limits.request_seconds_max) + 1,
            timeout_graceful_shutdown=STOP_SECONDS_MAX,
            ssl_certfile=certificate and certificate[0],
            ssl_keyfile=certificate and certificate[1],
        )
        try:
            config.load()
        except OSError as error:
            self._socket.close()
            raise UserError("the certificate or its key cannot be read", detail=str(error)) from None
        self._server = uvicorn.Server(config)

    def start(self) -> None:
        """Answer in a thread of its own."""
        self._thread = threading.Thread(target=self._serve, name="wal server", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._server.run([self._socket])
        except BaseException as error:  # noqa: BLE001, the top of a thread: a server that does not answer must not look alive
            end_process(error)

    async def _trim(self) -> None:
        with suppress(PenstockError):
            await asyncio.get_running_loop().run_in_executor(self._threads, self.store.trim)

    def stop(self) -> None:
        """Accept no more connections, answer what has arrived, and let the port go."""
        self._server.should_exit = True
        self._thread.join()
        self._threads.shutdown()
        self._decoder.shutdown()

    # one request

    async def _application(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        head = _Head(scope)
        held = 0
        headers = {"Content-Type": JSON_TYPE}
        try:
            self._refuse(head)
            held = head.body_bytes + (self.store.limits.response_bytes_max if head.method == "GET" else 0)
            self._free_bytes -= held
            if self._free_bytes < 0:
                raise _HeadError(503, WalFullError("too many bytes are being sent", hint="send again in a moment"))
            body = await _read(receive)
            if body is None:
                return
            answer, headers["Content-Type"] = await self._answer(head, body)
            status = 200
        except _HeadError as refusal:
            # A connection that is closed while its body still comes would take the answer with it.
            if "expect" not in head.headers:
                await _read(receive, self.store.limits.body_bytes_max)
            status, answer = refusal.status, _described(refusal.error)
            headers["Connection"] = "close"
        except PenstockError as error:
            status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
            answer = _described(error)
        finally:
            self._free_bytes += held
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if status == 503:
            headers["Retry-After"] = str(self.store.limits.retry_after_seconds)
        headers["Content-Length"] = str(len(answer))
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._reach(STEP)
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": answer})

    def _refuse(self, head: _Head) -> None:
        """Raise what is wrong with a request before its body is read."""
        host = head.headers.get("host", "")
        if not _is_address(host) and _host_name(host) not in self._hosts:
            hint = "start the server with --allow-host NAME, or use its address"
            raise _HeadError(403, WalDeniedError(f"the server is not called {host[:200]!r}", hint=hint))
        origin = head.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise _HeadError(403, WalDeniedError(f"pages of {origin[:200]!r} may not use the WAL"))
        if self._tokens and head.path != ["health"] and not self._is_known(head.headers.get("authorization", "")):
            hint = "send the header Authorization: Bearer TOKEN; commands take --token-file, jobs log.wal.token"
            raise _HeadError(401, WalDeniedError("the WAL server does not know this token", hint=hint))
        if "transfer-encoding" in head.headers:
            raise _HeadError(411, BadBodyError("send the body with a Content-Length, not in chunks"))
        if head.headers.get("content-encoding", "identity") != "identity":
            raise _HeadError(415, BadBodyError("send the body as it is, not compressed"))
        if head.body_bytes > self.store.limits.body_bytes_max:
            raise _HeadError(413, BadBodyError(f"a body has at most {self.store.limits.body_bytes_max} bytes"))

    def _is_known(self, authorization: str) -> bool:
        kind, _, token = authorization.partition(" ")
        sent = token.strip().encode("latin-1")
        # Every token is compared, and each in constant time: how long it takes tells nothing.
        return sum(hmac.compare_digest(sent, known) for known in self._tokens) > 0 and kind.lower() == "bearer"

    async def _answer(self, head: _Head, body: bytes) -> tuple[bytes, str]:
        """The body of the answer and its content type."""
        loop = asyncio.get_running_loop()
        if head.method != "POST" or len(head.path) != 3 or head.path[::2] != ["topics", "append"]:
            return await loop.run_in_executor(self._threads, self._content, head, body)
        fields = Fields(head.text("key_field"), tuple(filter(None, head.text("json_fields").split(","))))
        decode = partial(read_body, body, head.headers.get("content-type", ""), self.store.limits, fields)
        records = decode() if len(body) <= INLINE_BYTES_MAX else await loop.run_in_executor(self._decoder, decode)
        number = head.number("partition", 0) if head.text("partition") else None
        client_key = head.headers.get("idempotency-key", "")
        done: asyncio.Future[list[Appended]] = loop.create_future()
        self._waiting.append((self.store.append_act(head.path[1], records, client_key, number), done))
        if len(self._waiting) == 1:
            loop.call_soon(self._append_all)
        appended = await done
        self._appended_records += len(records)
        return _json({"topic": head.path[1], "records": len(records), "appended": appended})

    def _append_all(self) -> None:
        """Append everything that has arrived, with one fsync, and let the requests answer."""
        waiting, self._waiting = self._waiting, []
        results = self.store.append_all([act for act, _ in waiting])
        for (_, done), result in zip(waiting, results, strict=True):
            if done.cancelled():
                continue
            if isinstance(result, PenstockError):
                done.set_exception(result)
            else:
                done.set_result(result)

    def _content(self, head: _Head, body: bytes) -> tuple[bytes, str]:
        store = self.store
        match head.method, head.path:
            case "GET", ["health"]:
                return _json({"ok": True})
            case "GET", ["metrics"]:
                return self._metrics(), "text/plain; version=0.0.4"
            case "GET", ["topics"]:
                return _json(TopicsView(list(store.topics().values()), store.limits.record_bytes_max))
            case "GET", ["topics", name]:
                return _json(TopicsView([store.topic(name)], store.limits.record_bytes_max))
            case "PUT", ["topics", name]:
                topic = store.create_topic(name, head.number("partitions", 1))
                return _json(TopicsView([topic], store.limits.record_bytes_max))
            case "DELETE", ["topics", name]:
                store.delete_topic(name)
                return _json({"deleted": name})
            case "GET", ["topics", name, "partitions", number, "records"] if number.isdecimal() and len(number) < 10:
                return self._records(name, int(number), head)
            case "GET", ["jobs"]:
                return _json({"jobs": store.jobs()})
            case "GET", ["jobs", job, "positions"]:
                return _json({"positions": [place for name, *place in store.positions() if name == job]})
            case "PUT", ["jobs", job, "positions"]:
                try:
                    report = msgspec.json.decode(body, type=PositionsReport)
                except msgspec.DecodeError as error:
                    raise BadBodyError("the body holds no positions", detail=str(error)) from None
                return _json(store.report(job, report))
            case "DELETE", ["jobs", job]:
                store.forget_job(job)
                return _json({"deleted": job})
            case _:
                raise UnknownTopicError(f"there is nothing at {head.method} /{'/'.join(head.path)[:300]}")

    def _records(self, name: str, number: int, head: _Head) -> tuple[bytes, str]:
        start = head.number("start", 0)
        if not head.text("start"):
            start = next((view.first for view in self.store.topic(name).partitions if view.number == number), 0)
        end = head.number("end", 2**63 - 1)
        bytes_max = self.store.limits.response_bytes_max
        appends = self.store.read(name, number, start, end, min(bytes_max, head.number("bytes", bytes_max)))
        if FRAMES_TYPE in head.headers.get("accept", ""):
            return appends, FRAMES_TYPE
        records = [
            {"offset": offset, "at_ms": append.at_ms, "key": _text(record.key), "value": _text(record.value)}
            for append, stored in decode_appends(appends)
            for offset, record in enumerate(stored, append.offset)
            if start <= offset < end
        ]
        return _json({"records": records})

    def _metrics(self) -> bytes:
        registry = CollectorRegistry()
        labels = ("topic", "partition")
        first = Gauge("penstock_wal_first_offset", "First offset that is kept", labels, registry=registry)
        end = Gauge("penstock_wal_end_offset", "Durable end", labels, registry=registry)
        size = Gauge("penstock_wal_bytes", "Bytes on disk", labels, registry=registry)
        lag = Gauge("penstock_wal_lag", "Records a job has not committed", (*labels, "job"), registry=registry)
        connections = Gauge("penstock_wal_connections", "Open connections", registry=registry)
        connections.set(len(self._server.server_state.connections))
        appended = Gauge("penstock_wal_appended_records_total", "Records of answered appends", registry=registry)
        appended.set(self._appended_records)
        jobs = self.store.jobs()
        for topic in self.store.topics().values():
            for view in topic.partitions:
                first.labels(topic.name, view.number).set(view.first)
                end.labels(topic.name, view.number).set(view.end)
                size.labels(topic.name, view.number).set(view.bytes)
                for job, positions in jobs.items():
                    if topic.name in positions:
                        position = positions[topic.name].get(view.number, 0)
                        lag.labels(topic.name, view.number, job).set(view.end - position)
        return generate_latest(registry)


class _Connection(HttpToolsProtocol):
    """A connection with a deadline and a bounded head. If there are too many, one that is idle makes way."""

    def __init__(self, limits: WalLimits, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        others = [connection for connection in self.connections if isinstance(connection, _Connection)]
        super().connection_made(transport)
        self._renew()
        if len(others) < self._limits.connections_max:
            return
        idle = [connection for connection in others if connection.is_idle]
        if idle:
            min(idle, key=lambda connection: (connection.cycle is not None, connection.idle_since)).cut()
        else:
            transport.write(_BUSY)
            transport.close()

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def cut(self) -> None:
        self.transport.abort()

    def _renew(self) -> None:
        self.idle_since = self.loop.time()
        self._deadline = self.loop.call_later(self._limits.request_seconds_max, self.cut)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self.is_idle else 0
        if self._head_bytes > HEAD_BYTES_MAX or len(self.pipeline) > PIPELINED_MAX:
            self.cut()

    def on_response_complete(self) -> None:
        self._deadline.cancel()
        self._renew()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)


async def _read(receive: Receive, discarded_bytes_max: int | None = None) -> bytes | None:
    """The body of a request, or up to so many bytes that are not kept; None if the client goes away."""
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        size += len(message["body"])
        if discarded_bytes_max is None:
            chunks.append(message["body"])
        if not message["more_body"] or (discarded_bytes_max is not None and size > discarded_bytes_max):
            return b"".join(chunks)


def _json(content: object) -> tuple[bytes, str]:
    return msgspec.json.encode(content), JSON_TYPE


def _described(error: PenstockError) -> bytes:
    """An error as a body from which the client makes it again."""
    fields = {"primary": error.primary, "detail": error.detail, "hint": error.hint}
    return msgspec.json.encode({"error": type(error).__name__, **fields})


def _text(value: bytes | None) -> object:
    """Bytes for people: as text, or as base64 if they are none."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return {"base64": value}


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


@lru_cache(256)
def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(_host_name(host)))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this computer reaches a server that listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio turns Nagle's algorithm off: it would delay each answer by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {host}:{port}", detail=str(error)) from error
    return listener
