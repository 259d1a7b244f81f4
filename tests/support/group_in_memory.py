"""A group in virtual time: real agents and folds without threads and broker; time passes only in the test's calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from penstock.claims.group import GroupClaims
from penstock.claims.member.agent import Agent
from penstock.claims.member.membership import MemberOptions
from penstock.claims.member.outbox import SendResult
from penstock.claims.member.participant import Participant
from penstock.claims.member.session import Session
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import Record
from penstock.claims.protocol.state import Claim
from penstock.job.spec import KafkaLogSpec
from penstock.logs.log import Partition

GROUP = "shop"
INTERVAL = 10.0
STEP_SECONDS = 1.0
EPOCH = 1
PLACES = 2


class MemoryGroup:
    """The coordination log of one group, its clock, and its members."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.log: list[tuple[Record, float]] = []
        self.agents: list[MemoryAgent] = []

    def join(self, client_id: str, partitions: Sequence[Partition], **options: Any) -> MemoryAgent:
        """A member that has joined; the others have read that."""
        agent = MemoryAgent(self, MemberOptions(GROUP, client_id, INTERVAL, **options))
        agent.request(partitions, {})
        self.agents.append(agent)
        self.turn()
        return agent

    def claims(self, client_id: str, partitions: Sequence[Partition]) -> GroupClaims:
        """A member as the engine knows it."""
        return GroupClaims(self.join(client_id, partitions))

    def vanish(self, agent: MemoryAgent) -> None:
        """A member falls silent, as one that was killed."""
        self.agents.remove(agent)

    def append(self, records: Iterable[Record]) -> None:
        self.log += [(record, self.now) for record in records]

    def turn(self) -> None:
        """All members read, decide and send, until none has anything to send."""
        while sum(agent.turn() for agent in self.agents):
            pass

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass in small steps, in each of which all members take their turns."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + STEP_SECONDS)
            self.turn()

    def claim(self, partition: Partition) -> Claim:
        """The claim in the view of a reader that reads everything now."""
        view = GroupView(GROUP, INTERVAL)
        for offset, (record, appended_at) in enumerate(self.log):
            view.read(offset, record, self.now, appended_at, EPOCH)
        return view.claim(partition)


@dataclass(frozen=True, slots=True)
class MemorySession:
    """What an agent needs of its session to send a record."""

    agent: MemoryAgent

    @property
    def journal(self) -> Any:
        return SimpleNamespace(topic=SimpleNamespace(partitions=PLACES))

    def send(self, participant: Participant, records: Iterable[Record]) -> None:
        if not self.agent.disconnected:
            self.agent.group.append(records)


class MemoryAgent(Agent):
    """An agent whose thread is the test."""

    def __init__(self, group: MemoryGroup, member: MemberOptions) -> None:
        super().__init__(KafkaLogSpec("nowhere:9092"), member, now=lambda: group.now)
        self.group = group
        self._read = 0
        self.disconnected = False
        """Cut off from the log: it neither reads nor sends."""
        nonce = f"{member.client_id}-{len(group.agents)}"
        self._participant = Participant(member, nonce, GroupView(GROUP, INTERVAL))
        self._session = cast("Session", MemorySession(self))
        self._read_log(self._participant)
        self._participant.begin(group.now)

    def turn(self) -> bool:
        """Read, decide, send; returns whether there was anything to send."""
        assert self._participant is not None
        if self.disconnected:
            return False
        self._read_log(self._participant)
        records = self._participant.decide(self.group.now)
        self.group.append(records)
        return bool(records)

    def _read_log(self, participant: Participant) -> None:
        for offset in range(self._read, len(self.group.log)):
            record, appended_at = self.group.log[offset]
            participant.read(offset, record, self.group.now, appended_at, EPOCH)
        self._read = len(self.group.log)

    def _read_back(self, verdicts: Sequence[Future[SendResult]], deadline: float) -> list[SendResult]:
        self.group.turn()
        if self.disconnected:
            # Time passes while a caller waits for what does not come.
            self.group.now = max(self.group.now, deadline)
        return super()._read_back(verdicts, deadline)


class Fetched:
    """A record as a Kafka consumer gives it."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 0, 0

    def __getattr__(self, name: str) -> Any:
        return lambda: None
