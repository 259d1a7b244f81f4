"""A store in a folder of a test, with a clock that the test moves."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.errors import PenstockError
from penstock.failpoints import AtStep, noop
from penstock.logs.log import Bounds
from penstock.logs.wal.client import WalClient
from penstock.logs.wal.records import Appended, decode_appends
from penstock.logs.wal.store import Append, WalLimits, WalStore

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
    at_step: AtStep = noop

    def open(self) -> WalStore:
        return WalStore(self.path, self.limits, self.clock, self.at_step)

    def with_topic(self, partitions: int = 1) -> WalStore:
        store = self.open()
        store.create_topic(TOPIC, partitions)
        return store


def made(*values: bytes, client_key: str = "", key: str = "", number: int | None = None) -> Append:
    """An append of records with these values."""
    return TOPIC, len(values), msgspec.msgpack.encode(values), client_key, key, number


def append(store: WalStore, *values: bytes, client_key: str = "", key: str = "", number: int | None = None) -> Appended:
    """Append records with these values, and raise what the store refuses."""
    [result] = store.append_all([made(*values, client_key=client_key, key=key, number=number)])
    if isinstance(result, PenstockError):
        raise result
    return result


def bounds_of(store: WalStore, number: int = 0) -> Bounds:
    state = store.partitions(TOPIC)[number]
    return Bounds(state.first, state.end)


def values_in(store: WalStore, number: int = 0, start: int | None = None) -> list[bytes]:
    """All values that a reader sees, by offset; the offsets have no holes."""
    bounds = bounds_of(store, number)
    at = bounds.first if start is None else start
    values: list[bytes] = []
    while at < bounds.end:
        for append, stored in decode_appends(store.read(TOPIC, number, at, bounds.end, 100)):
            assert append.offset <= at < append.end
            values += stored[at - append.offset :]
            at = append.end
    return values


def append_body(
    client: WalClient, body: bytes, content_type: str, key: str = "", partition: int | None = None
) -> Appended:
    """Append a body of any content type."""
    query = {"key": key} if partition is None else {"partition": partition}
    return client._call(Appended, "POST", ["topics", TOPIC, "append"], query, body, {"Content-Type": content_type})


def abandon(store: WalStore) -> None:
    """Let a store go as if its process had been killed."""
    os.close(store._lock)


def commit(store: WalStore, job: str, offsets: dict[int, int] | Iterable[tuple[int, int]]) -> None:
    places = [state.partition for state in store.partitions(TOPIC)]
    store.report(job, [(places[number], offset) for number, offset in dict(offsets).items()])
