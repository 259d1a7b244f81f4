"""A real Kafka on this machine, from its jars: for development, the demo and the tests.

A cluster has a folder: data, settings, logs and a state file. It runs detached, so that any process that knows
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
from penstock.embedded.kafka import Broker, Brokers, are_free, new_brokers
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
    """Where `penstock broker` keeps its cluster unless a folder is named."""
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
    cluster_id: str
    brokers: Brokers

    @classmethod
    def start(cls, folder: Path, brokers: int = 1, settings: Mapping[str, str] | None = None) -> Cluster:
        """Starts a cluster, or starts it again with the data of the folder; returns once it answers.

        Of a cluster that runs, only the brokers that ended are started. `settings` are Kafka's own and win over ours.
        """
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            state = read_state(folder)
            running = {} if state is None else {n: one for n, one in state.processes.items() if process.is_running(one)}
            cluster_id = kafka.new_cluster_id() if state is None else state.cluster_id
            cluster = cls(folder, cluster_id, _brokers(state, brokers, folder, in_use=bool(running)))
            missing = [broker for broker in cluster.brokers if broker.number not in running]
            if missing:
                kafka.prepare(cluster_id, cluster.brokers, folder, settings or {})
                cluster._write(running)
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
        return None if state is None else cls(folder.absolute(), state.cluster_id, state.brokers)

    @property
    def bootstrap(self) -> str:
        """The plain listeners, for `bootstrap.servers`."""
        return bootstrap_of(self.brokers)

    def status(self) -> tuple[BrokerStatus, ...]:
        """Every broker, and which of them run."""
        running = {number: one.pid for number, one in self._processes().items() if process.is_running(one)}
        return tuple(BrokerStatus(one.number, one.port, running.get(one.number)) for one in self.brokers)

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
            self._spawn(self.brokers[number - 1])
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
                    detail=self.brokers[ended[0] - 1 if ended else 0].last_lines(self.folder),
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
            admin = AdminClient({"bootstrap.servers": self.brokers[number - 1].address, "log_level": 0})
            try:
                metadata = admin.list_topics(timeout=_METADATA_SECONDS_MAX)
            except KafkaException:
                return False
            if not expected <= set(metadata.brokers):
                return False
        return True

    def _spawn(self, broker: Broker) -> None:
        started = process.spawn(kafka.server_command(broker, self.folder), broker.output_file(self.folder))
        self._write({**self._processes(), broker.number: started})

    def _stop_all(self) -> None:
        process.stop(list(self._processes().values()), grace_seconds=STOP_SECONDS_MAX)
        self._write({})

    def _processes(self) -> Mapping[int, ProcessId]:
        state = read_state(self.folder)
        return {} if state is None or state.brokers != self.brokers else state.processes

    def _write(self, processes: Mapping[int, ProcessId]) -> None:
        write_state(self.folder, self.cluster_id, self.brokers, processes)


class State(msgspec.Struct, frozen=True):
    """What the state file says; a process that it names may have ended since."""

    version: Literal[1]
    cluster_id: str
    bootstrap: str
    """For people who look into the file."""
    brokers: Brokers
    processes: Mapping[int, ProcessId]


def write_state(folder: Path, cluster_id: str, brokers: Brokers, processes: Mapping[int, ProcessId]) -> None:
    """Replace the state file in one act."""
    content = State(1, cluster_id, bootstrap_of(brokers), brokers, processes)
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


def bootstrap_of(brokers: Brokers) -> str:
    """The plain listeners, for any client."""
    return ",".join(broker.address for broker in brokers)


def _brokers(state: State | None, count: int, folder: Path, *, in_use: bool) -> Brokers:
    """The brokers of the folder, or new ones; on other ports if theirs are taken and not by themselves."""
    if state is not None and len(state.brokers) != count:
        raise UserError(
            f"the folder holds a cluster of {len(state.brokers)}, not of {count}",
            detail=str(folder),
            hint="choose another folder, or delete this one with its data",
        )
    return state.brokers if state is not None and (in_use or are_free(state.brokers)) else new_brokers(count)
