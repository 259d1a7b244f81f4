"""The folder of a WAL: topics with their partitions, and the jobs that read them. One process owns it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec
import structlog

from penstock.errors import InvariantError, UserError
from penstock.failpoints import Reach, noop
from penstock.logs.wal.errors import UnknownTopicError, WalDamagedError, WalRefusedError
from penstock.logs.wal.limits import WalLimits
from penstock.logs.wal.store.files import sync_folder, write_whole
from penstock.logs.wal.store.frames import CLIENT_KEY_BYTES_MAX, HEADER_NAME_BYTES_MAX, HEADERS_MAX, WalRecord
from penstock.logs.wal.store.partition import Appended, Fatal, StoreContext, WalPartition
from penstock.logs.wal.store.positions import JobPositions, Place, Reported, Way

VERSION = 1
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}")
"""Of topics and jobs; they are names of folders too."""
_NEW, _GONE = ".new-", ".gone-"

logger = structlog.get_logger("penstock.wal")


class TopicFile(msgspec.Struct, frozen=True):
    """What is kept of a topic."""

    version: int
    id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class WalTopic:
    """A topic that is open."""

    name: str
    id: str
    partitions: tuple[WalPartition, ...]

    def partition(self, number: int) -> WalPartition:
        if not 0 <= number < len(self.partitions):
            raise UnknownTopicError(f"topic {self.name} has no partition {number}")
        return self.partitions[number]


def end_process(error: BaseException) -> NoReturn:
    """End at once, so that nothing more is acknowledged: what is written may never become durable."""
    logger.error("the log cannot go on, the process ends", error=str(error), kind=type(error).__name__)
    os._exit(InvariantError.exit_code)


class WalStore:
    """Everything in the folder of a WAL; any thread may call."""

    def __init__(
        self,
        folder: Path,
        limits: WalLimits | None = None,
        now: Callable[[], float] = time.time,
        reach: Reach = noop,
        fatal: Fatal = end_process,
    ) -> None:
        self.limits = limits or WalLimits()
        self._context = StoreContext(self.limits, now, reach, fatal)
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._owned = _own(folder)
        self._folder = folder / "topics"
        self._topics: dict[str, WalTopic] = {}
        try:
            self._folder.mkdir(exist_ok=True)
            self.jobs = JobPositions(folder / "jobs", self.limits.jobs_max)
            sync_folder(folder)
            self._topics |= {topic.name: topic for topic in self._open_all()}
        except BaseException:
            os.close(self._owned)
            raise
        self.trim()

    def _open_all(self) -> Iterator[WalTopic]:
        for path in sorted(self._folder.iterdir()):
            if path.name.startswith((_NEW, _GONE)):
                shutil.rmtree(path)
            else:
                yield self._open(path)

    def _open(self, path: Path) -> WalTopic:
        try:
            file = msgspec.json.decode((path / "topic.json").read_bytes(), type=TopicFile)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WalDamagedError("a topic cannot be read", detail=f"{path}: {error}") from None
        if file.version != VERSION:
            raise WalDamagedError(f"{path} is of version {file.version}, this program reads {VERSION}")
        topic_id = uuid.UUID(file.id).bytes
        opened = tuple(
            WalPartition(path / str(number), number, topic_id, self._context) for number in range(file.partitions)
        )
        for each in opened:
            if each.cut_bytes:
                logger.info("a torn tail was cut", topic=path.name, partition=each.number, bytes=each.cut_bytes)
        return WalTopic(path.name, file.id, opened)

    # topics

    def topics(self) -> Mapping[str, WalTopic]:
        with self._lock:
            return dict(self._topics)

    def topic(self, name: str) -> WalTopic:
        found = self._topics.get(name)
        if found is None:
            known = ", ".join(sorted(self._topics)[:20])
            raise UnknownTopicError(f"there is no topic {name}", hint=f"the log has {known or 'none'}")
        return found

    def create_topic(self, name: str, partitions: int) -> WalTopic:
        """A new topic, or the one that there is if it has as many partitions."""
        refuse_name(name, "topic")
        if not 1 <= partitions <= self.limits.partitions_max:
            raise WalRefusedError(f"a topic has 1 to {self.limits.partitions_max} partitions, not {partitions}")
        with self._lock:
            known = self._topics.get(name)
            if known is not None:
                if len(known.partitions) != partitions:
                    raise WalRefusedError(
                        f"topic {name} has {len(known.partitions)} partitions",
                        hint="their number is fixed: a key would move to another partition, and its repeat with it",
                    )
                return known
            if len(self._topics) >= self.limits.topics_max:
                raise WalRefusedError(f"there are {len(self._topics)} topics already")
            self._topics[name] = self._create(name, partitions)
            return self._topics[name]

    def _create(self, name: str, partitions: int) -> WalTopic:
        """Make the folder under another name first: a topic is there with all its partitions or not at all."""
        topic_id = uuid.uuid4()
        beside = self._folder / f"{_NEW}{topic_id.hex}"
        beside.mkdir()
        for number in range(partitions):
            WalPartition.create(beside / str(number), topic_id.bytes)
        write_whole(beside / "topic.json", msgspec.json.encode(TopicFile(VERSION, topic_id.hex, partitions)))
        beside.rename(self._folder / name)
        sync_folder(self._folder)
        return self._open(self._folder / name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, read or not."""
        with self._lock:
            topic = self.topic(name)
            del self._topics[name]
            for each in topic.partitions:
                each.close()
            gone = self._folder / f"{_GONE}{topic.id}"
            (self._folder / name).rename(gone)
            sync_folder(self._folder)
            self.jobs.forget_topic(topic.id)
        shutil.rmtree(gone)

    # records

    def append(self, topic: str, number: int, records: Sequence[WalRecord], client_key: str = "") -> Appended:
        """Append records to a partition, all or none; returns once they are durable."""
        partition = self.topic(topic).partition(number)
        self._refuse(records, client_key)
        return partition.append(records, client_key)

    def _refuse(self, records: Sequence[WalRecord], client_key: str) -> None:
        if not records:
            raise WalRefusedError("the append holds no record")
        if len(records) > self.limits.append_records_max:
            raise WalRefusedError(f"an append holds at most {self.limits.append_records_max} records")
        if len(client_key.encode()) > CLIENT_KEY_BYTES_MAX:
            raise WalRefusedError(f"a client key has at most {CLIENT_KEY_BYTES_MAX} bytes")
        for index, record in enumerate(records):
            size = len(record.value or b"") + len(record.key or b"")
            if record.headers:
                size += _refused_headers(record, index)
            if size > self.limits.record_bytes_max:
                raise WalRefusedError(
                    f"record {index} of the append has {size} bytes",
                    hint=f"at most {self.limits.record_bytes_max} are taken",
                )

    # jobs

    def report(
        self, job: str, owner: str, positions: Mapping[str, tuple[str, Mapping[int, int]]], way: Way = "advance"
    ) -> Reported:
        """Note committed positions, given as {topic: (topic id, {partition: offset})}, and trim below them."""
        refuse_name(job, "job")
        places = {
            (topic, topic_id, number): offset
            for topic, (topic_id, offsets) in positions.items()
            for number, offset in offsets.items()
        }
        for place, offset in places.items():
            self._refuse_position(place, offset)
        reported = self.jobs.report(job, owner, places, way)
        for topic in {place[0] for place in reported.moved}:
            self._release(self.topic(topic))
        return reported

    def _refuse_position(self, place: Place, offset: int) -> None:
        topic = self.topic(place[0])
        if topic.id != place[1]:
            raise WalRefusedError(f"topic {topic.name} was recreated: its id is {topic.id}")
        bounds = topic.partition(place[2]).bounds()
        if not 0 <= offset <= bounds.end:
            raise WalRefusedError(f"position {offset} of {topic.name}/{place[2]} is beyond its end {bounds.end}")

    def forget_job(self, job: str) -> None:
        """Unregister a job."""
        self.jobs.forget(job)
        self.trim()

    def trim(self) -> None:
        """Delete what every job has committed and whose retention is over."""
        for topic in self.topics().values():
            self._release(topic)

    def _release(self, topic: WalTopic) -> None:
        for each in topic.partitions:
            each.release(self.jobs.committed(topic.name, topic.id, each.number))

    def close(self) -> None:
        """Make everything durable and let the folder go."""
        with self._lock:
            for topic in self._topics.values():
                for each in topic.partitions:
                    each.close()
            self._topics.clear()
        os.close(self._owned)


@contextmanager
def opened(folder: Path, limits: WalLimits | None = None, reach: Reach = noop) -> Iterator[WalStore]:
    """The store of a folder while a block runs."""
    store = WalStore(folder, limits, reach=reach)
    try:
        yield store
    finally:
        store.close()


def refuse_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        raise WalRefusedError(f"{name!r} is no name of a {what}", hint="letters, digits, . _ - up to 249, no . first")


def _refused_headers(record: WalRecord, index: int) -> int:
    """How large the headers of a record are, if they can be kept."""
    names = [len(name.encode()) for name, _ in record.headers]
    if len(names) > HEADERS_MAX or max(names) > HEADER_NAME_BYTES_MAX:
        raise WalRefusedError(
            f"record {index} of the append has {len(names)} headers, the longest name has {max(names)} bytes",
            hint=f"at most {HEADERS_MAX} headers with names of {HEADER_NAME_BYTES_MAX} bytes are taken",
        )
    return sum(names) + sum(len(value or b"") for _, value in record.headers)


def _own(folder: Path) -> int:
    """Lock the folder for this process; the lock goes with the process, however it ends."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UserError(f"another process serves the folder {folder}", hint="one server per folder") from None
    return descriptor
