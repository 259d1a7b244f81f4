"""One process of the simulation: a real agent whose thread and Kafka clients are the simulation's.

And the interface of a workload: the work that processes do with their claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, cast

from penstock.claims.member.agent import Agent, CoordinationOptions
from penstock.claims.member.journal import Journal, JournalEntry
from penstock.claims.member.membership import MemberOptions
from penstock.claims.member.outbox import SendResult
from penstock.claims.member.participant import Participant
from penstock.claims.member.session import Session
from penstock.claims.member.topics import CoordinationTopic
from penstock.claims.protocol.records import Record
from penstock.claims.protocol.snapshots import Snapshot
from penstock.claims.protocol.state import GroupState
from penstock.errors import OutcomeUnknownError, PenstockError, TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.log import Partition
from tests.support.coordination import GROUP
from tests.unit.claims.simulation.coordination_log import PLACES, CoordinationLog

POLLS_AT_ONCE_MAX = 10_000

Failed = Callable[[Record], None]


class Network(Protocol):
    """What lies between a process and the log."""

    log: CoordinationLog
    now: float

    def send(self, process: Process, record: Record, failed: Failed) -> None: ...

    def flush(self, process: Process) -> bool:
        """Whether everything that a process sent is in the log now."""
        ...

    def misses(self) -> bool:
        """Whether a reader overlooks a record: never, unless the test breaks it on purpose."""
        ...


@dataclass(slots=True)
class Job:
    """Work that is being done: it began under a token, and ends when it is ready."""

    token: int
    start: int
    end: int
    ready_at: float
    lease: int | None = None


@dataclass(slots=True, eq=False)
class Process:
    """One incarnation of a member, with its own clock, its own delays, and work in flight."""

    options: MemberOptions
    requested: Sequence[Partition]
    monotonic: Callable[[float], float]
    read_max: int
    agent: SimulatedAgent = field(init=False)
    asleep_until: float = 0.0
    hung_until: float = 0.0
    """Up to then its work makes no progress."""
    cut_off_until: float = 0.0
    """Up to then nothing that it sends arrives."""
    error: PenstockError | None = None
    fenced: dict[Partition, int] = field(default_factory=dict)
    positions: dict[Partition, int] = field(default_factory=dict)
    jobs: dict[Partition, Job] = field(default_factory=dict)

    @property
    def client_id(self) -> str:
        return self.options.client_id

    @property
    def participant(self) -> Participant | None:
        """None while it is not even reading the log."""
        return self.agent.participant

    def held(self, now: float) -> dict[Partition, int]:
        """What it may begin to work on."""
        return {} if self.participant is None else self.participant.held(self.monotonic(now))

    def healthy(self, now: float) -> bool:
        return self.error is None and max(self.asleep_until, self.hung_until, self.cut_off_until) <= now


class SimulatedJournal:
    """The log through the Kafka clients of one membership."""

    def __init__(self, network: Network, process: Process) -> None:
        self.topic = CoordinationTopic("__penstock", network.log.topic_id, PLACES)
        self.group = GROUP
        self.place = 0
        self.hurries = True
        self.read = 0
        self._network = network
        self._process = process
        self._incarnation = network.log.incarnation
        self._polls: tuple[float, int] = (0.0, 0)

    def bounds(self) -> tuple[int, int]:
        log, now = self._log(), self._network.now
        if now < log.outage_until:
            raise TransientError("the broker does not answer")
        return log.first, max(log.first, log.end(now))

    def snapshots(self) -> list[Snapshot]:
        return self._log().snapshots()

    def check_new(self) -> None:
        """The topic has always had as many partitions."""

    def reopen(self) -> None:
        """Its clients are replaced."""

    def holds(self, offset: int, appended_at: float) -> bool:
        return self._log().entries[offset].appended_at == appended_at

    def seek(self, offset: int) -> None:
        self.read = offset

    def position(self) -> int:
        return self.read

    def poll(self, seconds: float) -> list[JournalEntry]:
        """What is visible, at most as much as the process reads in one moment."""
        log, now = self._log(), self._network.now
        at, count = self._polls
        self._polls = (now, count + 1 if at == now else 1)
        assert count < POLLS_AT_ONCE_MAX, "a process waits for something that does not come"
        if not log.first <= self.read <= len(log.entries):
            raise TransientError("the log was cut")
        end = self.read if now < log.outage_until else min(log.end(now), self.read + self._process.read_max)
        result = [
            JournalEntry(offset, entry.appended_at, entry.epoch, entry.record)
            for offset, entry in enumerate(log.entries[self.read : end], self.read)
            if not self._network.misses()
        ]
        self.read = max(self.read, end)
        return result

    def append(self, record: Record, failed: Failed) -> None:
        self._network.send(self._process, record, failed)

    def keep(self, snapshot: Snapshot) -> int | None:
        return self._log().keep(snapshot)

    def flush(self, seconds: float) -> int:
        return 0 if self._network.flush(self._process) else 1

    def _log(self) -> CoordinationLog:
        log = self._network.log
        if log.incarnation != self._incarnation:
            raise TransientError("the log was cut or recreated")
        return log


class SimulatedSession(Session):
    """A session whose topic is looked at by its journal."""

    def check_identity(self, interval: float) -> None:
        """The journal has noticed."""


class SimulatedAgent(Agent):
    """An agent whose thread is the simulation: in each round it reads, decides and sends."""

    def __init__(
        self, network: Network, process: Process, coordination: CoordinationOptions, work_timeout_seconds: float
    ) -> None:
        super().__init__(
            KafkaLogSpec("nowhere:9092"),
            process.options,
            coordination,
            now=lambda: process.monotonic(network.now),
            work_timeout_seconds=work_timeout_seconds,
        )
        self._network = network
        self._process = process
        self.journal: SimulatedJournal | None = None

    @property
    def participant(self) -> Participant | None:
        return self._participant

    def turn(self) -> None:
        """One round of the thread: as `_memberships`, `_membership` and `_turn` do it."""
        if self._participant is None or self._session is None:
            if not self._work_hangs():
                self._begin()
        elif self._work_hangs():
            self.leave()
        else:
            self._turn(self._session, self._participant)

    def _begin(self) -> None:
        self.journal = SimulatedJournal(self._network, self._process)
        session = SimulatedSession(cast(Journal, self.journal), self._spec, self.now)
        participant = self._catch_up(session)
        participant.request(*self._requested)
        participant.begin(self.now())
        self._participant, self._session = participant, session

    def leave(self) -> None:
        """Leave cleanly; a running process joins again in its next round."""
        if self._participant is not None and self._session is not None:
            self._leave(self._session, self._participant)

    def interrupt(self) -> None:
        """The membership ends without a record: its clients failed."""
        self._participant = self._session = None

    def send_records(self, records: Sequence[Record]) -> None:
        if self._participant is not None and self._session is not None:
            self._session.send(self._participant, records)

    def _read_back(self, verdicts: Sequence[Future[SendResult]], deadline: float) -> list[SendResult]:
        """The simulation does not wait: whether a record arrived shows in a later round."""
        raise OutcomeUnknownError("the records are under way")


class Workload(Protocol):
    """What processes do with the partitions they hold, and checks of the outcome."""

    def floor(self, partition: Partition) -> int:
        """The token that the table of a partition has."""
        ...

    def start(self, process: Process) -> None:
        """A process starts."""
        ...

    def closing(self, process: Process) -> None:
        """A process ends its work before it leaves."""
        ...

    def work(self, process: Process, now: float, hostile: bool) -> list[Record]:
        """Go on with the work of a process; the records that it sends for that."""
        ...

    def grow(self, partitions: Sequence[Partition], seconds: float) -> None:
        """Time passes, and partitions may have more records."""
        ...

    def some_position(self, partition: Partition) -> int:
        """A position that an administrator may seek to."""
        ...

    def sent(self, process: Process, record: Record) -> None:
        """A process sends a record."""
        ...

    def appended(self, record: Record, refusal: str | None, after: GroupState) -> None:
        """A record is in the log."""
        ...

    def lost(self) -> None:
        """The log is lost; another one begins with nothing."""
        ...

    def go_on(self) -> None:
        """There is more to do again."""
        ...

    def mark(self) -> None:
        """From here on everything must move."""
        ...

    def check_progress(self, partitions: Sequence[Partition], state: GroupState) -> None:
        """Raise if something of these partitions did not move since the mark, or is missing."""
        ...


class PlainWorkload:
    """Defaults for what most workloads do not need."""

    def floor(self, partition: Partition) -> int:
        return 0

    def start(self, process: Process) -> None:
        """It has nothing."""

    def closing(self, process: Process) -> None:
        """It leaves as it is."""

    def grow(self, partitions: Sequence[Partition], seconds: float) -> None:
        """There is always more to do."""

    def go_on(self) -> None:
        """It never stopped."""

    def some_position(self, partition: Partition) -> int:
        return 0

    def sent(self, process: Process, record: Record) -> None:
        """It is not in the log yet."""

    def appended(self, record: Record, refusal: str | None, after: GroupState) -> None:
        """The work requests its partitions."""

    def lost(self) -> None:
        """The work remembers what it needs."""
