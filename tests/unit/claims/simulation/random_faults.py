"""Random faults that may hit a simulated group at any moment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from penstock.claims.protocol.records import FreeingPartition, ReleaseGroup, ResumingGroup, Seeking
from penstock.errors import TransientError
from penstock.logs.log import Partition
from tests.support.coordination import INTERVAL
from tests.unit.claims.simulation.checks import ADMIN
from tests.unit.claims.simulation.processes import Process
from tests.unit.claims.simulation.world import World

STEP_SECONDS_MAX = 3600.0
"""By how much a clock may be wrong, or be set."""


class RandomFaults:
    """Chooses faults at random and injects them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._other_heartbeats = 0
        self._pauses = 0
        self._of_processes: list[tuple[float, Callable[[Process], None]]] = [
            (0.004, self._nap),
            (0.002, self._crash),
            (0.001, self._double),
            (0.001, self._leave),
            (0.002, self._interrupt),
            (0.002, self._hang),
            (0.002, self._cut_off),
        ]
        self._of_all: list[tuple[float, Callable[[], None]]] = [
            (0.003, self._pause),
            (0.001, self._resume),
            (0.002, self._outage),
            (0.004, self._election),
            (0.003, self._clock),
            (0.003, self._free),
            (0.002, self._seek),
            (0.003, self._other_list),
            (0.001, self._grow),
            (0.001, self._other_heartbeat),
            (0.003, self._retention),
            (0.001, self._loss),
        ]

    def inject(self) -> None:
        for process in self._world.living():
            roll = self._rng.random()
            for chance, happen in self._of_processes:
                if 0 <= roll < chance:
                    happen(process)
                    self._world.outcome.note(happen.__name__.strip("_"))
                roll -= chance
        roll = self._rng.random()
        for chance, inject in self._of_all:
            if 0 <= roll < chance:
                inject()
                self._world.outcome.note(inject.__name__.strip("_"))
            roll -= chance

    def _later(self, intervals_max: float) -> float:
        return self._world.now + self._rng.uniform(0, intervals_max) * INTERVAL

    # processes

    def _nap(self, process: Process) -> None:
        process.asleep_until = self._world.now + self._rng.uniform(0.5, 6) * INTERVAL
        if self._rng.random() < 0.3 and process.client_id in self._world.lists:
            self._world.newcomers.append((self._later(2), process.client_id))

    def _crash(self, process: Process) -> None:
        self._world.processes.remove(process)
        if process.client_id in self._world.lists:
            self._world.newcomers.append((self._later(4), process.client_id))

    def _double(self, process: Process) -> None:
        if process.client_id in self._world.lists:
            self._world.start(process.client_id)

    def _leave(self, process: Process) -> None:
        self._world.workload.closing(process)
        with suppress(TransientError):
            process.agent.leave()
        self._crash(process)

    def _interrupt(self, process: Process) -> None:
        """A running process begins a new membership: its client to the coordination topic was renewed."""
        process.agent.interrupt()

    def _hang(self, process: Process) -> None:
        process.hung_until = self._world.now + self._rng.uniform(0.5, 7) * INTERVAL

    def _cut_off(self, process: Process) -> None:
        process.cut_off_until = self._world.now + self._rng.uniform(0.2, 4) * INTERVAL

    # people

    def _pause(self) -> None:
        for_seconds = self._rng.choice((None, self._rng.uniform(1, 4) * INTERVAL))
        self._pauses += 1
        self._world.append(ReleaseGroup(who=ADMIN, seq=0, pause_id=f"p{self._pauses}", for_seconds=for_seconds))

    def _resume(self) -> None:
        self._world.append(ResumingGroup(who=ADMIN, seq=0, pause_id=f"p{self._rng.randint(0, self._pauses)}"))

    def _free(self) -> None:
        partition, token = self._any_claim()
        self._world.append(FreeingPartition(who=ADMIN, seq=0, partition=partition, if_token=token))

    def _seek(self) -> None:
        """To an earlier or later position, of a partition with or without an owner; sometimes it is refused."""
        partition, token = self._any_claim()
        claim = self._world.log.state.claim(partition)
        position = self._world.workload.some_position(partition)
        if self._rng.random() < 0.5:
            moving = FreeingPartition(who=ADMIN, seq=0, partition=partition, if_token=token, position=position)
            self._world.append(moving)
        else:
            seeking = Seeking(
                who=ADMIN, seq=0, partition=partition, if_token=token, if_seeks=claim.seeks, position=position
            )
            self._world.append(seeking)

    def _any_claim(self) -> tuple[Partition, int]:
        partition = self._rng.choice(self._world.partitions)
        return partition, self._world.log.state.claim(partition).token

    def _other_list(self) -> None:
        chosen = self._rng.sample(sorted(self._world.lists), self._rng.randint(1, len(self._world.lists)))
        self._world.request(chosen, self._world.some_list())

    def _grow(self) -> None:
        """A topic has one partition more, and all members that request it see that."""
        topic = self._rng.choice(
            sorted({(partition.topic, partition.topic_id) for partition in self._world.partitions})
        )
        number = sum(item.topic == topic[0] for item in self._world.partitions)
        if number < 6:
            new = Partition(*topic, number)
            self._world.partitions = sorted([*self._world.partitions, new])
            for client_id, requested in list(self._world.lists.items()):
                if topic[0] in {partition.topic for partition in requested}:
                    self._world.request([client_id], sorted([*requested, new]))

    def _other_heartbeat(self) -> None:
        """A process with another heartbeat interval than the group."""
        self._other_heartbeats += 1
        self._world.start(f"s{self._other_heartbeats}", self._rng.choice((2 * INTERVAL, INTERVAL / 2)))

    # brokers

    def _outage(self) -> None:
        self._world.log.outage_until = self._world.now + self._rng.uniform(0.2, 4) * INTERVAL

    def _election(self) -> None:
        self._world.log.elect(self._rng.uniform(-STEP_SECONDS_MAX, STEP_SECONDS_MAX))

    def _clock(self) -> None:
        seconds = self._rng.choice((STEP_SECONDS_MAX, 4 * INTERVAL)) * self._rng.uniform(-1, 1)
        self._world.log.step_clock(seconds, self._world.now)

    def _retention(self) -> None:
        self._world.log.retire()

    def _loss(self) -> None:
        """The log was deleted, or its end."""
        self._world.lose_log(recreated=self._rng.random() < 0.5)
