"""A random history of a rollup: streams, batches, clocks, restarts, crashes and two processes, from one seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.claims import StaticClaims
from penstock.engine.round import Rounds, Waiting
from penstock.errors import FencedError, TransientError
from penstock.failpoints import BATCH_STEPS
from penstock.logs.log import Partition
from penstock.tables.rollup.kind import RollupKind
from tests.scenarios.rollup.oracle import Sent
from tests.scenarios.rollup.rollups import ROUNDS_MAX, START, Rollup, partition

HOSTS = ("a", "b", "c", "d")
YEAR = 365 * 86400
DAY = 86400
HOUR = 3600
PROCESSES = 2


class CrashError(Exception):
    """The process ends here."""


@dataclass(slots=True)
class Ownership:
    """Which process has which partition; each new owner raises the token."""

    owners: dict[int, tuple[int, int]]
    """By partition: process and token."""

    def give(self, number: int, process: int) -> None:
        self.owners[number] = (process, self.owners[number][1] + 1)


class Sharing(StaticClaims):
    """The claims of one of the processes."""

    shared = True

    def __init__(self, ownership: Ownership, process: int) -> None:
        self._ownership = ownership
        self._process = process

    def held(self, partitions: Iterable[Partition], table_tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        owners = self._ownership.owners
        return {item: owners[item.number][1] for item in partitions if owners[item.number][0] == self._process}

    def keeps(self, partition: Partition, token: int) -> bool:
        return self._ownership.owners[partition.number] == (self._process, token)


@dataclass(slots=True)
class Walk:
    """One rollup, what was sent to it, and the processes that work on it."""

    rng: random.Random
    rollup: Rollup
    partitions: int
    points: list[Sent] = field(default_factory=list)
    rounds: dict[int, Rounds[Any]] = field(default_factory=dict)
    event_times: dict[int, int] = field(default_factory=dict)
    """About where each partition is."""
    fuse: int | str | None = None
    """Steps until the process that reaches the last of them dies, or the name of the step at which one dies."""
    crashes: int = 0
    pointless: frozenset[int] = frozenset()
    """Partitions whose records hold no points."""
    ownership: Ownership = field(init=False)

    def __post_init__(self) -> None:
        self.rollup.log.values = {partition(number): {} for number in range(self.partitions)}
        self.ownership = Ownership({number: (number % PROCESSES, 1) for number in range(self.partitions)})
        self.event_times = dict.fromkeys(range(self.partitions), START)

    def steps(self, count: int) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.send, 8),
            (self.work, 10),
            (self.wait, 4),
            (self.restart, 1),
            (self.hand_over, 1),
            (self.light_fuse, 4),
            (self.maintain, 3),
        ]
        for action in self.rng.choices([name for name, _ in actions], [weight for _, weight in actions], k=count):
            action()

    # what the stream does

    def send(self) -> None:
        """A burst into one partition."""
        number = self.rng.randrange(self.partitions)
        for _ in range(self.rng.choice((1, 2, 5, 20))):
            self.event_times[number] += self.rng.choice((0, 0, 1, 5, 30))
            place = number, self.rollup.log.bounds([partition(number)])[partition(number)].end
            self.rollup.send(number, self._record(place))

    def _record(self, place: tuple[int, int]) -> bytes | None:
        kind = self.rng.random()
        if place[0] in self.pointless:
            kind *= 0.11
        if kind < 0.03:
            return None
        if kind < 0.06:
            return b"no json"
        if kind < 0.09:
            return _telegraf(self.event_times[place[0]] + YEAR, "a", {"load": 1.0})
        if kind < 0.11:
            return _telegraf(self.event_times[place[0]], "a", {"load": "text"})
        return self._good(place)

    def _good(self, place: tuple[int, int]) -> bytes:
        at = max(START - DAY, self.event_times[place[0]] + self._shift())
        host = self.rng.choice(HOSTS)
        fields = {name: self.rng.randrange(-400, 400) / 4 for name in self.rng.sample(("load", "idle"), k=1 + at % 2)}
        tags = json.dumps({"host": host}, separators=(",", ":"))
        self.points += [Sent(place, f"cpu.{name}{tags}", at, value) for name, value in fields.items()]
        return _telegraf(at, host, fields)

    def _shift(self) -> int:
        """In time mostly, sometimes late or very late, sometimes early."""
        return self.rng.choice((0, 0, 0, 0, -3, -15, -90, -700, -4000, 20, 300))

    def wait(self) -> None:
        self.rollup.clock += self.rng.choice((1, 10, 31, 70, 700))

    # what processes do

    def work(self) -> None:
        """A few rounds of one process."""
        process = self.rng.randrange(PROCESSES)
        for _ in range(self.rng.randrange(1, 6)):
            self._round(process)

    def _round(self, process: int, *, survive: bool = True) -> bool:
        """Whether nothing is due; a process that failed is restarted when it is needed."""
        try:
            if process not in self.rounds:
                self.rounds[process] = self._open(process)
            result = self.rounds[process].round(flush_now=True)
            return isinstance(result, Waiting) and result.done
        except (CrashError, FencedError, TransientError):
            assert survive
            self.rounds.pop(process, None)
            return False

    def _open(self, process: int) -> Rounds[Any]:
        return self.rollup.open(Sharing(self.ownership, process), at_step=self._at_step)

    def _at_step(self, step: str) -> None:
        if isinstance(self.fuse, int):
            self.fuse -= 1
        if self.fuse in (step, 0):
            self.fuse = None
            self.crashes += 1
            raise CrashError(step)

    def light_fuse(self) -> None:
        self.fuse = self.rng.choice((self.rng.randrange(1, 12), *BATCH_STEPS, *RollupKind.steps))

    def restart(self) -> None:
        gone = self.rounds.pop(self.rng.randrange(PROCESSES), None)
        if gone is not None and self.rng.random() < 0.5:
            gone.close()

    def hand_over(self) -> None:
        self.ownership.give(self.rng.randrange(self.partitions), self.rng.randrange(PROCESSES))

    def maintain(self) -> None:
        with suppress(CrashError):
            if (self.rollup.folder / "windows").exists() and (self.rollup.folder / "windows_partials").exists():
                self.rng.choice((self.rollup.compact, self.rollup.vacuum))()

    # the end

    def run_to_end(self) -> None:
        """Run both processes without crashes until nothing is due."""
        self.fuse = None
        for _ in range(ROUNDS_MAX):
            done = [self._round(process, survive=False) for process in range(PROCESSES)]
            if all(done):
                return
        raise AssertionError("there was always something due")

    def finish(self) -> None:
        """Stop the stream, and move the clock until all windows are closed."""
        self.rounds.clear()
        self.run_to_end()
        for _ in range(ROUNDS_MAX if self.pointless else 0):
            self.rollup.clock += HOUR
            for process in (*range(PROCESSES), *range(PROCESSES)):
                # Whenever tables and log are checked, these partitions have an unread record.
                for number in self.pointless:
                    self.rollup.send(number, b"no json")
                self._round(process, survive=False)
            if not any(item["open"] for item in self.rollup.status()["windows"]):
                break
        else:
            assert not self.pointless, "a partition without points kept windows open"
        self.run_to_end()
        self.rollup.clock += DAY
        self.run_to_end()


def _telegraf(at: float, host: str, fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"name": "cpu", "tags": {"host": host}, "timestamp": at, "fields": fields}).encode()
