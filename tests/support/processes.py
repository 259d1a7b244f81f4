"""Real Penstock processes for tests: started by command line, killed and stopped by signals, with their events."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.failpoints import ENVIRONMENT_NAME
from tests.support import spark_jvms
from tests.support.forked import Forked, Process, has_stopped
from tests.support.worker_daemon import ADDRESS_NAME

EVENT_SECONDS_MAX = 300.0
EXIT_SECONDS_MAX = 300.0
WITH_SPARK = {"load", "quarantine", "run"}
"""The commands that open a Spark."""

Event = dict[str, Any]


class PenstockProcess:
    """One `penstock` command; its JSON lines arrive as events."""

    def __init__(
        self,
        *arguments: str,
        failpoint: str = "",
        environment: Mapping[str, str] | None = None,
        through: Sequence[str] = (),
        own_spark: bool = False,
    ) -> None:
        self._errors: list[str] = []
        self.events_read: list[Event] = []
        self._events: queue.Queue[Event | None] = queue.Queue()
        alone = own_spark or through
        lent = arguments[0] in WITH_SPARK and not alone and not environment
        self._jvm = spark_jvms.lend() if lent else None
        spark = self._jvm.environment if self._jvm else {ADDRESS_NAME: ""} if alone else {}
        self._process = _started(arguments, through, {ENVIRONMENT_NAME: failpoint, **spark, **(environment or {})})
        for target in (self._read_events, self._read_errors):
            threading.Thread(target=target, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def errors(self) -> str:
        return "".join(self._errors)

    @property
    def last_words(self) -> str:
        """What a failing test shows of the process."""
        events = "\n".join(json.dumps(event) for event in self.events_read[-40:])
        return f"its last events:\n{events}\nstderr: {self.errors[-2000:]}"

    def wait_for(self, name: str) -> Event:
        """The next event of that name."""
        deadline = time.monotonic() + EVENT_SECONDS_MAX
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no event {name!r} in time; {self.last_words}") from None
            assert event is not None, f"the process ended before {name!r}; {self.last_words}"
            if event["event"] == name:
                return event

    def rest(self) -> list[Event]:
        """The events that no test has waited for, once the process has ended."""
        self.exit_code()
        return [event for event in iter(self._events.get, None) if event is not None]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_stopped(self) -> None:
        """Wait until the process has stopped itself (SIGSTOP)."""
        deadline = time.monotonic() + EVENT_SECONDS_MAX
        while not has_stopped(self._process, self.last_words):
            assert time.monotonic() < deadline, "never stopped"
            threading.Event().wait(0.05)

    def ended(self, seconds: float) -> bool:
        """Whether the process ends within that time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def exit_code(self) -> int:
        code = self._process.wait(EXIT_SECONDS_MAX)
        self._give_back()
        return code

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
        self._give_back()

    def _give_back(self) -> None:
        jvm, self._jvm = self._jvm, None
        if jvm:
            spark_jvms.take_back(jvm)

    def _read_events(self) -> None:
        for line in self._process.stdout:
            if line.startswith("{"):
                self.events_read.append(json.loads(line))
                self._events.put(self.events_read[-1])
        self._events.put(None)

    def _read_errors(self) -> None:
        self._errors.extend(self._process.stderr)


def _started(arguments: Sequence[str], through: Sequence[str], environment: Mapping[str, str]) -> Process:
    if not through:
        return Forked("penstock.cli", arguments, environment)
    return subprocess.Popen(
        [*through, sys.executable, "-m", "penstock.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@contextmanager
def penstock(
    *arguments: str,
    failpoint: str = "",
    environment: Mapping[str, str] | None = None,
    through: Sequence[str] = (),
    own_spark: bool = False,
) -> Iterator[PenstockProcess]:
    """`through` is a command that prepares the process and then becomes the one that is given behind it.

    With `own_spark` the process starts its JVM itself, and that its workers: then all of them are its children.
    """
    process = PenstockProcess(
        *arguments, failpoint=failpoint, environment=environment, through=through, own_spark=own_spark
    )
    try:
        yield process
    finally:
        process.close()


def run_once(job: Path, failpoint: str = "") -> int:
    """`penstock run --once`, to its exit."""
    with penstock("run", str(job), "--once", "--json", failpoint=failpoint) as process:
        return process.exit_code()


def command_json(*arguments: str) -> Any:
    """What a command with `--json` prints, here and not in a process of its own; it must succeed."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    return json.loads(done.stdout)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
