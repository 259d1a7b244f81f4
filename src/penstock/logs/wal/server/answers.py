"""What the server answers to a request: pure routes over a store, without sockets."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from penstock.errors import PenstockError
from penstock.logs.log import SliceShrankError
from penstock.logs.wal.errors import UnknownTopicError, WalDeniedError, WalFullError, WalRefusedError
from penstock.logs.wal.server.bodies import BadBodyError, Fields, read_body
from penstock.logs.wal.store.frames import WalRecord, frames_of
from penstock.logs.wal.store.positions import Reported, Way
from penstock.logs.wal.store.store import WalStore, WalTopic

FRAMES_TYPE = "application/x-penstock-frames"
JSON_TYPE = "application/json"
READ_BYTES_MIN = 1024

_STATUS: tuple[tuple[type[PenstockError], int], ...] = (
    (BadBodyError, 400),
    (WalDeniedError, 401),
    (UnknownTopicError, 404),
    (WalRefusedError, 409),
    (SliceShrankError, 410),
    (WalFullError, 503),
)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    """Path and query."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By names in lower case."""
    body: bytes = b""

    @property
    def path(self) -> list[str]:
        return [unquote(part) for part in urlsplit(self.target).path.strip("/").split("/")]

    def text(self, name: str, default: str = "") -> str:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True).get(name, [default])[-1]

    def number(self, name: str, default: int) -> int:
        text = self.text(name)
        if text and not (text.isdecimal() and len(text) < 20):
            raise BadBodyError(f"{name} is a whole number, not {text!r}")
        return int(text) if text else default


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)


