"""A WAL server killed while clients append and a job reads: every acknowledged record is there once, none is invented.

What the disk has not been asked to keep may be lost with the power: between two servers SQLite's log is cut or
scribbled over beyond its last commit, as far as a crash could.
"""

from __future__ import annotations

import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from penstock.errors import InvariantError, TransientError
from penstock.failpoints import ENVIRONMENT_NAME
from penstock.logs.wal.client import WalClient
from penstock.logs.wal.server import STEP
from penstock.logs.wal.store import STEPS
from tests.support.forked import Forked
from tests.support.jobs import KILLED
from tests.support.tries import tries
from tests.support.waiting import wait_until

TOPIC, PARTITIONS, CLIENTS, RESERVE_BYTES = "orders", 2, 4, 1_000_000
SECONDS_MAX = 120.0
KILLS = 12
ACKS_BETWEEN = (5, 60)
"""So many appends are acknowledged between two kills, about."""

T = TypeVar("T")
Place = tuple[int, int]
"""Partition and offset."""


@contextmanager
def running(module: str, *arguments: str, failpoint: str = "") -> Iterator[Forked]:
    """A process that ends with the context at the latest."""
    process = Forked(module, arguments, {ENVIRONMENT_NAME: failpoint})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def server(folder: Path, port: int, failpoint: str = "") -> AbstractContextManager[Forked]:
    return running("tests.support.wal_process", str(folder), str(port), str(RESERVE_BYTES), failpoint=failpoint)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class World:
    """Clients that append, a job that reads and commits, and the answers that they got."""

    url: str
    acked: dict[Place, bytes] = field(default_factory=dict)
    read: dict[Place, bytes] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)
    failed: list[BaseException] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def append(self, number: int) -> None:
        """Append numbered records until `stopping` is set; an append without an answer is repeated until it has one."""
        rng = random.Random(number)
        with WalClient(self.url, tries_max=1) as client:
            sequence = 0
            while not self.stopping.is_set():
                values = [b"%d-%d-%d" % (number, sequence, item) for item in range(rng.choice([1, 1, 3, 40]))]
                key = f"client-{number}:{sequence}"
                partition = rng.randrange(PARTITIONS)
                answer = self._insisting(partial(client.append, TOPIC, values, partition=partition, client_key=key))
                assert answer.end - answer.start == len(values)
                self.acked |= {(partition, answer.start + index): value for index, value in enumerate(values)}
                sequence += 1

    def job(self) -> None:
        """Read both partitions to their ends over and over, and commit each time: the server trims below that."""
        with WalClient(self.url, tries_max=1) as client:
            ended = False
            while not ended:
                ended = not any(thread.is_alive() for thread in self.threads[:CLIENTS])
                for number in range(PARTITIONS):
                    self._insisting(partial(self._read_on, client, number))

    def _read_on(self, client: WalClient, number: int) -> None:
        state = client.partitions(TOPIC)[number]
        end = state.end
        start = 1 + max((offset for part, offset in self.read if part == number), default=-1)
        for header, values in client.read(TOPIC, number, start, end):
            for offset, value in enumerate(values, header.offset):
                if start <= offset < end:
                    self.read[number, offset] = value
        client.report("job", {state.partition: end})

    def _insisting(self, call: Callable[[], T]) -> T:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                return call()
            except TransientError:
                assert time.monotonic() < deadline, "no server came back"
                time.sleep(0.02)

    def start(self) -> None:
        """Clients and job run in threads until `finish`."""
        acts: list[Callable[[], None]] = [*(partial(self.append, number) for number in range(CLIENTS)), self.job]
        self.threads = [threading.Thread(target=self._guarded, args=(act,), daemon=True) for act in acts]
        for thread in self.threads:
            thread.start()

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001, reported at the end
            self.failed.append(error)

    def wait_for(self, acks: int) -> None:
        """Wait for so many more records to be acknowledged."""
        enough = len(self.acked) + acks
        wait_until(lambda: len(self.acked) >= enough or bool(self.failed), SECONDS_MAX)

    def finish(self) -> None:
        """Let the clients end, then the job, which reads all that was appended; a server must be there."""
        self.stopping.set()
        for thread in self.threads:
            thread.join(SECONDS_MAX)
        assert not self.failed, self.failed

    def assert_every_acknowledged_record_once(self) -> None:
        assert self.read == self.acked, "each append was repeated until it was acknowledged"
        assert len(set(self.acked.values())) == len(self.acked)
        for number in range(PARTITIONS):
            offsets = sorted(offset for part, offset in self.read if part == number)
            assert offsets == list(range(len(offsets)))


