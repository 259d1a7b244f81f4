"""A client of a WAL server. Appends carry a key: one whose answer was lost is repeated without a second copy."""

from __future__ import annotations

import http.client
import itertools
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.errors import InvariantError, PenstockError, UserError
from penstock.logs.log import SliceShrankError
from penstock.logs.wal.errors import (
    UnknownTopicError,
    WalAwayError,
    WalDamagedError,
    WalDeniedError,
    WalFullError,
    WalRefusedError,
)
from penstock.logs.wal.server.answers import FRAMES_TYPE, JSON_TYPE
from penstock.logs.wal.server.bodies import RECORDS_TYPE, BadBodyError, encode_records
from penstock.logs.wal.spec import is_token
from penstock.logs.wal.store.frames import FrameHeader, WalRecord, frames_of
from penstock.logs.wal.store.partition import Appended
from penstock.logs.wal.store.positions import Place, Way

TRIES_MAX = 8
CALL_SECONDS_MAX = 60.0
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 5.0

_ERRORS: dict[str, type[PenstockError]] = {
    kind.__name__: kind
    for kind in (
        BadBodyError,
        SliceShrankError,
        UnknownTopicError,
        WalDamagedError,
        WalDeniedError,
        WalFullError,
        WalRefusedError,
    )
}

T = TypeVar("T")
Sendable = WalRecord | bytes | str | Mapping[str, Any]
"""A record, its value, or a row that becomes a JSON object."""


class PartitionView(msgspec.Struct, frozen=True):
    """A partition as the server tells it."""

    number: int
    first: int
    end: int
    bytes: int


class TopicView(msgspec.Struct, frozen=True):
    """A topic as the server tells it."""

    name: str
    id: str
    partitions: list[PartitionView]


class TopicsView(msgspec.Struct, frozen=True):
    topics: list[TopicView]
    record_bytes_max: int


class _Failure(msgspec.Struct, frozen=True):
    error: str = ""
    primary: str = ""
    detail: str = ""
    hint: str = ""


class _AppendView(msgspec.Struct, frozen=True):
    appended: list[Appended]


class _ReportView(msgspec.Struct, frozen=True):
    moved: list[tuple[str, str, int, int]]
    refused: list[tuple[str, str, int, str]]


