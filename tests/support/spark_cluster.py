"""A real standalone cluster of Spark on loopback: a master and workers as processes, whose executors can be killed."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pyspark.find_spark_home import _find_spark_home

from penstock.spark.session import LIGHT
from tests.support import class_archive
from tests.support.processes import free_port
from tests.support.waiting import wait_until

_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_JVM_OPTIONS = f"{LIGHT['spark.driver.extraJavaOptions']} {class_archive.options(class_archive.SPARK)}"
EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(slots=True)
class SparkCluster:
    """Processes of Spark; they log into the folder."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of its processes, in addition to that of the tests."""
    port: int = field(default_factory=free_port)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    master: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.master = self._run("master", _MASTER, "--host", "127.0.0.1", "--port", str(self.port))
        wait_until(self._answers)

    def add_worker(self, cores: int = 1, memory: str = "600m") -> None:
        """Start a worker; it registers with the master in its own time."""
        name = f"worker-{len(self.workers)}"
        options = ("--cores", str(cores), "--memory", memory, "--work-dir", str(self.folder / name))
        self.workers.append(self._run(name, _WORKER, "--host", "127.0.0.1", *options, self.url))

    def executors(self, worker: int) -> list[psutil.Process]:
        """The JVMs of executors that a worker runs."""
        alive = []
        for child in psutil.Process(self.workers[worker].pid).children():
            with suppress(psutil.NoSuchProcess):
                is_executor = any(EXECUTOR in part for part in child.cmdline())
                alive += [child] if is_executor and child.status() != psutil.STATUS_ZOMBIE else []
        return alive

    def kill_executor(self, worker: int) -> None:
        wait_until(lambda: bool(self.executors(worker)))
        for executor in self.executors(worker):
            with suppress(psutil.NoSuchProcess):
                executor.kill()

    def kill_worker(self, worker: int) -> None:
        self.workers[worker].kill()
        self.workers[worker].wait()

    def stop(self) -> None:
        for process in (*self.workers, *([self.master] if self.master else [])):
            process.kill()
            process.wait()

    def output(self) -> str:
        """All that the processes and the executors wrote."""
        files = (file for file in self.folder.rglob("*") if file.is_file() and file.suffix in ("", ".log"))
        return "\n".join(file.read_text(errors="replace") for file in files)

    def _run(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        home = Path(_find_spark_home())  # type: ignore[no-untyped-call]
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "128m",
            # Executors take it over from their worker.
            "JDK_JAVA_OPTIONS": _JVM_OPTIONS,
            **self.environment,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [home / "bin" / "spark-class", command[0], "--webui-port", "0", *command[1:]],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


@contextmanager
def spark_cluster(
    folder: Path, workers: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[SparkCluster]:
    folder.mkdir(parents=True)
    running = SparkCluster(folder, environment or {})
    try:
        running.start()
        for _ in range(workers):
            running.add_worker()
        yield running
    finally:
        running.stop()
