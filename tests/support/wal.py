"""A WAL server inside the test's process, and what tests do to its topics under the names of `tests.support.kafka`."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from penstock.logs.wal.client import WalClient
from penstock.logs.wal.server import WalServer
from penstock.logs.wal.store import WalLimits, WalStore

RESERVE_BYTES = 1024 * 1024
EAGER = WalLimits(retention_seconds=0, reserve_bytes=RESERVE_BYTES)
"""Appends are deleted as soon as every job has committed them."""


@contextmanager
def served(
    folder: Path,
    limits: WalLimits | None = None,
    tokens: Sequence[str] = (),
    certificate: tuple[str, str] | None = None,
) -> Iterator[WalServer]:
    """A server of the folder while the block runs."""
    with closing(WalStore(folder, limits or WalLimits(reserve_bytes=RESERVE_BYTES))) as store:
        server = WalServer(store, "127.0.0.1", 0, tokens=tokens, certificate=certificate)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


@dataclass(slots=True)
class WalTopics:
    """Makes topics; called, it makes one with a unique name."""

    url: str

    def __call__(self, partitions: int = 1, config: Mapping[str, str] | None = None, *, name: str | None = None) -> str:
        assert not config, "a WAL has no settings of topics"
        chosen = name or f"topic-{uuid.uuid4().hex[:12]}"
        with WalClient(self.url) as client:
            client.create_topic(chosen, partitions)
        return chosen

    def delete(self, name: str) -> None:
        with WalClient(self.url) as client:
            client._answer("DELETE", ["topics", name])

    def recreate(self, name: str, partitions: int = 1) -> None:
        self.delete(name)
        self(partitions, name=name)

    def cut(self, name: str, offset: int, partition: int = 0) -> None:
        """A job that has committed so much lets the server, if it keeps nothing longer, delete it."""
        with WalClient(self.url) as client:
            client.report("cutter", {client.partitions(name)[partition].partition: offset})


@dataclass(slots=True)
class WalProduce:
    """Appends records one by one; called, it returns (partition, offset) of each, in the order given."""

    url: str
    _turn: count[int] = field(default_factory=count)

    def __call__(
        self,
        topic: str,
        values: Iterable[bytes | str],
        partition: int | None = None,
        transactional: bool = False,
        timestamp_ms: int | None = None,
    ) -> list[tuple[int, int]]:
        assert not transactional and timestamp_ms is None, "a WAL knows no transactions, and stamps records itself"
        places = []
        with WalClient(self.url) as client:
            partitions = len(client.partitions(topic))
            for value in values:
                number = next(self._turn) % partitions if partition is None else partition
                answer = client.append(topic, [value.encode() if isinstance(value, str) else value], partition=number)
                places.append((answer.partition, answer.start))
        return places
