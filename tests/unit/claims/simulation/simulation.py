"""A group under a hostile schedule: real agents, consumers, folds and snapshots; simulated time, network and tables.

A failing assertion names its seed. To replay it:

    from tests.unit.claims.simulation.simulation import simulate
    simulate(SEED)

The same seed is the same run, record for record: chance comes from the seed alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.claims.member import session
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import ResumingGroup
from tests.support.coordination import GROUP, INTERVAL
from tests.unit.claims.simulation.checks import ADMIN
from tests.unit.claims.simulation.drills import Drills
from tests.unit.claims.simulation.random_faults import RandomFaults
from tests.unit.claims.simulation.world import QUICK, STEP, Outcome, World

HOSTILE_INTERVALS = 20
CALM_INTERVALS = 12
"""Watching a client id (2), also behind a process with a longer interval (2), leases that run out (2), take-overs (1),
work that ends (1), shares (2), and two more."""


def simulate(
    seed: int, *, workload: str | None = None, unchecked: bool = False, misses_records: bool = False
) -> Outcome:
    """One run; raises `ViolationError` where a promise is broken.

    The switches break something on purpose: a table that takes everything, a reader that misses records.
    """
    world = World(seed, workload, unchecked, misses_records)
    faults = RandomFaults(world)
    with _virtual_looks():
        while world.now < HOSTILE_INTERVALS * INTERVAL:
            world.step()
            faults.inject()
        _calm_down(world)
        Drills(world).run()
        world.checks.quiet, world.step_seconds = None, STEP
        _check_progress(world)
    _check_late_reader(world)
    world.outcome.counts["takeover"] = world.checks.takeovers
    world.outcome.counts["too large"] = world.log.too_large
    return world.outcome


@contextmanager
def _virtual_looks() -> Iterator[None]:
    """A loss of history is looked at several times; between them no real time has to pass."""
    seconds, session.LOSS_ASKED_SECONDS = session.LOSS_ASKED_SECONDS, 0.0
    try:
        yield
    finally:
        session.LOSS_ASKED_SECONDS = seconds


def _calm_down(world: World) -> None:
    """Nothing bad happens any more: within a few intervals everything is held, fairly, and moves on."""
    world.hostile, world.log.outage_until = False, 0.0
    if world.restart_at is not None:
        world.restart()
    world.newcomers = [(world.now, client_id) for _, client_id in world.newcomers]
    world.processes = [item for item in world.processes if item.client_id in world.lists]
    world.stabilize()
    for process in world.processes:
        process.asleep_until = process.hung_until = process.cut_off_until = 0.0
        process.read_max = QUICK
    for pause_id in list(world.log.state.pauses):
        world.append(ResumingGroup(who=ADMIN, seq=0, pause_id=pause_id))
    world.run_for(CALM_INTERVALS - 4)
    world.checks.quiet = frozenset(
        process.participant.who for process in world.living() if process.participant is not None
    )
    world.run_for(4)
    _check_progress(world)


def _check_progress(world: World) -> None:
    """Everything is held and moves on; what was there before is done."""
    world.workload.mark()
    world.run_for(4)
    world.soon(lambda: world.checks.shares(world.living(), world.now))
    held = sorted({partition for process in world.living() for partition in process.held(world.now)})
    world.soon(lambda: world.workload.check_progress(held, world.log.state))
    world.workload.go_on()


def _check_late_reader(world: World) -> None:
    """A reader that starts at the end of the run and reads from the beginning agrees with all others."""
    view = GroupView(GROUP, INTERVAL)
    for offset, entry in enumerate(world.log.entries):
        view.read(offset, entry.record, 5.0, entry.appended_at, entry.epoch)
        world.checks.agreement(view, entry)
