"""A store in a folder of a test, with clocks that the test moves."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.failpoints import Reach, noop
from penstock.logs.log import Bounds
from penstock.logs.wal.limits import WalLimits
from penstock.logs.wal.records import (
    EncodedRecord,
    PositionsReport,
    TopicReport,
    WalRecord,
    decode_appends,
    encode_record,
)
from penstock.logs.wal.store import WalStore

TOPIC = "orders"
LIMITS = WalLimits(reserve_bytes=1024)


@dataclass(slots=True)
class Clock:
    at: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.at


@dataclass(slots=True)
class Folder:
    """Opens the same folder again and again."""

    path: Path
    limits: WalLimits = LIMITS
    clock: Clock = field(default_factory=Clock)
    monotonic: Clock = field(default_factory=Clock)
    reach: Reach = noop

    def open(self) -> WalStore:
        return WalStore(self.path, self.limits, self.clock, self.reach, self.monotonic)

    def with_topic(self, partitions: int = 1) -> WalStore:
        store = self.open()
        store.create_topic(TOPIC, partitions)
        return store


def records(*values: bytes, key: bytes | None = None) -> list[EncodedRecord]:
    return [(key, encode_record(WalRecord(value, key))) for value in values]


def bounds_of(store: WalStore, number: int = 0) -> Bounds:
    view = store.topic(TOPIC).partitions[number]
    return Bounds(view.first, view.end)


def values_in(store: WalStore, number: int = 0, start: int | None = None) -> list[bytes | None]:
    """All values that a reader sees, by offset; the offsets have no holes."""
    bounds = bounds_of(store, number)
    at = bounds.first if start is None else start
    values: list[bytes | None] = []
    while at < bounds.end:
        for append, stored in decode_appends(store.read(TOPIC, number, at, bounds.end, 100)):
            assert append.offset <= at < append.end
            values += [record.value for record in stored[at - append.offset :]]
            at = append.end
    return values


def abandon(store: WalStore) -> None:
    """Let a store go as if its process had been killed."""
    os.close(store._lock)


def commit(store: WalStore, job: str, offsets: dict[int, int] | Iterable[tuple[int, int]]) -> None:
    store.report(job, PositionsReport({TOPIC: TopicReport(store.topic(TOPIC).id, dict(offsets))}, "table"))
