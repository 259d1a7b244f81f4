"""Random schedules of an export's processes: crashes, stale owners, failing types, gaps and compactions.

However they meet, in the end every record is where it belongs once, and every count adds up. A schedule is drawn from
its seed, which the name of the test shows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.environment import Environment
from penstock.errors import TransientError
from penstock.job.spec import job_of
from penstock.tables.export.spec import ExportSpec
from penstock.tables.kind import CompactRequest
from penstock.tables.registry import kind_of
from tests.support.export_world import ONE, ZERO, ExportWorld, Process
from tests.support.pipes import CrashError
from tests.support.tries import tries

STEPS_PER_SCHEDULE = 14
DEPTH_MAX = 2
"""Of processes that act while another is in the middle of a step."""
KINDS = "AAABBCCabX"
PLAIN_LOG = "_penstock/export/types"


@pytest.fixture(autouse=True)
def _one_type_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The types of a batch commit in one thread, so that a seed always draws the same schedule."""
    monkeypatch.setattr("penstock.tables.export.commits.COMMITS_AT_ONCE", 1)


@dataclass(slots=True)
class Schedule:
    """One random history of one export."""

    world: ExportWorld
    rng: random.Random
    gaps: bool
    processes: list[Process] = field(default_factory=list)
    token: int = 0
    broken: list[str] = field(default_factory=list)
    depth: int = 0

    def run(self) -> None:
        for _ in range(STEPS_PER_SCHEDULE):
            self.act()
        self.finish()

    def act(self) -> None:
        acts: list[tuple[int, Callable[[], None]]] = [
            (6, self.send),
            (8, self.round),
            (2, self.take_over),
            (2, self.compact),
            (2, self.break_or_heal),
            (2 if self.gaps else 0, self.expire),
        ]
        weights, choices = zip(*acts, strict=True)
        self.rng.choices(choices, weights)[0]()
        self.world.clock.seconds += self.rng.choice((1, 40))

    def send(self) -> None:
        for partition in (ZERO, ONE):
            kinds = "".join(self.rng.choices(KINDS, k=self.rng.randrange(6)))
            self.world.send(kinds, partition, day=self.rng.randrange(3))

    def take_over(self) -> None:
        """A process under a higher token; the others do not know it yet."""
        self.token += 1
        with suppress(CrashError, TransientError):
            self.processes.append(self.world.open(self.token, self.at_step))

    def round(self) -> None:
        """One round of any live process, of the owner or a stale one; a crash ends it."""
        if not self.processes:
            self.take_over()
        if self.processes:
            process = self.rng.choice(self.processes)
            # It is in the middle of its round: only others act meanwhile.
            self.processes.remove(process)
            with suppress(CrashError, TransientError):
                process.round()
                self.processes.append(process)

    def compact(self) -> None:
        job = job_of(self.world.job, ExportSpec)
        environment = Environment(now=self.world.clock.now, sleep=lambda _: None, at_step=self.at_step)
        with suppress(CrashError, TransientError):
            if self.world.state.version >= 0:
                kind_of(job).compact(job, CompactRequest(all_days=True), environment, None)

    def break_or_heal(self) -> None:
        if self.broken:
            self.world.heal_folder(self.broken.pop())
        elif self.world.state.version >= 0:
            self.broken.append(
                self.rng.choice(("A", "B", *([f"{PLAIN_LOG}/A"] if self.world.format != "delta" else [])))
            )
            self.world.break_folder(self.broken[-1])

    def expire(self) -> None:
        """The log loses records, read or not."""
        bounds = self.world.log.bounds([ZERO])[ZERO]
        self.world.log.expire(ZERO, self.rng.randint(bounds.first, bounds.end))

    def at_step(self, step: str) -> None:
        """At any step the process may die, or sleep while others act."""
        drawn = self.rng.random()
        if drawn < 0.03:
            raise CrashError(step)
        if drawn < 0.08 and self.depth < DEPTH_MAX:
            self.depth += 1
            try:
                for _ in range(self.rng.randint(1, 3)):
                    self.act()
            finally:
                self.depth -= 1

    def finish(self) -> None:
        while self.broken:
            self.break_or_heal()
        self.world.clock.seconds += 3600
        self.world.run(self.token + 1)


def check_lost(world: ExportWorld) -> None:
    """As `ExportWorld.check`, where the log may have lost records: as many are missing as were counted as lost."""
    sent, actual = world.sent(), world.all_places()
    missing, extra = sent - actual, actual - sent
    assert not extra, f"too many: {sorted(extra)}"
    lost = Counter(place[1] for place in missing)
    for partition in world.partitions:
        state = world.state.of(partition)
        counted = (state.origin or 0) + state.totals.gap + state.totals.vanished - world.surplus(partition)
        assert lost[partition.number] == counted, f"missing {sorted(missing)}, {state}"
    assert {number for _, number, _ in missing} <= {ZERO.number}
    world.check_totals(actual)


@pytest.mark.parametrize("form", ["parquet", "delta"])
@pytest.mark.parametrize("seed", range(tries(7)))
def test_every_record_is_there_once_under_random_process_schedules(tmp_path: Path, seed: int, form: str) -> None:
    rng = random.Random(f"{form} {seed}")
    gaps = seed % 3 == 2
    world = ExportWorld(tmp_path, form, types={"A": "", "B": "", "C": "{events: 4}"})
    world.sections["flush"] = f"allowed_latency: 1ms, max_messages_per_batch: {rng.choice((4, 10, 1000))}"
    world.sections["days"] = "complete_after: 1s"
    if gaps:
        world.sections["on"] = "bad_record: quarantine, gap: record"
    Schedule(world, rng, gaps).run()
    if gaps:
        check_lost(world)
    else:
        world.check()
