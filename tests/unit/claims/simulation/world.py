"""The environment of a simulated group: time, network and processes. Nothing happens here by itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.claims.member.agent import CoordinationOptions
from penstock.claims.member.membership import (
    DifferentHeartbeatError,
    DuplicateClientError,
    MemberOptions,
    ReplacedError,
)
from penstock.claims.protocol.records import Record
from penstock.claims.protocol.snapshots import LostHistoryError
from penstock.errors import OutcomeUnknownError, PenstockError, TransientError
from penstock.logs.log import Partition
from tests.support.coordination import GROUP, INTERVAL
from tests.unit.claims.simulation.checks import Checks
from tests.unit.claims.simulation.coordination_log import CoordinationLog
from tests.unit.claims.simulation.model_table import ViolationError
from tests.unit.claims.simulation.processes import Failed, Process, SimulatedAgent, Workload
from tests.unit.claims.simulation.workloads import WORKLOADS

STEP = 1.25
QUICK = 1000
"""As many records as a process reads in one step."""
DELIVERY_SECONDS_MAX = 5.0
"""After so long a producer reports that a record could not be delivered; it may arrive all the same."""
WORK_TIMEOUT_SECONDS = 3 * INTERVAL


@dataclass(slots=True)
class Outcome:
    """What happened in a run, to see that the schedule was a hostile one."""

    workload: Workload
    records: int = 0
    refused: int = 0
    late: int = 0
    lost: int = 0
    lists: int = 1
    ended: dict[str, int] = field(default_factory=dict)
    """How many processes ended, by the error."""
    counts: dict[str, int] = field(default_factory=dict)
    """How often each fault happened."""

    def note(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


class World:
    """One group and everything around it, all chance from one seed."""

    def __init__(self, seed: int, workload: str | None, unchecked: bool, misses_records: bool) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.step_seconds = STEP
        self.hostile = True
        self._misses_records = misses_records
        topics = [self.rng.randint(1, 4) for _ in range(self.rng.randint(1, 3))]
        self.partitions = [
            Partition(f"t{topic}", f"i{topic}", number) for topic, size in enumerate(topics) for number in range(size)
        ]
        self.log = CoordinationLog(self.rng.choice((8_000_000, 8_000_000, 8_000_000, 2_500)))
        self.log_lost = False
        """Once in a run."""
        self.restart_at: float | None = None
        """When all processes are stopped, and started again with another coordination topic."""
        self._under_way: list[tuple[float, Process, Record]] = []
        self._reported: list[tuple[float, Failed, Record]] = []
        self.processes: list[Process] = []
        self.newcomers: list[tuple[float, str]] = []
        chosen = workload or self.rng.choice(("table", "table", "once", "least", "least", "latest", "most"))
        self.remembers = chosen == "table"
        """Whether tables keep tokens and positions of their own."""
        self.forgets = chosen not in ("once", "most")
        """Whether a loss of the log may be followed by work that was done before."""
        self.checks = Checks(seed)
        self.workload = WORKLOADS[chosen](seed, self.rng, unchecked)
        self.outcome = Outcome(self.workload)
        client_ids = [f"m{number}" for number in range(self.rng.randint(2, 4))]
        self.lists = {item: self.some_list() for item in client_ids}
        self.outcome.lists = len({tuple(partitions) for partitions in self.lists.values()})
        self.newcomers = [(self.rng.uniform(0, 3 * INTERVAL), client_id) for client_id in client_ids]

    def some_list(self) -> list[Partition]:
        """What a member requests: mostly everything, sometimes only some of the topics."""
        if self.rng.random() < 0.8:
            return self.partitions
        topics = sorted({partition.topic for partition in self.partitions})
        chosen = set(self.rng.sample(topics, self.rng.randint(1, len(topics))))
        return [item for item in self.partitions if item.topic in chosen]

    # time

    def living(self) -> list[Process]:
        return [process for process in self.processes if process.error is None]

    @property
    def out(self) -> bool:
        return self.now < self.log.outage_until

    def run_for(self, intervals: float) -> None:
        end = self.now + intervals * INTERVAL
        while self.now < end:
            self.step()

    def step(self) -> None:
        """One step: due processes start, records in flight arrive, every process takes a turn."""
        self.now += self.step_seconds
        if self.restart_at is not None and self.restart_at <= self.now:
            self.restart()
        for at, client_id in [newcomer for newcomer in self.newcomers if newcomer[0] <= self.now]:
            self.newcomers.remove((at, client_id))
            self.start(client_id)
        self._deliver()
        self.workload.grow(self.partitions, self.step_seconds)
        for process in self.rng.sample(self.processes, len(self.processes)):
            if process.error is None and process.asleep_until <= self.now:
                self._turn(process)
        self.checks.gates(self.living(), self.now)

    def soon(self, check: Callable[[], None]) -> None:
        """A check that may fail for an interval: shares may be changing, a position waits for its heartbeat."""
        end = self.now + INTERVAL
        while self.now < end:
            with suppress(ViolationError):
                return check()
            self.step()
        return check()

    def _turn(self, process: Process) -> None:
        agent, works = process.agent, process.hung_until <= self.now
        agent.request(process.requested, {item: self.workload.floor(item) for item in process.requested})
        if works:
            agent.working()
        try:
            agent.turn()
            self._check_agreement(process)
            if works:
                agent.send_records(self.workload.work(process, self.now, self.hostile))
        except (TransientError, OutcomeUnknownError):
            agent.interrupt()
        except PenstockError as error:
            self._end(process, error)

    def _check_agreement(self, process: Process) -> None:
        if process.participant is not None and process.agent.journal is not None and process.agent.journal.read:
            self.checks.agreement(process.participant.view, self.log.entries[process.agent.journal.read - 1])

    def _end(self, process: Process, error: PenstockError) -> None:
        """A process stops; its supervisor starts it again if its client id is not in use elsewhere."""
        process.error = error
        name = type(error).__name__
        self.outcome.ended[name] = self.outcome.ended.get(name, 0) + 1
        expected = (DuplicateClientError, ReplacedError, DifferentHeartbeatError, LostHistoryError)
        if not isinstance(error, expected):
            self.checks.fail(f"{process.client_id} ended at {self.now}: {error!r}")
        temporary = process.client_id not in self.lists
        if not temporary and process.client_id not in [item.client_id for item in self.living()]:
            self.newcomers.append((self.now + INTERVAL, process.client_id))

    # processes

    def start(self, client_id: str, heartbeat_seconds: float = INTERVAL) -> Process:
        """A process starts; `heartbeat_seconds` may differ from the group's."""
        base, rate = self.rng.uniform(0, 1e6), self.rng.uniform(0.99, 1.01)
        read_max = self.rng.choice((3, 10, QUICK, QUICK)) if self.hostile else QUICK
        options = MemberOptions(GROUP, client_id, heartbeat_seconds)
        process = Process(options, self.lists.get(client_id, self.partitions), lambda now: base + rate * now, read_max)
        coordination = CoordinationOptions(tables_remember=self.remembers)
        process.agent = SimulatedAgent(self, process, coordination, WORK_TIMEOUT_SECONDS)
        self.workload.start(process)
        self.processes.append(process)
        return process

    def request(self, client_ids: Sequence[str], partitions: list[Partition]) -> None:
        """The topic lists of members change while they run."""
        for client_id in client_ids:
            self.lists[client_id] = partitions
        for process in self.living():
            if process.client_id in client_ids:
                process.requested = partitions

    def lose_log(self, recreated: bool) -> None:
        """The log is recreated or cut, and what was under way to it is lost.

        Where tables remember, members of a recreated one go on by themselves. Others stop, and are started again.
        """
        if self.log_lost or not self.forgets or not (self.log.recreate() if recreated else self.log.cut()):
            return
        self.log_lost = True
        self._forget()
        if not (recreated and self.remembers):
            self.restart_at = self.now + 3 * INTERVAL
        self.outcome.note("lost log")

    def restart(self) -> None:
        """Stop every process and start them with another coordination topic."""
        self.restart_at = None
        self.processes = []
        self.log.begin_new_topic()
        self._forget()
        self.newcomers = [(self.now, client_id) for client_id in self.lists]

    def _forget(self) -> None:
        self._under_way = []
        self.checks.lost(self.now)
        self.workload.lost()

    # the network

    def misses(self) -> bool:
        return self._misses_records and self.rng.random() < 0.02

    def send(self, process: Process, record: Record, failed: Failed) -> None:
        """A record on its way: soon there, or late and reported as failed, or lost and reported as failed."""
        self.workload.sent(process, record)
        roll = self.rng.random() if self.hostile else 1.0
        cut_off = process.cut_off_until > self.now
        if roll < 0.03 or cut_off:
            self.outcome.lost += 1
        else:
            late = roll < 0.08
            self.outcome.late += late
            delay = self.rng.uniform(5, 60) if late else self.rng.choice((0.0, 0.0, self.step_seconds))
            self._under_way.append((self.now + delay, process, record))
            if roll > 0.99 and self.hostile:
                self._under_way.append((self.now + self.rng.uniform(0, 30), process, record))
        if roll < 0.08 or cut_off:
            self._reported.append((self.now + DELIVERY_SECONDS_MAX, failed, record))

    def flush(self, process: Process) -> bool:
        """What a process sent arrives at once, unless the broker is away or something is late."""
        ours = [item for item in self._under_way if item[1] is process]
        lost = any(record.who.client_id == process.client_id for _, _, record in self._reported)
        if self.out or lost or process.cut_off_until > self.now or any(at > self.now + STEP for at, _, _ in ours):
            return False
        self._under_way = [sent for sent in self._under_way if sent[1] is not process]
        for _, _, record in ours:
            self.append(record, visible_at=self.now)
        return bool(ours)

    def stabilize(self) -> None:
        """What is late arrives now."""
        self._under_way = [(self.now, process, record) for _, process, record in self._under_way]

    def _deliver(self) -> None:
        if not self.out:
            due = [item for item in self._under_way if item[0] <= self.now]
            self._under_way = [sent for sent in self._under_way if sent[0] > self.now]
            for _, _, record in due:
                self.append(record)
        for at, failed, record in self._reported:
            if at <= self.now:
                failed(record)
        self._reported = [report for report in self._reported if report[0] > self.now]

    def append(self, record: Record, visible_at: float | None = None) -> str | None:
        """Append a record to the log: one of an administrator, or one that was in flight."""
        before = self.log.state
        soon = self.now + self.rng.choice((0.0, 0.0, self.step_seconds))
        entry, refusal = self.log.append(record, self.now, soon if visible_at is None else visible_at)
        self.outcome.records += 1
        self.outcome.refused += refusal is not None
        self.checks.step(entry, before, refusal, self.now, self.log.stepped_at)
        self.workload.appended(entry.record, refusal, entry.behind)
        return refusal
