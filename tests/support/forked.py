"""Processes that start at once: forked from one that has imported all of Penstock, most of what a process does.

A forked process has a pid, arguments, an environment and pipes of its own, and dies by signals like any other.

python -m tests.support.forked SOCKET LISTENER: the process that forks; it ends when the socket is closed. A process
that the tests did not start, such as the daemon of Spark's Python workers, asks for one at the address of the listener.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import psutil
import pyspark

import penstock
from tests.support.worker_daemon import ADDRESS_NAME

IMPORTED = (
    # Arrow, PySpark and Typer import these late.
    *("pandas", "pyarrow.dataset", "pydantic", "pyspark.sql.pandas.map_ops"),
    *(() if pyspark.__version__.startswith("3.") else ("pyspark.sql.classic.dataframe",)),
    *("pyspark.worker", "tests.support.claimants", "tests.fault.consumer", "tests.support.export_process"),
)
"""Besides all modules of Penstock, which also imports many late."""
_REQUEST_BYTES_MAX = 1 << 17
_START_SECONDS_MAX = 120.0


class Process(Protocol):
    """What `subprocess.Popen` and `Forked` have in common."""

    pid: int
    stdout: Any
    stderr: Any

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """`python -m MODULE ARGUMENTS` with pipes for its output; the same methods as `subprocess.Popen`."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": {**os.environ, **(environment or {})},
            "folder": os.getcwd(),
        }
        pipes = [os.pipe() for _ in range(3)]
        passed = [os.open(os.devnull, os.O_RDONLY), *(written for _, written in pipes)]
        server = start()
        server.settimeout(_START_SECONDS_MAX)
        socket.send_fds(server, [json.dumps(request).encode()], passed)
        for item in passed:
            os.close(item)
        self.pid = int(server.recv(64))
        self.stdout, self.stderr, self._ended = (os.fdopen(read) for read, _ in pipes)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._code(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _code(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._ended)
            if poll.poll(None if seconds is None else seconds * 1000):
                self.returncode = int(self._ended.read())
        return self.returncode


def has_stopped(process: Process, output: str = "") -> bool:
    """Whether the process has stopped itself (SIGSTOP); it must not end instead; `output` is shown if it does."""
    code = process.poll()
    assert code is None, f"it ended with {code} instead of stopping; {output}"
    return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


@cache
def start() -> socket.socket:
    """The socket of the process that forks, which the first call starts."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its, listener:
        listener.bind(f"\0{os.environ[ADDRESS_NAME]}")
        listener.listen()
        passed = [its.fileno(), listener.fileno()]
        subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.support.forked", *map(str, passed)],
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
        )
    return ours


def serve(requests: socket.socket, listener: socket.socket) -> dict[str, Any] | None:
    """Fork for every request; returns it in the process that is to do it, and None at the end in this one."""
    with selectors.DefaultSelector() as waited:
        waited.register(requests, selectors.EVENT_READ)
        waited.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in waited.select():
                if key.data:
                    _report_end(waited, key)
                    continue
                asked = requests if key.fileobj is requests else listener.accept()[0]
                text, pipes, _, _ = socket.recv_fds(asked, _REQUEST_BYTES_MAX, 4)
                if not text and asked is requests:
                    return None
                if asked is not requests:
                    # Its other end waits for the exit code.
                    pipes.append(asked.detach())
                if not text:
                    os.close(pipes.pop())
                    continue
                pid = os.fork()
                if not pid:
                    _let_go(waited)
                    _take(pipes)
                    request: dict[str, Any] = json.loads(text)
                    return request
                *standard, ended = pipes
                for item in standard:
                    os.close(item)
                waited.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, ended))
                if asked is requests:
                    requests.send(str(pid).encode())


def _report_end(waited: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    pid, ended = key.data
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError, ConnectionResetError):
        os.write(ended, str(os.waitstatus_to_exitcode(status)).encode())
    os.close(ended)
    waited.unregister(key.fileobj)
    os.close(key.fd)


def _let_go(waited: selectors.BaseSelector) -> None:
    """Close what belongs to the process that forks: its requests, and those that wait for its other children."""
    for key in list(waited.get_map().values()):
        os.close(key.fd)
        if key.data:
            _, ended = key.data
            os.close(ended)


def _take(pipes: Sequence[int]) -> None:
    """Make the pipes of a request this process's own."""
    for number, item in enumerate(pipes[:3]):
        os.dup2(item, number)
    for pipe in pipes:
        os.close(pipe)


def main(descriptor: str, listening: str) -> None:
    packaged = [module.name for module in pkgutil.walk_packages(penstock.__path__, "penstock.")]
    for name in (*packaged, *IMPORTED):
        if not name.endswith("__main__"):
            importlib.import_module(name)
    # What is loaded so far stays: the garbage collector can skip it.
    gc.freeze()
    requests, listener = socket.socket(fileno=int(descriptor)), socket.socket(fileno=int(listening))
    request = serve(requests, listener)
    if request is None:
        return
    requests.detach()
    listener.detach()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["module"], *request["arguments"]]
    if "name" in request:
        Path("/proc/self/comm").write_text(request["name"])
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
