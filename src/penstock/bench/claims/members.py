"""Members of `bench claims`: threads of a consumer group of Kafka's, the other side, and processes of either side.

Fifty members in one interpreter measure its lock. The processes of `--processes` are forked before anything of Kafka is
loaded into the parent, and wait for their start: so neither side pays for imports.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from typing import Any

from confluent_kafka import Consumer

from penstock.bench.meters import Meter, Spent
from penstock.claims.member.agent import Agent
from penstock.claims.member.membership import MemberOptions
from penstock.errors import TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.log import Partition

BASELINE_NAME = "Kafka consumer group (KIP-848), the same members over the same partitions"
WAIT_SECONDS_MAX = 600.0
_POLL_SECONDS = 0.1
_END_SECONDS_MAX = 60.0

Live = Callable[[int, str], tuple[Callable[[], int], Callable[[], None]]]
"""Starts a member, by its number, at these brokers; how to ask what it holds, and how to end it."""


class Consuming(threading.Thread):
    """One member of the consumer group, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-baseline",
                "group.protocol": "consumer",
                "enable.auto.commit": False,
                # An empty topic is read on both sides of the comparison by nobody: ask it seldom.
                "fetch.wait.max.ms": 5000,
            }
        )
        self._topic = topic
        self.stopping = threading.Event()
        self.held: frozenset[int] = frozenset()

    def run(self) -> None:
        self._consumer.subscribe([self._topic])
        while not self.stopping.is_set():
            self._consumer.poll(_POLL_SECONDS)
            self.held = frozenset(each.partition for each in self._consumer.assignment())
        self._consumer.close()


def run_consumer_group(bootstrap: str, topic: str, members: int, partitions: int) -> Spent:
    """Start the members at once; what it took until each had its share of all partitions."""
    meter = Meter()
    consuming = [Consuming(bootstrap, topic) for _ in range(members)]
    for each in consuming:
        each.start()
    try:
        wait_until(lambda: _stable([each.held for each in consuming], partitions), "the consumer group was not stable")
        return meter.spent()
    finally:
        for each in consuming:
            each.stopping.set()
        for each in consuming:
            each.join(_END_SECONDS_MAX)


def _stable(held: list[frozenset[int]], partitions: int) -> bool:
    return len(frozenset().union(*held)) == partitions and fair([len(each) for each in held], partitions)


def fair(held: Collection[int], partitions: int) -> bool:
    """Whether everything is held, by each member as much as by the others up to one."""
    return sum(held) == partitions and max(held) - min(held) <= 1


def wait_until(holds: Callable[[], bool], fault: str) -> None:
    """Raises `TransientError` with what is at fault if it takes too long."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise TransientError(f"{fault} within {WAIT_SECONDS_MAX:g} s")
        time.sleep(_POLL_SECONDS)


class Crew:
    """Processes that wait for the brokers' address, then live as members and say how much they hold."""

    def __init__(self, count: int, live: Live) -> None:
        context = multiprocessing.get_context("fork")
        self._held: SynchronizedArray[int] = context.Array("i", count)
        self._stop = context.Event()
        pipes = [context.Pipe(duplex=False) for _ in range(count)]
        self._starts = [start for _, start in pipes]
        self._processes = [
            context.Process(target=_member, args=(number, live, wait, self._held, self._stop), daemon=True)
            for number, (wait, _) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def stable(self, bootstrap: str, partitions: int) -> Spent:
        """Start all members; what it took until everything was held, by each as much as by the others up to one."""
        meter = Meter()
        for start in self._starts:
            start.send(bootstrap)
        wait_until(lambda: fair(self._held[:], partitions), "the members did not come to fair shares")
        return meter.spent()

    def close(self) -> None:
        self._stop.set()
        for process in self._processes:
            process.join(_END_SECONDS_MAX)
            process.kill()


def _member(number: int, live: Live, wait: Any, held: SynchronizedArray[int], stop: Event) -> None:
    held_now, end = live(number, wait.recv())
    while not stop.wait(_POLL_SECONDS):
        held[number] = held_now()
    end()


def claiming(group: str, heartbeat_seconds: float, partitions: Sequence[Partition]) -> Live:
    """Members of a group of Penstock."""

    def live(number: int, bootstrap: str) -> tuple[Callable[[], int], Callable[[], None]]:
        agent = Agent(KafkaLogSpec(bootstrap), MemberOptions(group, f"member-{number:03}", heartbeat_seconds))
        agent.want(partitions, {})
        agent.start()
        return lambda: len(agent.held()), agent.close

    return live


def consuming(topic: str) -> Live:
    """Members of one of Kafka's consumer groups."""

    def live(number: int, bootstrap: str) -> tuple[Callable[[], int], Callable[[], None]]:
        consumer = Consuming(bootstrap, topic)
        consumer.start()

        def end() -> None:
            consumer.stopping.set()
            consumer.join(_END_SECONDS_MAX)

        return lambda: len(consumer.held), end

    return live
