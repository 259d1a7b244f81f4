"""A real Kafka on this machine, from its jars: for development, the demo and the tests.

It has a folder: data, settings, output and a state file. It runs detached: any process that knows the folder can read
its status, stop it and start it again with its data.
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
from penstock.embedded.kafka import Broker
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
    """Where `penstock broker` keeps its data unless a folder is named."""
    return home() / "broker"


class State(msgspec.Struct, frozen=True):
    """The content of the state file; a process that it names may have ended since."""

    version: Literal[2]
    cluster_id: str
    bootstrap: str
    """For people who read the file."""
    broker: Broker
    process: ProcessId | None


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Kafka of one broker below a folder; as a context it stops the broker at the end."""

    folder: Path
    cluster_id: str
    broker: Broker

    @classmethod
    def start(cls, folder: Path, settings: Mapping[str, str] | None = None, port: int | None = None) -> Cluster:
        """Start it, with the data that the folder has, unless it runs; return once it answers.

        `settings` are Kafka's own and override the defaults. `port` is for a new cluster. A port in use is replaced by
        a free one.
        """
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            cluster = cls.open(folder) or cls(folder, kafka.new_cluster_id(), kafka.new_broker(port))
            if cluster.pid is not None:
                cluster._wait_ready()
                return cluster
            if not all(map(kafka.is_free, (cluster.broker.port, cluster.broker.controller_port))):
                cluster = cls(folder, cluster.cluster_id, kafka.new_broker())
            kafka.prepare(cluster.cluster_id, cluster.broker, folder, settings or {})
            cluster._spawn()
        return cluster

    @classmethod
    def open(cls, folder: Path) -> Cluster | None:
        """The cluster that was started in the folder, running or not; None if there never was one."""
        state = _read_state(folder.absolute())
        return None if state is None else cls(folder.absolute(), state.cluster_id, state.broker)

    @property
    def bootstrap(self) -> str:
        """The plain listener, for `bootstrap.servers`."""
        return self.broker.address

    @property
    def pid(self) -> int | None:
        """The number of its process; None if it does not run."""
        started = self._process()
        return started.pid if started is not None and process.is_running(started) else None

    def stop(self) -> None:
        """Stop the broker, by force if it does not end in time; the data stays."""
        with _locked(self.folder):
            self._stop()

    def kill(self) -> None:
        """End the broker at once, as a power cut would."""
        started = self._process()
        if started is not None:
            process.kill(started)

    def restart(self) -> None:
        """Start the broker again on its ports and data, after a clean stop if it still runs."""
        with _locked(self.folder):
            self._stop()
            self._spawn()

    def save(self, started: ProcessId | None = None) -> None:
        """Replace the state file atomically."""
        content = State(2, self.cluster_id, self.bootstrap, self.broker, started)
        aside = self.folder / f"{STATE_NAME}.{os.getpid()}"
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
        aside.replace(self.folder / STATE_NAME)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _spawn(self) -> None:
        """Start the process and wait until it answers; stop it if it does not."""
        self.save(process.spawn(kafka.server_command(self.broker, self.folder), self.broker.output_file(self.folder)))
        try:
            self._wait_ready()
        except BaseException:
            self._stop()
            raise

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._answers():
            ended = self.pid is None
            if ended or time.monotonic() >= deadline:
                silent = f"the embedded broker did not answer within {READY_SECONDS_MAX:g} s"
                raise TransientError(
                    "the embedded broker ended while it started" if ended else silent,
                    detail=self.broker.last_lines(self.folder),
                    hint=f"its output is below {self.folder}",
                )
            time.sleep(_POLL_SECONDS)

    def _answers(self) -> bool:
        """Whether the broker names itself: then it also serves its partitions."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            return self.broker.number in admin.list_topics(timeout=_METADATA_SECONDS_MAX).brokers
        except KafkaException:
            return False

    def _stop(self) -> None:
        started = self._process()
        if started is not None:
            process.stop(started, grace_seconds=STOP_SECONDS_MAX)
        self.save()

    def _process(self) -> ProcessId | None:
        state = _read_state(self.folder)
        return state.process if state is not None and state.broker == self.broker else None


def _read_state(folder: Path) -> State | None:
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
