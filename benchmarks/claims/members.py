"""Members of `bench claims`, ours and those of Kafka's consumer groups, together in this process or each in its own.

Fifty members in one interpreter measure its lock. The processes of `--processes` are forked before anything of Kafka is
loaded into the parent, and wait for their start: so neither side pays for imports.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from typing import Any, Generic, Protocol, TypeVar

from confluent_kafka import Consumer

from benchmarks.meters import Meter, Spent
from penstock.claims.member.agent import Agent
from penstock.claims.member.membership import MemberOptions
from penstock.errors import TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.log import Partition

BASELINE_NAME = "Kafka consumer group (KIP-848), the same members over the same partitions"
WAIT_SECONDS_MAX = 600.0
UNFAIR = "the members did not come to fair shares"
_POLL_SECONDS = 0.1
_END_SECONDS_MAX = 60.0


class Member(Protocol):
    def start(self) -> None: ...

    def held(self) -> Collection[object]: ...

    def close(self) -> None: ...


M = TypeVar("M", bound=Member)
Recruit = Callable[[int, str], M]
"""A member, by its number, at these brokers."""


class Consuming:
    """One member of the consumer group, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-baseline",
                "group.protocol": "consumer",
                "enable.auto.commit": False,
                # Neither side of the comparison reads the empty topic: poll it seldom.
                "fetch.wait.max.ms": 5000,
            }
        )
        self._topic = topic
        self._stopping = threading.Event()
        self._held: frozenset[int] = frozenset()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def held(self) -> frozenset[int]:
        return self._held

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(_END_SECONDS_MAX)

    def _run(self) -> None:
        self._consumer.subscribe([self._topic])
        while not self._stopping.is_set():
            self._consumer.poll(_POLL_SECONDS)
            self._held = frozenset(item.partition for item in self._consumer.assignment())
        self._consumer.close()


def claiming(group: str, heartbeat_seconds: float, partitions: Sequence[Partition]) -> Recruit[Agent]:
    """Members of a group of Penstock."""

    def recruit(number: int, bootstrap: str) -> Agent:
        agent = Agent(KafkaLogSpec(bootstrap), MemberOptions(group, client_id(number), heartbeat_seconds))
        agent.request(partitions, {})
        return agent

    return recruit


def client_id(number: int) -> str:
    return f"member-{number:03}"


def fair(held: Collection[int], partitions: int) -> bool:
    """Whether everything is held, and shares differ by at most one."""
    return sum(held) == partitions and max(held) - min(held) <= 1


def wait_until(holds: Callable[[], bool], fault: str) -> None:
    """Raises `TransientError` with what is at fault if it takes too long."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise TransientError(f"{fault} within {WAIT_SECONDS_MAX:g} s")
        time.sleep(_POLL_SECONDS)


class Threads(Generic[M]):
    """Members in this process."""

    def __init__(self, count: int, recruit: Recruit[M]) -> None:
        self._count = count
        self._recruit = recruit
        self.members: list[M] = []
        self.bootstrap = ""

    def stable(self, bootstrap: str, partitions: int) -> Spent:
        """Start all members; what it took until everything was held in shares that differ by at most one."""
        meter = Meter()
        self.bootstrap = bootstrap
        self.members = [self._recruit(number, bootstrap) for number in range(self._count)]
        for member in self.members:
            member.start()
        self.wait_fair(partitions)
        return meter.spent()

    def wait_fair(self, partitions: int) -> None:
        wait_until(lambda: self._is_fair(partitions), UNFAIR)

    def _is_fair(self, partitions: int) -> bool:
        held = [member.held() for member in self.members]
        return fair(list(map(len, held)), partitions) and len(set[object]().union(*held)) == partitions

    def close(self) -> None:
        with ThreadPoolExecutor(self._count) as pool:
            list(pool.map(lambda item: item.close(), self.members))


class Processes:
    """Processes that wait for the brokers' address, then run as members and report how much they hold."""

    def __init__(self, count: int, recruit: Recruit[Member]) -> None:
        context = multiprocessing.get_context("fork")
        self._held: SynchronizedArray[int] = context.Array("i", count)
        self._shared, self._stop = context.Event(), context.Event()
        pipes = [context.Pipe(duplex=False) for _ in range(count)]
        self._starts = [start for _, start in pipes]
        self._processes = [
            context.Process(
                target=_member, args=(number, recruit, wait, self._held, self._shared, self._stop), daemon=True
            )
            for number, (wait, _) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def stable(self, bootstrap: str, partitions: int) -> Spent:
        """The same as of members in this process."""
        meter = Meter()
        for start in self._starts:
            start.send(bootstrap)
        wait_until(lambda: fair(self._held[:], partitions), UNFAIR)
        spent = meter.spent()
        # Reporting what they hold would be a good part of their work at rest.
        self._shared.set()
        return spent

    def close(self) -> None:
        self._shared.set()
        self._stop.set()
        for process in self._processes:
            process.join(_END_SECONDS_MAX)
            process.kill()


def _member(
    number: int, recruit: Recruit[Member], wait: Any, held: SynchronizedArray[int], shared: Event, stop: Event
) -> None:
    member = recruit(number, wait.recv())
    member.start()
    while not shared.wait(_POLL_SECONDS):
        held[number] = len(member.held())
    stop.wait()
    member.close()
