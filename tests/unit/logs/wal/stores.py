"""A store in a folder of a test, with a clock that the test moves."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from penstock.failpoints import Reach, noop
from penstock.logs.wal.limits import WalLimits
from penstock.logs.wal.store.frames import WalRecord, frames_of
from penstock.logs.wal.store.store import WalStore

TOPIC = "orders"


class DiskFailedError(Exception):
    """Stands for the end of the process."""


def fail(error: BaseException) -> NoReturn:
    raise DiskFailedError(str(error))


@dataclass(slots=True)
class Clock:
    at: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.at


@dataclass(slots=True)
class Folder:
    """Opens the same folder again and again."""

    path: Path
    limits: WalLimits = field(default_factory=WalLimits)
    clock: Clock = field(default_factory=Clock)
    reach: Reach = noop

    def open(self) -> WalStore:
        return WalStore(self.path, self.limits, self.clock, self.reach, fail)

    def with_topic(self, partitions: int = 1) -> WalStore:
        store = self.open()
        store.create_topic(TOPIC, partitions)
        return store

    @property
    def partition(self) -> Path:
        return self.path / "topics" / TOPIC / "0"

    def segments(self) -> list[Path]:
        return sorted(self.partition.glob("*.wal"))


def records(*values: bytes) -> list[WalRecord]:
    return [WalRecord(value) for value in values]


def values_in(store: WalStore, number: int = 0, start: int | None = None) -> list[bytes | None]:
    """All values that a reader sees, by offset; the offsets have no holes."""
    partition = store.topic(TOPIC).partition(number)
    bounds = partition.bounds()
    at = bounds.first if start is None else start
    found: list[bytes | None] = []
    while at < bounds.end:
        for header, read in frames_of(partition.read(at, bounds.end, 100)):
            assert header.offset <= at < header.end
            found += [each.value for each in read[at - header.offset :]]
            at = header.end
    return found


def abandon(store: WalStore) -> None:
    """Let a store go as if its process had been killed: nothing is written or made durable."""
    os.close(store._owned)


def commit(store: WalStore, job: str, offsets: dict[int, int] | Iterable[tuple[int, int]]) -> None:
    store.report(job, "table", {TOPIC: (store.topic(TOPIC).id, dict(offsets))})
