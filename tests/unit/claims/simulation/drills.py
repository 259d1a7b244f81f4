"""One fault in a group at rest: how soon everything is owned again, and which processes are disturbed."""

from __future__ import annotations

from penstock.claims.member.membership import DifferentHeartbeatError, Phase
from penstock.claims.protocol.records import ReleaseGroup
from penstock.logs.log import Partition
from tests.support.coordination import INTERVAL
from tests.unit.claims.simulation.checks import ADMIN
from tests.unit.claims.simulation.processes import Process
from tests.unit.claims.simulation.world import WORK_TIMEOUT_SECONDS, World

STEP = 0.25
DRILLS = 2
UNOWNED_INTERVALS_MAX = 3.0
"""After a process was killed, or its records no longer arrive."""
HANDOVER_INTERVALS_MAX = 1.0
"""After a process has left, or a partition has come."""


class Drills:
    """Some drills, by chance, one after another."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng

    def run(self) -> None:
        self._world.step_seconds = STEP
        drills = [
            self._kill,
            self._cut_off,
            self._hang,
            self._leave,
            self._pause,
            self._clock,
            self._other_heartbeat,
            self._new_topic,
        ]
        for drill in self._rng.sample(drills, DRILLS):
            living = [item for item in self._world.living() if item.participant is not None]
            if len(living) < 2:
                return
            victim = self._rng.choice(living)
            self._quiet(victim)
            drill(victim)
            self._world.outcome.note(f"drill {drill.__name__.strip('_')}")

    def _quiet(self, victim: Process | None) -> None:
        self._world.checks.quiet = frozenset(
            item.participant.who for item in self._world.living() if item.participant is not None and item is not victim
        )

    # drills

    def _kill(self, victim: Process) -> None:
        self._world.processes.remove(victim)
        self._recovers("a kill", UNOWNED_INTERVALS_MAX, {victim}, at_once=False)

    def _cut_off(self, victim: Process) -> None:
        """Its records do not arrive; it reads on, and must stop before others begin."""
        victim.cut_off_until = self._world.now + 5 * INTERVAL
        self._recovers("a producer stalled", UNOWNED_INTERVALS_MAX, {victim})
        self._world.run_for(5)

    def _hang(self, victim: Process) -> None:
        """The work of a process hangs while its agent runs: it leaves, and joins again when the work goes on."""
        seconds = WORK_TIMEOUT_SECONDS + 2 * INTERVAL
        victim.hung_until = self._world.now + seconds
        self._world.run_for(WORK_TIMEOUT_SECONDS / INTERVAL + 0.2)
        if victim.participant is not None:
            self._world.checks.fail(f"{victim.client_id} hangs, and is a member still")
        self._recovers("work hung", HANDOVER_INTERVALS_MAX, {victim})
        self._world.run_for(4)
        if victim.participant is None or victim.participant.phase is not Phase.MEMBER:
            self._world.checks.fail(f"{victim.client_id} works again, and is not a member")
        self._world.soon(lambda: self._world.checks.shares(self._world.living(), self._world.now))

    def _leave(self, victim: Process) -> None:
        self._world.workload.closing(victim)
        victim.agent.leave()
        self._world.processes.remove(victim)
        self._recovers("a process left", HANDOVER_INTERVALS_MAX, {victim})

    def _pause(self, victim: Process) -> None:
        """No process works in a pause, also if another broker leads meanwhile; it ends in time, not before."""
        intervals = self._rng.uniform(2, 5)
        self._world.append(
            ReleaseGroup(who=ADMIN, seq=0, pause_id="drill", for_seconds=intervals * INTERVAL), self._world.now
        )
        self._world.run_for(1)
        if self._rng.random() < 0.5:
            self._world.log.elect(self._rng.uniform(-3600, 3600))
        if self._rng.random() < 0.5:
            self._world.start(victim.client_id + "-late")
        self._world.run_for(intervals - 1.2)
        working = [item.client_id for item in self._world.living() if item.held(self._world.now)]
        if working and self._world.log.state.pauses:
            self._world.checks.fail(f"{working} work in a pause of {intervals:.1f} intervals")
        self._recovers("a pause", 0.2 + 2 * HANDOVER_INTERVALS_MAX, set(self._world.living()))

    def _clock(self, victim: Process) -> None:
        """The leader's clock is set; then a process starts that knows the age of records only by that clock."""
        self._world.log.step_clock(self._rng.choice((-1, 1)) * self._rng.uniform(1, 400) * INTERVAL, self._world.now)
        self._quiet(None)
        self._world.start("late")
        self._world.run_for(4)
        self._recovers("a clock was set", HANDOVER_INTERVALS_MAX, set(self._world.living()))

    def _other_heartbeat(self, victim: Process) -> None:
        """A process with another heartbeat interval is refused, and the others do not notice it."""
        self._quiet(None)
        other = self._world.start("other", heartbeat_seconds=self._rng.choice((0.5, 2)) * INTERVAL)
        self._recovers("another heartbeat", 2.5, set(), at_once=False)
        if not isinstance(other.error, DifferentHeartbeatError):
            self._world.checks.fail(f"a process with another interval was not refused: {other.error}")

    def _new_topic(self, victim: Process) -> None:
        """A topic is added that all members request."""
        self._quiet(None)
        new = [Partition("new", "i-new", number) for number in range(self._rng.randint(1, 3))]
        self._world.partitions = sorted([*self._world.partitions, *new])
        for client_id, requested in list(self._world.lists.items()):
            self._world.request([client_id], sorted([*requested, *new]))
        self._recovers("a new topic", HANDOVER_INTERVALS_MAX, set(self._world.living()))

    # what must hold

    def _recovers(self, what: str, intervals: float, disturbed: set[Process], *, at_once: bool = True) -> None:
        """Within that time everything is owned, and processes that are not `disturbed` keep working."""
        world = self._world
        kept = {item: item.held(world.now) for item in world.living() if item not in disturbed}
        end, recovered = world.now + intervals * INTERVAL, False
        while world.now < end and not (at_once and recovered):
            world.step()
            self._check_kept(what, kept)
            recovered = recovered or not self._unowned()
        if not recovered:
            places = [str(partition) for partition in self._unowned()]
            world.checks.fail(f"{intervals} intervals after {what}, at {world.now}, no process works on {places}")

    def _check_kept(self, what: str, kept: dict[Process, dict[Partition, int]]) -> None:
        """A partition of an undisturbed process may move to another, if shares change; it is never just interrupted."""
        state = self._world.log.state
        for process, partitions in kept.items():
            held = process.held(self._world.now)
            for partition, token in partitions.items():
                claim = state.claim(partition)
                ours = claim.held and claim.token == token and partition in self._due(process)
                if ours and held.get(partition) != token:
                    self._world.checks.fail(f"{process.client_id} stopped working on {partition} after {what}")

    def _due(self, process: Process) -> set[Partition]:
        """What a process should hold."""
        participant = process.participant
        if participant is None:
            return set()
        return set(participant.view.state.target.get(process.client_id, ()))

    def _unowned(self) -> list[Partition]:
        """The partitions that no process works on, though one could.

        A process that has to hand over a partition begins nothing more, and finishes its work under the claim first.
        """
        world, unowned = self._world, []
        held = {item: item.held(world.now) for item in world.living()}
        owned = {partition for partitions in held.values() for partition in partitions}
        for process in held:
            if process.healthy(world.now):
                owned |= {
                    partition
                    for partition, job in process.jobs.items()
                    if world.log.state.claim(partition).held and world.log.state.claim(partition).token == job.token
                }
        for process in held:
            if process.healthy(world.now):
                unowned += [
                    partition for partition in process.requested if partition not in owned and partition not in unowned
                ]
        return unowned