class _TopicReport(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    offsets: dict[int, int]


class PositionsReport(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `PUT /jobs/J/positions`."""

    topics: dict[str, _TopicReport]
    owner: str = ""
    way: Way = "advance"


class Answers:
    """Answers requests from a store; any thread may call."""

    def __init__(self, store: WalStore) -> None:
        self._store = store
        self._turn = itertools.count()
        self.appended_records = 0

    def answer(self, request: Request) -> Answer:
        """The answer to a request; an error of ours becomes one too."""
        try:
            return self._routed(request)
        except PenstockError as error:
            return self.failure(error)

    def failure(self, error: PenstockError) -> Answer:
        """An error as its status and a body from which the client makes it again."""
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        text = {"error": type(error).__name__, "primary": error.primary, "detail": error.detail, "hint": error.hint}
        match status:
            case 401:
                headers = {"WWW-Authenticate": "Bearer"}
            case 503:
                headers = {"Retry-After": str(self._store.limits.retry_after_seconds)}
            case _:
                headers = {}
        return Answer(status, msgspec.json.encode(text), headers=headers)

    def _routed(self, request: Request) -> Answer:
        match request.method, request.path:
            case "GET", ["health"]:
                return _json({"ok": True})
            case "GET", ["topics"]:
                return _json(self._described(self._store.topics().values()))
            case "GET", ["topics", name]:
                return _json(self._described([self._store.topic(name)]))
            case "PUT", ["topics", name]:
                return _json(self._described([self._store.create_topic(name, request.number("partitions", 1))]))
            case "DELETE", ["topics", name]:
                self._store.delete_topic(name)
                return _json({"deleted": name})
            case "POST", ["topics", name, "append"]:
                return self._append(name, request)
            case "GET", ["topics", name, "partitions", number, "records"]:
                return self._read(name, number, request)
            case "GET", ["jobs"]:
                return _json({"jobs": self._store.jobs.all()})
            case "GET", ["jobs", job, "positions"]:
                return _json(_positions(self._store.jobs.of(job).items()))
            case "PUT", ["jobs", job, "positions"]:
                return self._report(job, request)
            case "DELETE", ["jobs", job]:
                self._store.forget_job(job)
                return _json({"deleted": job})
            case _:
                raise UnknownTopicError(f"there is nothing at {request.method} {urlsplit(request.target).path}")

    def _described(self, topics: Iterable[WalTopic]) -> dict[str, Any]:
        return {
            "topics": [
                {
                    "name": topic.name,
                    "id": topic.id,
                    "partitions": [
                        {"number": each.number, **asdict(each.bounds()), "bytes": each.size_bytes}
                        for each in topic.partitions
                    ],
                }
                for topic in topics
            ],
            "record_bytes_max": self._store.limits.record_bytes_max,
        }

    # append

    def _append(self, name: str, request: Request) -> Answer:
        limits = self._store.limits
        topic = self._store.topic(name)
        client_key = request.headers.get("idempotency-key", "")
        content_type = request.headers.get("content-type", "")
        fields = Fields(request.text("key_field"), tuple(filter(None, request.text("json_fields").split(","))))
        records = read_body(request.body, content_type, limits.append_records_max, fields)
        if not records:
            raise BadBodyError("the body holds no record")
        choose = self._chooser(topic, request, client_key)
        shares: dict[int, list[WalRecord]] = {}
        for record in records:
            shares.setdefault(choose(record), []).append(record)
        answers = [self._store.append(name, number, share, client_key) for number, share in sorted(shares.items())]
        self.appended_records += len(records)
        return _json({"topic": name, "records": len(records), "appended": [asdict(each) for each in answers]})

    def _chooser(self, topic: WalTopic, request: Request, client_key: str) -> Callable[[WalRecord], int]:
        """Which partition a record goes to: the one that is named, that of its key, or one for all of the request.

        A repeat must go where the first went, so without keys of records the client key decides.
        """
        count = len(topic.partitions)
        if request.text("partition"):
            named = topic.partition(request.number("partition", 0)).number
            return lambda _: named
        for_all = zlib.crc32(client_key.encode()) % count if client_key else next(self._turn) % count
        return lambda record: for_all if record.key is None else zlib.crc32(record.key) % count

    # read

    def _read(self, name: str, number: str, request: Request) -> Answer:
        if not (number.isdecimal() and len(number) < 10):
            raise UnknownTopicError(f"topic {name} has no partition {number}")
        partition = self._store.topic(name).partition(int(number))
        bounds = partition.bounds()
        start, end = request.number("start", bounds.first), request.number("end", bounds.end)
        asked = request.number("bytes", self._store.limits.response_bytes_max)
        bytes_max = max(READ_BYTES_MIN, min(asked, self._store.limits.response_bytes_max))
        frames = partition.read(start, end, bytes_max)
        if FRAMES_TYPE in request.headers.get("accept", ""):
            return Answer(200, frames, FRAMES_TYPE)
        return _json({"records": _shown(frames, start, min(end, bounds.end))})

    # jobs

    def _report(self, job: str, request: Request) -> Answer:
        try:
            report = msgspec.json.decode(request.body, type=PositionsReport)
        except msgspec.DecodeError as error:
            raise BadBodyError("the body holds no positions", detail=str(error)) from None
        positions = {topic: (each.id, each.offsets) for topic, each in report.topics.items()}
        return _json(_reported(self._store.report(job, report.owner, positions, report.way)))


def _json(content: object) -> Answer:
    return Answer(200, msgspec.json.encode(content))


def _positions(known: Iterable[tuple[tuple[str, str, int], int]]) -> dict[str, Any]:
    return {"positions": [[topic, topic_id, number, offset] for (topic, topic_id, number), offset in known]}


def _reported(reported: Reported) -> dict[str, Sequence[Any]]:
    return {
        "moved": [[*place, offset] for place, offset in reported.moved.items()],
        "refused": [[*place, reason] for place, reason in reported.refused.items()],
    }


def _shown(frames: bytes, start: int, end: int) -> list[dict[str, Any]]:
    """Records for people; bytes that are no text as base64."""
    return [
        {"offset": offset, "at_ms": header.at_ms, "key": _text(record.key), "value": _text(record.value)}
        for header, records in frames_of(frames)
        for offset, record in enumerate(records, header.offset)
        if start <= offset < end
    ]


def _text(value: bytes | None) -> object:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return {"base64": value}
