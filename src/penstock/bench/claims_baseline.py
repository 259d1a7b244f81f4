"""The other side of `bench claims`: the same number of plain consumers in one of Kafka's consumer groups."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Consumer

from penstock.bench.meters import Meter, Spent
from penstock.errors import TransientError

BASELINE_NAME = "Kafka consumer group (KIP-848), the same members over the same partitions"
STABLE_SECONDS_MAX = 600.0
_POLL_SECONDS = 0.1


class _Consuming(threading.Thread):
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
    consuming = [_Consuming(bootstrap, topic) for _ in range(members)]
    for each in consuming:
        each.start()
    try:
        deadline = time.monotonic() + STABLE_SECONDS_MAX
        while not _stable([each.held for each in consuming], partitions):
            if time.monotonic() > deadline:
                raise TransientError(f"the consumer group was not stable within {STABLE_SECONDS_MAX:g} s")
            time.sleep(_POLL_SECONDS)
        return meter.spent()
    finally:
        for each in consuming:
            each.stopping.set()
        for each in consuming:
            each.join(60)


def _stable(held: list[frozenset[int]], partitions: int) -> bool:
    counts = [len(each) for each in held]
    return len(frozenset().union(*held)) == sum(counts) == partitions and max(counts) - min(counts) <= 1