class _PositionsView(msgspec.Struct, frozen=True):
    positions: list[tuple[str, str, int, int]]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try; the pauses between tries double."""

    tries_max: int = TRIES_MAX
    call_seconds_max: float = CALL_SECONDS_MAX
    sleep: Callable[[float], None] = time.sleep


class WalClient:
    """One connection to a server, for one thread; closed by `close` or by the end of a `with` block."""

    def __init__(self, url: str, patience: Patience | None = None, token: str = "") -> None:
        split = urlsplit(url)
        if split.scheme != "http" or not split.hostname or split.path.strip("/"):
            raise UserError(f"{url!r} is no address of a WAL server", hint="write http://HOST:PORT")
        self.url = url.rstrip("/")
        self._host, self._port = split.hostname, split.port or 80
        self._patience = patience or Patience()
        if token and not is_token(token):
            hint = "remove the end of the line, if it was read from a file"
            raise UserError("the token contains blanks, line ends or characters beyond ASCII", hint=hint)
        self._identity = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection: http.client.HTTPConnection | None = None
        self._producer = uuid.uuid4().hex
        self._sequence = itertools.count()

    def __enter__(self) -> WalClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # appending

    def append(
        self,
        topic: str,
        records: Iterable[Sendable],
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        client_key: str = "",
    ) -> list[Appended]:
        """Append records; returns their offsets once they are durable. A failed call appended all, some or nothing.

        `key` is that of every record that has none of its own; records with one key are in one partition.
        `client_key` makes it safe to repeat the call later or in another process; within a call repeats are safe.
        """
        encoded_key = key.encode() if isinstance(key, str) else key
        kept = [_record(each, encoded_key) for each in records]
        return self.append_body(topic, encode_records(kept), RECORDS_TYPE, partition=partition, client_key=client_key)

    def append_body(
        self,
        topic: str,
        body: bytes,
        content_type: str,
        *,
        partition: int | None = None,
        client_key: str = "",
        key_field: str = "",
        json_fields: Iterable[str] = (),
    ) -> list[Appended]:
        """Append a body of one of the formats that the server reads."""
        query = {"partition": partition, "key_field": key_field or None, "json_fields": ",".join(json_fields) or None}
        headers = {
            "Content-Type": content_type,
            "Idempotency-Key": client_key or f"{self._producer}:{next(self._sequence)}",
        }
        answer = self._call("POST", ["topics", topic, "append"], query, body, headers)
        return _decoded(answer, _AppendView).appended

    # topics

    def topics(self) -> TopicsView:
        return _decoded(self._call("GET", ["topics"]), TopicsView)

    def topic(self, name: str) -> TopicView:
        return _decoded(self._call("GET", ["topics", name]), TopicsView).topics[0]

    def create_topic(self, name: str, partitions: int = 1) -> TopicView:
        """A new topic, or the one that there is if it has as many partitions."""
        return _decoded(self._call("PUT", ["topics", name], {"partitions": partitions}), TopicsView).topics[0]

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, read or not."""
        self._call("DELETE", ["topics", name])

    # reading

    def frames(
        self, topic: str, number: int, start: int, end: int, bytes_max: int
    ) -> Iterator[tuple[FrameHeader, list[WalRecord]]]:
        """The appends with the records `[start, end)`, which must be durable; asks again until all have come."""
        path = ["topics", topic, "partitions", str(number), "records"]
        while start < end:
            query = {"start": start, "end": end, "bytes": bytes_max}
            before = start
            for header, records in frames_of(self._call("GET", path, query, headers={"Accept": FRAMES_TYPE})):
                yield header, records
                start = header.end
            if start == before:
                raise SliceShrankError(f"{topic}/{number} ends at {start}, before {end}")

    # jobs

    def positions(self, job: str) -> dict[Place, int]:
        """The positions of a job by topic, topic id and partition."""
        answer = _decoded(self._call("GET", ["jobs", job, "positions"]), _PositionsView)
        return {(topic, topic_id, number): offset for topic, topic_id, number, offset in answer.positions}

    def report(
        self, job: str, owner: str, positions: Mapping[Place, int], way: Way = "advance"
    ) -> tuple[dict[Place, int], dict[Place, str]]:
        """Report positions (`store.positions.Way`): which moved, and why others did not."""
        topics: dict[str, dict[str, Any]] = {}
        for (topic, topic_id, number), offset in positions.items():
            topics.setdefault(topic, {"id": topic_id, "offsets": {}})["offsets"][number] = offset
        body = msgspec.json.encode({"owner": owner, "way": way, "topics": topics})
        answer = _decoded(self._call("PUT", ["jobs", job, "positions"], body=body), _ReportView)
        return {(a, b, c): offset for a, b, c, offset in answer.moved}, {(a, b, c): d for a, b, c, d in answer.refused}

    def jobs(self) -> dict[str, dict[str, dict[int, int]]]:
        """The positions of every registered job."""
        return _decoded(self._call("GET", ["jobs"]), dict[str, dict[str, dict[str, dict[int, int]]]])["jobs"]

    def forget_job(self, job: str) -> None:
        """Unregister a job: what only it still needed may go."""
        self._call("DELETE", ["jobs", job])

    # calls

    def _call(
        self,
        method: str,
        path: Iterable[str],
        query: Mapping[str, object] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send a request until it is answered; every request may be sent twice, appends because of their keys."""
        target = "/" + "/".join(quote(part, safe="") for part in path)
        known = {name: value for name, value in (query or {}).items() if value is not None}
        target += f"?{urlencode(known)}" if known else ""
        error: PenstockError = InvariantError("no try was allowed")
        for attempt in range(self._patience.tries_max):
            if attempt:
                self._patience.sleep(min(PAUSE_SECONDS * 2 ** (attempt - 1), PAUSE_SECONDS_MAX))
            try:
                status, answer = self._once(method, target, body, headers or {})
            except (OSError, http.client.HTTPException) as failure:
                self.close()
                error = WalAwayError(f"the WAL server at {self.url} does not answer", detail=_told(failure))
                continue
            if status == HTTPStatus.OK:
                return answer
            error = _error(status, answer)
            if status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise error
        raise error

    def _once(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                self._host, self._port, timeout=self._patience.call_seconds_max
            )
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.request(method, target, body, {"Accept": JSON_TYPE, **self._identity, **headers})
        response = self._connection.getresponse()
        answer = response.read()
        if response.will_close:
            self.close()
        return response.status, answer


def _record(given: Sendable, key: bytes | None) -> WalRecord:
    match given:
        case WalRecord():
            return given if given.key is not None or key is None else WalRecord(given.value, key, given.headers)
        case bytes():
            return WalRecord(given, key)
        case str():
            return WalRecord(given.encode(), key)
        case _:
            return WalRecord(msgspec.json.encode(given), key)


def _decoded(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise WalRefusedError("the answer is not that of a WAL server", detail=str(error)) from None


def _error(status: int, answer: bytes) -> PenstockError:
    """The error that the server had, made again."""
    try:
        told = msgspec.json.decode(answer, type=_Failure)
    except msgspec.DecodeError:
        told = _Failure()
    if status == HTTPStatus.SERVICE_UNAVAILABLE and not told.error:
        return WalFullError("the WAL server has too many connections")
    kind = _ERRORS.get(told.error, WalRefusedError if status < HTTPStatus.INTERNAL_SERVER_ERROR else InvariantError)
    return kind(told.primary or f"the WAL server answers with status {status}", detail=told.detail, hint=told.hint)


def _told(failure: BaseException) -> str:
    return str(failure) or type(failure).__name__
