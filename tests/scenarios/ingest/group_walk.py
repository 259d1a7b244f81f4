"""Processes of one job that take a partition over from each other, under a hostile schedule in virtual time.

A failing assertion names its seed. To replay it: `Walk(SEED, folder).run()`; the same seed is the same run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from penstock.claims.group import GroupClaims
from penstock.engine.round import Rounds, open_rounds
from penstock.environment import Environment
from penstock.errors import OutcomeUnknownError, TransientError
from penstock.events import BatchPlanned, Event
from penstock.job.spec import ClaimsSpec, FlushPolicy
from penstock.lake.state import DeltaPartition
from penstock.logs.log import Partition
from tests.contract.kinds import record, toy
from tests.contract.toy import ToyTable
from tests.scenarios.local_spark import local_session
from tests.support.group_in_memory import MemoryAgent, MemoryGroup
from tests.support.memory_log import MemoryLog
from tests.support.pipes import CrashError

HOT = Partition("events", "id-1", 0)
SIZE = 10
PROCESSES = 3
STEPS = 80
CALM_ROUNDS_MAX = 150
OVERTAKEN_SHARE = 0.1
"""Of the batches, between their plan and their read."""
FAULTS = ("planned", "staged", "checked", "committed")


def killed() -> None:
    raise CrashError("killed")


def failing() -> None:
    raise TransientError("for now")


class Process:
    """One process of the job; what is `armed` happens when it reaches that step."""

    def __init__(self, walk: Walk, client_id: str) -> None:
        self.walk = walk
        self.agent: MemoryAgent = walk.group.join(client_id, [HOT])
        self.armed: dict[str, Callable[[], object]] = {}
        environment = Environment(now=lambda: walk.group.now, at_step=self._at_step, listener=self)
        self.rounds: Rounds[Any] = open_rounds(
            walk.job, local_session(), environment, GroupClaims(self.agent), lambda job: walk.log.view(job.log)
        )

    def event(self, event: Event) -> None:
        self.walk.events.append(event)
        if isinstance(event, BatchPlanned) and self.walk.rng.random() < OVERTAKEN_SHARE:
            self.walk.expire()

    def _at_step(self, step: str) -> None:
        if step in self.armed:
            self.armed.pop(step)()

    def round(self) -> None:
        """One round; a passing error is a retry in the next one."""
        with suppress(TransientError, OutcomeUnknownError):
            self.rounds.round()


class Walk:
    """One job with several processes on a log that retention overtakes."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.group = MemoryGroup()
        self.log = MemoryLog({HOT: {}})
        subject = toy(folder)
        self.job = replace(
            subject.job,
            claims=ClaimsSpec(),
            flush=FlushPolicy(0.1, 1, SIZE, 1),
            on=replace(subject.job.on, gap="record"),
        )
        self.table = ToyTable(self.job, Environment())
        self.events: list[Event] = []
        self.calm = False
        self.ids = count()
        self.processes = [self.enter() for _ in range(PROCESSES)]
        self.group.pass_seconds(30)

    def enter(self) -> Process:
        return Process(self, f"process-{next(self.ids)}")

    def run(self) -> None:
        """The hostile part, then a calm one in which everything must come to its end."""
        self.produce(10 * SIZE)
        for _ in range(STEPS):
            self.step()
        self.finish_pending()
        self.check()

    def step(self) -> None:
        match self.rng.choices(("round", "time", "produce", "retention", "fault"), (60, 15, 8, 8, 9))[0]:
            case "round":
                self.turn(self.rng.choice(self.processes))
            case "time":
                self.group.pass_seconds(self.rng.uniform(0, 15))
            case "produce":
                self.produce(self.rng.randrange(1, 4 * SIZE))
            case "retention":
                self.expire()
            case "fault":
                fault = killed if self.rng.random() < 0.4 else failing
                self.rng.choice(self.processes).armed[self.rng.choice(FAULTS)] = fault

    def turn(self, process: Process) -> None:
        """A round, or the end of the process: another one takes its place."""
        try:
            process.round()
        except CrashError:
            self.group.vanish(process.agent)
            self.processes[self.processes.index(process)] = self.enter()

    def produce(self, records: int) -> None:
        end = self.log.bounds([HOT])[HOT].end
        self.log.append(HOT, *(record(HOT, number) for number in range(end, end + records)))

    def expire(self) -> None:
        """Retention takes some records, read or not."""
        if not self.calm:
            bounds = self.log.bounds([HOT])[HOT]
            self.log.expire(HOT, min(bounds.end, bounds.first + self.rng.randrange(4 * SIZE)))

    def finish_pending(self) -> None:
        """Nothing goes wrong any more: the table must come to the end of the log."""
        self.calm = True
        end = self.log.bounds([HOT])[HOT].end
        for process in self.processes:
            process.armed.clear()
        for _ in range(CALM_ROUNDS_MAX):
            for process in self.processes:
                self.turn(process)
            if self.state().position == end:
                return
            self.group.pass_seconds(2)
        raise AssertionError(f"seed {self.seed}: stuck at {self.state().position} of {end}; {self.group.claim(HOT)}")

    def state(self) -> DeltaPartition:
        return self.table.state([HOT]).of(HOT)

    def check(self) -> None:
        offsets = [row[2] for row in self.table.rows()]
        totals, origin = self.state().totals, self.state().origin or 0
        end = self.log.bounds([HOT])[HOT].end
        assert len(offsets) == len(set(offsets)), f"seed {self.seed}: a record is there twice"
        assert totals.written == len(offsets), f"seed {self.seed}: rows are not what was counted"
        assert totals.written + totals.gap == end - origin, f"seed {self.seed}: neither a row nor counted as lost"
        assert set(range(end)) - set(offsets) <= set(range(self.log.firsts.get(HOT, 0))), f"seed {self.seed}"

    def counted(self, kind: type[Event]) -> int:
        return sum(isinstance(item, kind) for item in self.events)