LOG_HEADER, FRAME_HEADER = struct.Struct(">8xI4xI12x"), struct.Struct(">4xII12x")
"""Of SQLite's log: bytes of a page, first salt; of a frame in it: pages after a commit or 0, first salt."""


def committed_bytes(log: bytes) -> int:
    """Where the last commit of SQLite's log ends: each frame is a page, and the last of a commit is marked."""
    if len(log) < LOG_HEADER.size:
        return 0
    page_bytes, salt = LOG_HEADER.unpack_from(log)
    at = end = LOG_HEADER.size
    while at + FRAME_HEADER.size + page_bytes <= len(log):
        pages, frame_salt = FRAME_HEADER.unpack_from(log, at)
        if frame_salt != salt:
            break
        at += FRAME_HEADER.size + page_bytes
        end = at if pages else end
    return end


def lose_power(folder: Path, rng: random.Random) -> None:
    """What was not committed is lost in part, as a disk may lose it: cut, zeroed, or full of something else."""
    path = folder / "wal.db-wal"
    log = path.read_bytes()
    cut = rng.randint(committed_bytes(log), len(log))
    match rng.randrange(4):
        case 0:
            path.write_bytes(log[:cut])
        case 1:
            path.write_bytes(log[:cut] + b"\0" * rng.randint(0, 5_000))
        case 2:
            path.write_bytes(log[:cut] + rng.randbytes(rng.randint(0, 5_000)))
        case _:
            """Everything was written in time."""


@pytest.mark.parametrize("seed", range(1, 1 + tries(1)))
def test_killed_at_random_every_acknowledged_record_is_there_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    port = free_port()
    world = World(f"http://127.0.0.1:{port}")
    with server(tmp_path, port) as process:
        assert process.stdout.readline()
        with WalClient(world.url) as client:
            client.create_topic(TOPIC, PARTITIONS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    world.start()
    for _ in range(KILLS):
        with server(tmp_path, port) as process:
            world.wait_for(rng.randint(*ACKS_BETWEEN))
            process.send_signal(signal.SIGKILL)
            assert process.wait(SECONDS_MAX) == KILLED
        lose_power(tmp_path, rng)
    with server(tmp_path, port) as process:
        world.wait_for(50)
        world.finish()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    world.assert_every_acknowledged_record_once()


def test_killed_at_every_step_every_acknowledged_record_is_there_once(tmp_path: Path) -> None:
    """Each server kills itself at another step; the next starts from what it left."""
    port = free_port()
    world = World(f"http://127.0.0.1:{port}")
    with server(tmp_path, port) as process:
        assert process.stdout.readline()
        with WalClient(world.url) as client:
            client.create_topic(TOPIC, PARTITIONS)
    world.start()
    for step in (*STEPS, STEP):
        with server(tmp_path, port, f"{step}:kill:3") as process:
            assert process.wait(SECONDS_MAX) == KILLED, step
    with server(tmp_path, port):
        world.wait_for(20)
        world.finish()
    world.assert_every_acknowledged_record_once()


def test_the_command_stops_cleanly_on_a_signal_and_keeps_its_records(tmp_path: Path) -> None:
    with (
        running("penstock.cli", "wal", "serve", "--folder", str(tmp_path), "--listen", "127.0.0.1:0") as served,
        WalClient(served.stdout.readline().split()[-1]) as client,
    ):
        client.create_topic(TOPIC)
        client.append(TOPIC, [b"a"], client_key="one")
        served.send_signal(signal.SIGTERM)
        assert served.wait(SECONDS_MAX) == 0, "a connection that stays open holds nothing up"
    with server(tmp_path, 0) as process, WalClient(process.stdout.readline().strip()) as client:
        answer = client.append(TOPIC, [b"a"], client_key="one")
        assert (answer.start, answer.repeated) == (0, True)


def test_a_failed_write_ends_the_process(tmp_path: Path) -> None:
    """The system refuses every write beyond the first kilobyte of a file: an error other than a full disk."""
    with server(tmp_path, 0) as process, WalClient(process.stdout.readline().strip(), tries_max=1) as client:
        client.create_topic(TOPIC)
        client.append(TOPIC, [b"a"], client_key="one")
        psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (1_024, 1_024))
        with pytest.raises(TransientError):
            client.append(TOPIC, [b"b"], client_key="two")
        assert process.wait(SECONDS_MAX) == InvariantError.exit_code
    with server(tmp_path, 0) as process, WalClient(process.stdout.readline().strip()) as client:
        assert client.append(TOPIC, [b"a"], client_key="one").repeated
        assert not client.append(TOPIC, [b"b"], client_key="two").repeated
