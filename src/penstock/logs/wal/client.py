"""A client of a WAL server. Appends carry a key: one whose answer was lost is repeated without a second copy."""

from __future__ import annotations

import http.client
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.errors import InvariantError, PenstockError, TransientError, UserError
from penstock.logs.log import Partition, SliceShrankError
from penstock.logs.wal.records import (
    RECORDS_TYPE,
    Appended,
    StoredAppend,
    WalDamagedError,
    WalFullError,
    WalPartition,
    WalRefusedError,
    decode_appends,
)
from penstock.serving import is_token

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 5.0
CALL_SECONDS_MAX = 60.0

T = TypeVar("T")


class WalClient(AbstractContextManager["WalClient"]):
    """One connection to a server, for one thread; closed by `close` or by the end of a `with` block.

    A request is tried `tries_max` times, with pauses that double.
    """

    def __init__(
        self, url: str, token: str = "", tries_max: int = 8, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if not is_address(url):
            raise UserError(f"invalid address of a WAL server: {url!r}", hint="write http://HOST:PORT")
        if token and not is_token(token):
            hint = "remove the end of the line, if it was read from a file"
            raise UserError("the token contains blanks, line ends or characters beyond ASCII", hint=hint)
        self.url = url.rstrip("/")
        self._tries_max, self._sleep = tries_max, sleep
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        split = urlsplit(url)
        kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(split.hostname or "", split.port, timeout=CALL_SECONDS_MAX)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def append(
        self, topic: str, values: Iterable[bytes], *, key: str = "", partition: int | None = None, client_key: str = ""
    ) -> Appended:
        """Append records with these values, all or none; returns their offsets once they are durable.

        Appends with the same `key` go to the same partition, unless `partition` names one. `client_key` makes it safe
        to repeat the call later or in another process; within a call repeats are safe.
        """
        query = {"key": key} if partition is None else {"partition": partition}
        headers = {"Content-Type": RECORDS_TYPE, "Idempotency-Key": client_key or uuid.uuid4().hex}
        body = msgspec.msgpack.encode(list(values))
        return self._call(Appended, "POST", ["topics", topic, "append"], query, body, headers)

    def partitions(self, topic: str = "") -> list[WalPartition]:
        """The partitions of a topic, or all."""
        return self._call(list[WalPartition], "GET", ["topics", topic])

    def create_topic(self, name: str, partitions: int = 1) -> list[WalPartition]:
        """Create a topic, or return the existing one if it has as many partitions."""
        return self._call(list[WalPartition], "PUT", ["topics", name], {"partitions": partitions})

    def read(self, topic: str, number: int, start: int, end: int) -> Iterator[tuple[StoredAppend, list[bytes]]]:
        """Appends with the records `[start, end)`, which must be durable; repeats the request until all are read."""
        while start < end:
            before = start
            query = {"partition": number, "start": start, "end": end}
            for append, values in decode_appends(self._answer("GET", ["topics", topic, "records"], query)):
                if append.offset > start:
                    raise WalDamagedError(f"the append with offset {start} of {topic}/{number} is missing")
                yield append, values
                start = append.end
            if start == before:
                raise SliceShrankError(f"{topic}/{number} ends at {start}, before {end}")

    def report(self, job: str, positions: Mapping[Partition, int], reset: bool = False) -> dict[Partition, str]:
        """Report the committed positions of a job; returns why some did not move."""
        body = msgspec.json.encode(list(positions.items()))
        present = self._call(list[int], "PUT", ["jobs", job], {"reset": 1} if reset else {}, body)
        places = zip(positions.items(), present, strict=True)
        return {partition: f"already at {at}" for (partition, to), at in places if at > to}

    def forget_job(self, job: str) -> None:
        """Unregister a job: what only it still needed may be deleted."""
        self._answer("DELETE", ["jobs", job])

    def _call(self, kind: type[T], *arguments: Any) -> T:
        """Send a request whose answer is JSON."""
        try:
            return msgspec.json.decode(self._answer(*arguments), type=kind)
        except msgspec.DecodeError as error:
            raise WalRefusedError("the answer is not that of a WAL server", detail=str(error)) from None

    def _answer(
        self,
        method: str,
        path: Iterable[str],
        query: Mapping[str, object] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send a request until it is answered; every request may be sent twice, appends because of their keys."""
        target = f"/{'/'.join(quote(part, safe='') for part in path)}?{urlencode(query or {})}"
        error: PenstockError = InvariantError("no try was allowed")
        for attempt in range(self._tries_max):
            if attempt:
                self._sleep(min(PAUSE_SECONDS * 2 ** (attempt - 1), PAUSE_SECONDS_MAX))
            try:
                self._connection.request(method, target, body, {**self._headers, **(headers or {})})
                response = self._connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException) as failure:
                self.close()
                detail = str(failure) or type(failure).__name__
                error = TransientError(f"the WAL server at {self.url} does not answer", detail=detail)
                continue
            if response.status == 200:
                return answer
            error = _error(response.status, answer)
            if not isinstance(error, WalFullError):
                break
        raise error


def is_address(url: str) -> bool:
    """Whether a text is http://HOST:PORT or https://HOST:PORT."""
    try:
        split = urlsplit(url)
        valid = bool(split.hostname) and split.port != 0 and split.username is None
    except ValueError:
        return False
    return valid and split.scheme in ("http", "https") and url.rstrip("/") == f"{split.scheme}://{split.netloc}"


def _error(status: int, answer: bytes) -> PenstockError:
    """The error that the server had."""
    try:
        fields = msgspec.json.decode(answer, type=dict[str, str])
    except msgspec.DecodeError:
        fields = {"primary": f"the WAL server answers with status {status}"}
    kinds = {410: SliceShrankError, 500: InvariantError, 503: WalFullError}
    return kinds[status](**fields) if status in kinds else WalRefusedError(**fields, status=status)
