"""Members of a group for tests, over the real broker, and a reader of their coordination log who is none of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from penstock.claims import CoordinationOptions, Member, Work
from penstock.claims.admin.log_reader import CoordinatedGroup, LogReader
from penstock.claims.protocol.state import Claim
from penstock.errors import TransientError
from penstock.events import Event
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.log import Partition

COORDINATION = CoordinationOptions(topic="members-of-tests", partitions=4)
HEARTBEAT_SECONDS = 1.0
SECONDS_MAX = 120.0

Place = tuple[int, int]


def until(holds: Callable[[], bool], what: str = "it", seconds: float = SECONDS_MAX) -> float:
    """Wait for something within a bound; returns how long that took."""
    started_at = time.monotonic()
    while not holds():
        assert time.monotonic() - started_at < seconds, f"{what} did not come true in {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - started_at


def taken(member: Member, count: int, seconds: float = SECONDS_MAX) -> list[Work]:
    """Poll until that many records came; none of them is done."""
    result: list[Work] = []
    deadline = time.monotonic() + seconds
    while len(result) < count and time.monotonic() < deadline:
        result += member.poll(0.2)
    assert len(result) == count, f"{len(result)} of {count} records came in {seconds} s"
    return result


def worked(member: Member, count: int, seconds: float = SECONDS_MAX) -> list[Work]:
    """Poll until that many records came; all of them are done."""
    result: list[Work] = []
    deadline = time.monotonic() + seconds
    while len(result) < count and time.monotonic() < deadline:
        for work in member.poll(0.2):
            member.done(work)
            result.append(work)
    assert len(result) == count, f"{len(result)} of {count} records came in {seconds} s"
    return result


def places(works: Iterable[Work]) -> list[Place]:
    return sorted((work.partition.number, work.offset) for work in works)


class Members:
    """A group of its own over the given topics; a context manager that closes every member of it."""

    def __init__(self, bootstrap: str, *topics: str) -> None:
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.topics = topics
        self.bootstrap = bootstrap
        self._open = ExitStack()

    def join(self, client_id: str | None = None, **options: Any) -> Member:
        """A member that has started; its short heartbeat gives a busy broker little time to answer its first call."""
        options = {"heartbeat_seconds": HEARTBEAT_SECONDS, "listener": _ignore, **options}
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            member = Member(
                self.bootstrap,
                group=self.group,
                topics=self.topics,
                client_id=client_id,
                coordination=COORDINATION,
                **options,
            )
            try:
                return self._open.enter_context(member)
            except TransientError:
                if time.monotonic() > deadline:
                    raise

    def alone(self, client_id: str | None = None, **options: Any) -> Member:
        """A member that holds every partition."""
        member = self.join(client_id, **options)
        until(lambda: len(member.held()) == len(self.partitions()), "to hold every partition")
        return member

    def partitions(self) -> tuple[Partition, ...]:
        log = KafkaLog(KafkaLogSpec(self.bootstrap, topics=self.topics))
        try:
            return log.partitions()
        finally:
            log.close()

    def claim(self, number: int = 0) -> Claim:
        """The claim of a partition of the first topic in the log."""
        [partition] = [item for item in self.partitions() if (item.topic, item.number) == (self.topics[0], number)]
        with LogReader(self.coordinated()) as reader:
            reader.catch_up()
            return reader.view.claim(partition)

    def coordinated(self) -> CoordinatedGroup:
        """The group as an administrator names it."""
        return CoordinatedGroup(KafkaLogSpec(self.bootstrap), self.group, COORDINATION.topic)

    def __enter__(self) -> Members:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def _ignore(event: Event) -> None:
    """Tests look at the state, not at events."""
