"""Processes die at any step, and a keyed table ends with the rows of a plain dictionary."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.environment import Environment
from penstock.failpoints import COMPACT_STEPS, VACUUM_STEPS
from penstock.lake.delta.opening import open_table
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog, open_log
from penstock.logs.wal.client import WalClient
from penstock.logs.wal.store import WalLimits, WalStore
from tests.scenarios.keyed.walk import LOAD_STEPS, NOWHERE, RUN_STEPS, Decks, Walk
from tests.support.keyed_tables import ONE, ZERO
from tests.support.pipes import CrashError, crash_at
from tests.support.wal import served
from tests.unit.logs.wal.stores import Clock, abandon

SEEDS, STEPS = 6, 16
KEPT = WalLimits(reserve_bytes=1024)
TRIM_STEPS = ("wal_trimmed", "wal_committed")


@pytest.mark.parametrize("vectors", [True, False])
def test_a_keyed_table_with_killed_processes_loads_and_compactions_equals_a_dictionary(
    tmp_path: Path, vectors: bool
) -> None:
    died_at: set[str] = set()
    marked, decks = 0, Decks(random.Random(7))
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        walk = Walk(folder, random.Random(seed), decks, vectors=vectors)
        for _ in range(STEPS):
            walk.step()
        walk.check_final_state()
        died_at |= walk.died_at
        marked += len(open_table(walk.job.table, "walk").vectors())
    assert (marked > 0) is vectors
    assert died_at == {*RUN_STEPS, *LOAD_STEPS, *COMPACT_STEPS, *VACUUM_STEPS} - {NOWHERE}


class WalWalk(Walk):
    """The same from a WAL, with one process at a time, which is all that a job of a WAL may have."""

    url: str

    def __init__(self, folder: Path, chance: random.Random, decks: Decks, url: str) -> None:
        self.url = url
        super().__init__(folder, chance, decks)

    def move(self, url: str) -> None:
        """The next server listens on another address."""
        self.url = url
        self.write_job()

    def log_section(self) -> str:
        return f'{{wal: {{url: "{self.url}", topics: [events]}}}}'

    @property
    def open_log(self) -> OpenLog:
        return open_log

    def send(self, partition: Partition, value: bytes) -> None:
        with WalClient(self.url) as client:
            client.append("events", [value], partition=partition.number)

    def run(self) -> None:
        self.put()
        self._dying(self.decks.of_run, lambda environment: self._run(environment, ZERO, ONE))

    def race(self) -> None:
        self._run(Environment(), ZERO, ONE)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    with served(folder, KEPT) as server:
        server.store.create_topic("events", 2)
        yield server.url


def trim_and_die(folder: Path, step: str) -> bool:
    """Delete what is committed, in a server that is killed at a step of it."""
    clock = Clock(time.time())
    store = WalStore(folder, KEPT, clock, crash_at(step))
    clock.at += 2 * KEPT.retention_seconds
    died = False
    with suppress(CrashError):
        died = True
        store.trim()
        died = False
    abandon(store)
    return died


@pytest.mark.parametrize("step", TRIM_STEPS)
def test_a_keyed_table_from_a_wal_with_killed_trims_equals_a_dictionary(tmp_path: Path, step: str) -> None:
    """Each server is killed at a step of its trim, and the job at one of its own steps."""
    chance, walk, died = random.Random(step), None, 0
    decks = Decks(chance)
    for _ in range(5):
        with serving(tmp_path / "wal") as url:
            if walk is None:
                walk = WalWalk(tmp_path, chance, decks, url)
            walk.move(url)
            for _ in range(4):
                walk.step()
        died += trim_and_die(tmp_path / "wal", step)
    assert walk is not None and died > 1
    with serving(tmp_path / "wal") as url:
        walk.move(url)
        walk.check_final_state()
