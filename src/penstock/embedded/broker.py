"""A real Kafka on this machine, from its jars: for development, the demo and the tests.

A cluster lives in a folder: data, settings, logs and a state file. It runs detached, so that any process that knows
the folder can look at it, stop it and start it again with its data.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.embedded import kafka, process
from penstock.embedded.kafka import Broker, Layout, is_free, new_brokers
from penstock.embedded.process import ProcessId
from penstock.errors import TransientError, UserError
from penstock.spark.jars import exclusive, home

STATE_NAME = "cluster.json"
READY_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 15.0
LOCK_SECONDS_MAX = 300.0
_POLL_SECONDS = 0.1
_METADATA_SECONDS_MAX = 5.0


def default_folder() -> Path:
    """Where `penstock broker` keeps its cluster unless told otherwise."""
    return home() / "broker"


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker, and its process if it runs."""

    number: int
    port: int
    pid: int | None

    @property
    def running(self) -> bool:
        return self.pid is not None


@dataclass(frozen=True, slots=True)
class Cluster:
    """One or three brokers below one folder; as a context it stops them at the end."""

    folder: Path
    layout: Layout

    @classmethod
    def start(cls, folder: Path, brokers: int = 1, settings: Mapping[str, str] | None = None) -> Cluster:
        """Starts a cluster, or starts it again with the data of the folder; returns once it answers.

        Of a cluster that runs, only the brokers that ended are started. `settings` are Kafka's own and win over ours.
        """
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            known = read_state(folder)
            running = {} if known is None else {n: one for n, one in known.processes.items() if process.is_running(one)}
            layout = _layout(known, brokers, folder, in_use=bool(running))
            cluster = cls(folder, layout)
            missing = [broker for broker in layout.brokers if broker.number not in running]
            if missing:
                kafka.prepare(layout, folder, settings or {})
                write_state(folder, layout, running)
            try:
                for broker in missing:
                    cluster._spawn(broker)
                cluster.wait_ready()
            except BaseException:
                if not running:
                    cluster._stop_all()
                raise
        return cluster

    @classmethod
    def open(cls, folder: Path) -> Cluster | None:
        """The cluster that was started in the folder, running or not; None if there never was one."""
        state = read_state(folder.absolute())
        return None if state is None else cls(folder.absolute(), state.layout)

    @property
    def bootstrap(self) -> str:
        """The plain listeners, for `bootstrap.servers`."""
        return self.layout.bootstrap

    def status(self) -> tuple[BrokerStatus, ...]:
        """Every broker, and which of them run."""
        running = {number: one.pid for number, one in self._processes().items() if process.is_running(one)}
        return tuple(BrokerStatus(one.number, one.port, running.get(one.number)) for one in self.layout.brokers)

    def stop(self) -> None:
        """Stops all brokers, by force those that do not end in time; the data stays."""
        with _locked(self.folder):
            self._stop_all()

    def kill(self, number: int = 1) -> None:
        """Ends one broker at once, without a word to the others."""
        known = self._processes().get(number)
        if known is not None:
            process.kill(known)

    def restart(self, number: int = 1) -> None:
        """Starts one broker again on its ports and data, after a clean stop if it still runs."""
        with _locked(self.folder):
            known = self._processes().get(number)
            if known is not None:
                process.stop([known], grace_seconds=STOP_SECONDS_MAX)
            self._spawn(self.layout.broker(number))
            self.wait_ready()

    def wait_ready(self) -> None:
        """Returns once every broker whose process was started and not killed answers a metadata request."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        expected = {one.number for one in self.status() if one.running}
        while not self._answers(expected):
            ended = [one.number for one in self.status() if one.number in expected and not one.running]
            if ended or time.monotonic() >= deadline:
                silent = f"the embedded broker did not answer within {READY_SECONDS_MAX:g} s"
                raise TransientError(
                    f"embedded broker {ended[0]} ended while it started" if ended else silent,
                    detail=self.layout.broker(ended[0] if ended else 1).last_lines(self.folder),
                    hint=f"its logs are below {self.folder}",
                )
            time.sleep(_POLL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self, expected: set[int]) -> bool:
        """Whether each expected broker itself names all of them: then it also serves them."""
        for number in expected:
            admin = AdminClient({"bootstrap.servers": self.layout.broker(number).address, "log_level": 0})
            try:
                metadata = admin.list_topics(timeout=_METADATA_SECONDS_MAX)
            except KafkaException:
                return False
            if not expected <= set(metadata.brokers):
                return False
        return True

    def _spawn(self, broker: Broker) -> None:
        started = process.spawn(kafka.server_command(broker, self.folder), broker.output_file(self.folder))
        write_state(self.folder, self.layout, {**self._processes(), broker.number: started})

    def _stop_all(self) -> None:
        process.stop(list(self._processes().values()), grace_seconds=STOP_SECONDS_MAX)
        write_state(self.folder, self.layout, {})

    def _processes(self) -> Mapping[int, ProcessId]:
        state = read_state(self.folder)
        return {} if state is None or state.layout != self.layout else state.processes


class State(msgspec.Struct, frozen=True):
    """What the state file says; a process that it names may have ended since."""

    version: Literal[1]
    cluster_id: str
    bootstrap: str
    """For people who look into the file."""
    brokers: tuple[Broker, ...]
    processes: Mapping[int, ProcessId]

    @property
    def layout(self) -> Layout:
        return Layout(self.cluster_id, self.brokers)


def write_state(folder: Path, layout: Layout, processes: Mapping[int, ProcessId]) -> None:
    """Replaces the state file in one act."""
    content = State(1, layout.cluster_id, layout.bootstrap, layout.brokers, processes)
    aside = folder / f"{STATE_NAME}.{os.getpid()}"
    aside.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
    aside.replace(folder / STATE_NAME)


def read_state(folder: Path) -> State | None:
    """The state of the folder, or None if no cluster was ever started in it."""
    path = folder / STATE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            "the state file of the embedded broker cannot be read",
            detail=f"{path}: {error}",
            hint=f"stop the broker by hand if it still runs, then delete {folder}",
        ) from error


def _locked(folder: Path) -> AbstractContextManager[None]:
    return exclusive(folder / ".lock", wait_seconds_max=LOCK_SECONDS_MAX)


def _layout(known: State | None, brokers: int, folder: Path, *, in_use: bool) -> Layout:
    """The layout of the folder, or a new one; on other ports if its own are taken and not by its own brokers."""
    if known is None:
        return Layout(kafka.new_cluster_id(), new_brokers(brokers))
    if len(known.layout.brokers) != brokers:
        raise UserError(
            f"the folder holds a cluster of {len(known.layout.brokers)}, not of {brokers}",
            detail=str(folder),
            hint="choose another folder, or delete this one with its data",
        )
    if in_use or all(map(is_free, known.layout.ports)):
        return known.layout
    return Layout(known.layout.cluster_id, new_brokers(brokers))
