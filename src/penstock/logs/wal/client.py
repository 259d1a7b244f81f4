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
from penstock.logs.wal import errors
from penstock.logs.wal.errors import WalAwayError, WalFullError, WalRefusedError
from penstock.logs.wal.records import (
    FRAMES_TYPE,
    JSON_TYPE,
    RECORDS_TYPE,
    Appended,
    Place,
    PositionsReport,
    Reported,
    StoredAppend,
    TopicReport,
    TopicsView,
    TopicView,
    WalRecord,
    Way,
    decode_appends,
    encode_record,
    join_records,
)

PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 5.0

T = TypeVar("T")
Sendable = WalRecord | bytes | str | Mapping[str, Any]
"""A record, its value, or a row that becomes a JSON object."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try; the pauses between tries double."""

    tries_max: int = 8
    call_seconds_max: float = 60.0
    sleep: Callable[[float], None] = time.sleep


class WalClient:
    """One connection to a server, for one thread; closed by `close` or by the end of a `with` block."""

    def __init__(self, url: str, patience: Patience | None = None, token: str = "") -> None:
        if not is_address(url):
            raise UserError(f"{url!r} is no address of a WAL server", hint="write http://HOST:PORT")
        if token and not is_token(token):
            hint = "remove the end of the line, if it was read from a file"
            raise UserError("the token contains blanks, line ends or characters beyond ASCII", hint=hint)
        self.url = url.rstrip("/")
        self._patience = patience or Patience()
        self._headers = {"Accept": JSON_TYPE} | ({"Authorization": f"Bearer {token}"} if token else {})
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

    def append(
        self,
        topic: str,
        records: Iterable[Sendable],
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        client_key: str = "",
    ) -> list[Appended]:
        """Append records, all or none; returns their offsets once they are durable.

        `key` is that of every record that has none of its own; records with one key are in one partition.
        `client_key` makes it safe to repeat the call later or in another process; within a call repeats are safe.
        """
        encoded_key = key.encode() if isinstance(key, str) else key
        body = join_records([encode_record(_record(record, encoded_key)) for record in records])
        return self.append_body(topic, body, RECORDS_TYPE, partition=partition, client_key=client_key)

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
        key = client_key or f"{self._producer}:{next(self._sequence)}"
        headers = {"Content-Type": content_type, "Idempotency-Key": key}
        answer = self._call("POST", ["topics", topic, "append"], query, body, headers)
        appended: list[Appended] = msgspec.convert(_decoded(answer, dict[str, Any])["appended"], list[Appended])
        return appended

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

    def frames(
        self, topic: str, number: int, start: int, end: int, bytes_max: int
    ) -> Iterator[tuple[StoredAppend, list[WalRecord]]]:
        """The appends with the records `[start, end)`, which must be durable; asks again until all have come."""
        path = ["topics", topic, "partitions", str(number), "records"]
        while start < end:
            query = {"start": start, "end": end, "bytes": bytes_max}
            before = start
            for append, records in decode_appends(self._call("GET", path, query, headers={"Accept": FRAMES_TYPE})):
                yield append, records
                start = append.end
            if start == before:
                raise SliceShrankError(f"{topic}/{number} ends at {start}, before {end}")

    def positions(self, job: str) -> dict[Place, int]:
        """The positions of a job by topic, topic id and partition."""
        answer = _decoded(self._call("GET", ["jobs", job, "positions"]), dict[str, list[tuple[str, str, int, int]]])
        return {(topic, topic_id, number): offset for topic, topic_id, number, offset in answer["positions"]}

    def report(
        self, job: str, owner: str, positions: Mapping[Place, int], way: Way = "advance"
    ) -> tuple[dict[Place, int], dict[Place, str]]:
        """Report positions (`records.Way`): which moved, and why others did not."""
        report = PositionsReport({}, owner, way)
        for (topic, topic_id, number), offset in positions.items():
            report.topics.setdefault(topic, TopicReport(topic_id, {})).offsets[number] = offset
        answer = self._call("PUT", ["jobs", job, "positions"], body=msgspec.json.encode(report))
        reported = _decoded(answer, Reported)
        moved = {(topic, topic_id, number): offset for topic, topic_id, number, offset in reported.moved}
        return moved, {(topic, topic_id, number): reason for topic, topic_id, number, reason in reported.refused}

    def jobs(self) -> dict[str, dict[str, dict[int, int]]]:
        """The positions of every registered job."""
        return _decoded(self._call("GET", ["jobs"]), dict[str, dict[str, dict[str, dict[int, int]]]])["jobs"]

    def forget_job(self, job: str) -> None:
        """Unregister a job: what only it still needed may go."""
        self._call("DELETE", ["jobs", job])

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
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target += f"?{urlencode(given)}" if given else ""
        error: PenstockError = InvariantError("no try was allowed")
        for attempt in range(self._patience.tries_max):
            if attempt:
                self._patience.sleep(min(PAUSE_SECONDS * 2 ** (attempt - 1), PAUSE_SECONDS_MAX))
            try:
                status, answer = self._once(method, target, body, headers or {})
            except (OSError, http.client.HTTPException) as failure:
                self.close()
                detail = str(failure) or type(failure).__name__
                error = WalAwayError(f"the WAL server at {self.url} does not answer", detail=detail)
                continue
            if status == HTTPStatus.OK:
                return answer
            error = _error(status, answer)
            if status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise error
        raise error

    def _once(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            split = urlsplit(self.url)
            kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(split.hostname or "", split.port, timeout=self._patience.call_seconds_max)
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.request(method, target, body, {**self._headers, **headers})
        response = self._connection.getresponse()
        answer = response.read()
        if response.will_close:
            self.close()
        return response.status, answer


def is_address(url: str) -> bool:
    """Whether it is http://HOST:PORT, or the same with https."""
    try:
        split = urlsplit(url)
        valid_port = split.port is None or split.port >= 1
    except ValueError:
        return False
    rest = split.path.strip("/") or split.query or split.fragment or split.username
    return split.scheme in ("http", "https") and bool(split.hostname) and valid_port and not rest


def is_token(text: str) -> bool:
    """Whether a header can carry it."""
    return text.isascii() and text.isprintable() and bool(text) and " " not in text


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
    """The error that the server had."""
    try:
        fields = msgspec.json.decode(answer, type=dict[str, str])
    except msgspec.DecodeError:
        fields = {}
    if status == HTTPStatus.SERVICE_UNAVAILABLE and not fields:
        return WalFullError("the WAL server has too many connections")
    kinds = {"SliceShrankError": SliceShrankError, **vars(errors)}
    fallback = WalRefusedError if status < HTTPStatus.INTERNAL_SERVER_ERROR else InvariantError
    kind: type[PenstockError] = kinds.get(fields.get("error", ""), fallback)
    primary = fields.get("primary") or f"the WAL server answers with status {status}"
    return kind(primary, detail=fields.get("detail", ""), hint=fields.get("hint", ""))
