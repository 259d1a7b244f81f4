"""Members of a group over a real coordination topic, in this process or in one of their own that can be killed.

python -m tests.support.claimants BOOTSTRAP TOPIC GROUP CLIENT_ID PARTITIONS: a member that holds its share until it is
killed.
"""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from penstock.claims.member.agent import Agent, CoordinationOptions
from penstock.claims.member.journal import Journal
from penstock.claims.member.membership import MemberOptions
from penstock.claims.member.topics import CoordinationTopic, find_topic
from penstock.errors import UserError
from penstock.events import Event
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import Partition
from tests.support.forked import Forked
from tests.support.waiting import wait_until

HEARTBEAT_SECONDS = 1.0
PATIENT_SECONDS = 60.0
"""The interval of a journal alongside the members: half of it is how long a record may take to be delivered."""
LATE_SECONDS = 30.0
"""What a busy machine may add to a bound; the bounds themselves are proved in virtual time, in tests/unit/claims."""
PLACES = 4
"""Partitions of a test's coordination topic."""

Held = dict[Partition, int]


def hits(number: int) -> Partition:
    return Partition("hits", "id-of-hits", number)


def hits_up_to(count: int) -> tuple[Partition, ...]:
    return tuple(hits(number) for number in range(count))


@dataclass
class Crew:
    """The members of one group in one coordination topic; those still open are closed at the end of the test."""

    bootstrap: str
    requested: tuple[Partition, ...]
    topic: str = field(default_factory=lambda: f"coordination-{uuid.uuid4().hex[:12]}")
    group: str = "shop"
    client_settings: dict[str, str] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    gone: list[Agent] = field(default_factory=list)
    events: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)

    @property
    def spec(self) -> KafkaLogSpec:
        return KafkaLogSpec(self.bootstrap, client_settings=self.client_settings)

    def join(
        self,
        client_id: str,
        floors: Mapping[Partition, int] | None = None,
        places: int = PLACES,
        tables_remember: bool = True,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        listener: Callable[[Event], None] = lambda event: None,
    ) -> Agent:
        """Start a member; a former one of that client id stays as it is."""
        events = self.events.setdefault(client_id, [])

        def record(event: Event) -> None:
            events.append((event.name, event.facts()))
            listener(event)

        agent = Agent(
            self.spec,
            MemberOptions(self.group, client_id, heartbeat_seconds),
            CoordinationOptions(self.topic, places, tables_remember),
            record,
        )
        agent.request(self.requested, floors or {})
        agent.start()
        self.agents[client_id] = agent
        return agent

    def leave(self, client_id: str) -> None:
        self.agents.pop(client_id).close()

    def vanished(self, client_id: str) -> Agent:
        """A member that counts no longer, and is closed with the others."""
        self.gone.append(self.agents.pop(client_id))
        return self.gone[-1]

    def held(self) -> dict[str, Held]:
        return {client_id: agent.held() for client_id, agent in self.agents.items()}

    def shared(self, *counts: int) -> bool:
        """Whether the members hold so many partitions each, in the order of their ids, none of them twice."""
        held = self.held()
        partitions = [partition for item in held.values() for partition in item]
        return len(partitions) == len(set(partitions)) and [len(held[client_id]) for client_id in sorted(held)] == list(
            counts
        )

    def names(self, client_id: str) -> list[str]:
        """The names of the events of one client id, over all its incarnations."""
        return [name for name, _ in self.events[client_id]]

    def described(self) -> CoordinationTopic:
        """The coordination topic as the broker knows it; other brokers may know a new one a little later."""
        result: list[CoordinationTopic] = []
        topics = KafkaTopics(self.spec)

        def described() -> bool:
            with suppress(UserError):
                result.append(find_topic(topics, self.topic))
            return bool(result)

        try:
            wait_until(described)
        finally:
            topics.close()
        return result[0]

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        journal = Journal(self.spec, self.described(), self.group, PATIENT_SECONDS)
        try:
            yield journal
        finally:
            journal.close()

    def place_end(self, place: int) -> int:
        """Where a coordination partition ends."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "ends"})
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(self.topic, place), timeout=30)[1])
        finally:
            consumer.close()

    def close(self) -> None:
        # In parallel: each takes a moment to leave.
        threads = [threading.Thread(target=agent.close) for agent in [*self.agents.values(), *self.gone]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@contextmanager
def other_process(crew: Crew, client_id: str) -> Iterator[Forked]:
    """A member in a process of its own, that holds something already; it can be killed like any process."""
    process = Forked(
        "tests.support.claimants", [crew.bootstrap, crew.topic, crew.group, client_id, str(len(crew.requested))]
    )
    try:
        assert json.loads(process.stdout.readline())["held"] > 0
        yield process
    finally:
        process.kill()
        process.wait()


def main(bootstrap: str, topic: str, group: str, client_id: str, partitions: str) -> None:
    crew = Crew(bootstrap, hits_up_to(int(partitions)), topic, group)
    agent = crew.join(client_id)
    wait_until(lambda: len(agent.held()) > 0)
    print(json.dumps({"held": len(agent.held())}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
