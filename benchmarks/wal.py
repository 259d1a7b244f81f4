"""How many appends a WAL acknowledges per second, compared with how often the disk itself can fsync."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.meters import Report
from penstock.logs.wal.client import WalClient

RECORD = b'{"id": 12345678, "at": "2024-05-17T10:00:00Z", "shop": "north", "amount": 12.5, "note": "twelve and a half"}'
TOPIC = "bench"
CLIENTS, BATCHES = (1, 32), (1, 1_000)


@dataclass(frozen=True, slots=True)
class WalRate:
    """What so many clients reached with appends of so many records."""

    clients: int
    batch: int
    appends_per_second: float
    records_per_second: float
    disk_fsyncs_per_second: float
    """Of one thread that writes as many bytes, before it."""


def bench_wal(seconds: float, report: Report, folder: Path | None = None) -> list[WalRate]:
    """Each number of clients with each size of append, for so long each; the folder is on the disk in question."""
    result = []
    with tempfile.TemporaryDirectory(dir=folder) as place, _served(Path(place) / "wal") as url:
        for clients in CLIENTS:
            for batch in BATCHES:
                disk = _fsync_rate(Path(place) / "probe", len(RECORD) * batch, seconds)
                report(f"{clients} clients, {batch} records per append")
                appends = _append_rate(url, clients, batch, seconds)
                result.append(WalRate(clients, batch, round(appends), round(appends * batch), round(disk)))
    return result


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """A server in a process of its own; it prints its address once it answers."""
    command = [sys.executable, "-m", "penstock.cli", "wal", "serve", "--folder", str(folder), "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        with WalClient(url) as client:
            client.create_topic(TOPIC)
        yield url
    finally:
        server.terminate()
        server.wait()


def _fsync_rate(path: Path, size: int, seconds: float) -> float:
    """How often a second one thread can append and fsync."""
    with path.open("wb", buffering=0) as file:

        def append() -> None:
            file.write(bytes(size))
            os.fsync(file)

        return _rate(append, seconds)


def _rate(act: Callable[[], object], seconds: float) -> float:
    """How often a second something can be done."""
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        act()
        count += 1
    return count / max(1e-9, time.perf_counter() - started)


def _append_rate(url: str, clients: int, batch: int, seconds: float) -> float:
    """Appends a second of all clients together, each a process of its own."""
    with multiprocessing.get_context("spawn").Pool(clients) as pool:
        pool.starmap(_appends, [(url, 1, 0.0)] * clients)
        return sum(pool.starmap(_appends, [(url, batch, seconds)] * clients, chunksize=1))


def _appends(url: str, batch: int, seconds: float) -> float:
    with WalClient(url) as client:
        client.append(TOPIC, [RECORD])
        return _rate(lambda: client.append(TOPIC, [RECORD] * batch), seconds)
